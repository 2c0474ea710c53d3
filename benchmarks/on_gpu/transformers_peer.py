"""Compares tokens a second with transformers' continuous batching, on the same device and shape of model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from benchmarks.on_gpu.engines import bench_of
from benchmarks.on_gpu.models import SMALL, config_of
from benchmarks.on_gpu.setting import Setting, random_prompt
from benchmarks.transformers_pages import pages_option

FACTOR = 3.0
NO_EOS = -1
"""An id that no token has, so that no token ends the answer."""


def measure(setting: Setting) -> dict[str, Any]:
    """Measure both after a round that compiles the kernels."""
    count, length, outputs = setting.pick(64, 3), setting.pick(128, 8), setting.pick(128, 4)
    vocab_size = config_of(SMALL, tiny=setting.tiny)["vocab_size"]
    rounds = [[random_prompt(length, vocab_size, seed) for seed in range(n, n + count)] for n in (0, 1000)]
    ours = _ours(setting, rounds, outputs)
    theirs = _theirs(setting, rounds, outputs)
    return {
        "aim": f"at least {FACTOR}x the tokens/s",
        "requests": count,
        "sluice_tokens_per_second": ours,
        "transformers_tokens_per_second": theirs,
        "factor": ours / theirs,
        "reached": ours / theirs >= FACTOR,
    }


def _ours(setting: Setting, rounds: Sequence[Sequence[Sequence[int]]], outputs: int) -> float:
    model = setting.model(SMALL)
    count, length = len(rounds[0]), len(rounds[0][0])
    bench = bench_of(
        model,
        setting.device,
        attention=setting.attention,
        max_total_tokens=count * (length + outputs + 64),
        overlap=True,
        max_running_requests=count,
        page_size=setting.pick(64, 16),
    )
    rate = 0.0
    for number, prompts in enumerate(rounds):
        began = time.perf_counter()
        for seed, prompt in enumerate(prompts):
            bench.submit(number * count + seed, prompt, outputs)
        bench.drain()
        rate = count * outputs / (time.perf_counter() - began)
    return rate


def _theirs(setting: Setting, rounds: Sequence[Sequence[Sequence[int]]], outputs: int) -> float:
    from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    config = dict(config_of(SMALL, tiny=setting.tiny))
    kind = config.pop("model_type")
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **config), dtype=setting.dtype, attn_implementation="sdpa"
    )
    model = model.to(setting.device).eval()
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=NO_EOS, max_new_tokens=outputs),
        continuous_batching_config=ContinuousBatchingConfig(
            **{pages_option(): 32},
            num_blocks=setting.pick(2048, 64),
            allow_block_sharing=False,
            max_batch_tokens=64 if setting.tiny else None,  # or it would take most of this machine's memory
        ),
    )
    rate = 0.0
    manager.start()
    try:
        for number, prompts in enumerate(rounds):
            began = time.perf_counter()
            for seed, prompt in enumerate(prompts):
                manager.add_request(
                    list(prompt), request_id=f"{number}-{seed}", max_new_tokens=outputs, eos_token_id=NO_EOS
                )
            tokens = _received(manager, len(prompts))
            rate = tokens / (time.perf_counter() - began)
    finally:
        manager.stop(block=True, hard_stop=True)
    return rate


def _received(manager: Any, count: int) -> int:
    """Return the tokens of `count` answers."""
    tokens = ended = 0
    for result in manager:
        if not result.is_finished():
            continue
        if result.error is not None:
            without = "" if find_spec("psutil") else " (it finds no memory on a CPU without the package psutil)"
            raise RuntimeError(f"transformers: {result.error}{without}")
        tokens, ended = tokens + len(result.generated_tokens), ended + 1
        if ended == count:
            return tokens
    raise RuntimeError(f"transformers ended after {ended} of {count} answers")
