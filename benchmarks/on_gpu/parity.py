"""Checks graphs, overlap and every backend: each token must be about as likely as the best one in float32.

With random weights in bfloat16 the two best tokens often tie, so two right runs may differ. The check is how much less
likely than the best a run's tokens are, teacher-forced, in float32 with the reference attention: about as much as those
of the reference in bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch

from benchmarks.on_gpu.engines import REFERENCE, Bench, bench_of
from benchmarks.on_gpu.models import SMALL
from benchmarks.on_gpu.setting import Setting, random_prompt
from sluice.models.base import CausalLM

LENGTHS = (5, 700, 64, 65, 1, 129, 300, 31, 512, 17, 257, 90)
FACTOR, SLACK = 2.0, 0.02
"""Tolerated factor of the reference's largest difference to the best log-probability, and a tolerance in any case."""


def measure(setting: Setting) -> dict[str, Any]:
    """Check Sluice's own kernels."""
    return compare(setting, setting.attention)


def compare(setting: Setting, attention: str) -> dict[str, Any]:
    """Return how far each variant's tokens are behind the best, and whether that is tolerated.

    Args:
        attention: attention backend of the variants.
    """
    lengths = [min(length, setting.pick(length, 40)) for length in LENGTHS]
    model = setting.model(SMALL)
    vocab_size = model.spec.vocab_size
    prompts = [random_prompt(length, vocab_size, seed) for seed, length in enumerate(lengths)]
    judge = setting.model(SMALL, torch.float32)
    reference = _tokens(setting, model, prompts, REFERENCE, graphs=False, overlap=False)
    worst = _worst(setting, judge, prompts, reference)
    tolerated = FACTOR * worst + SLACK
    rows = []
    for graphs, overlap in product((False, True), (False, True)):
        row: dict[str, Any] = {"attention": attention, "graphs": graphs, "overlap": overlap}
        try:
            found = _tokens(setting, model, prompts, attention, graphs=graphs, overlap=overlap)
            behind = _worst(setting, judge, prompts, found)
        except Exception as error:  # noqa: BLE001 - one that fails is a row of the report
            rows.append({**row, "error": f"{type(error).__name__}: {error}", "passes": False})
            continue
        same = sum(a == b for a, b in zip(found, reference, strict=True))
        rows.append({**row, "behind_the_best": behind, "equal_requests": same, "passes": behind <= tolerated})
    return {
        "aim": "all variants pass",
        "requests": len(prompts),
        "different_tokens": len({token for tokens in reference for token in tokens}),
        "reference_behind_the_best": worst,
        "tolerated": tolerated,
        "rows": rows,
        "reached": all(row["passes"] for row in rows),
    }


def _bench(setting: Setting, model: CausalLM, attention: str, **options: Any) -> Bench:
    return bench_of(
        model,
        setting.device,
        attention=attention,
        max_total_tokens=setting.pick(16384, 1024),
        chunked_prefill_size=setting.pick(256, 16),
        max_running_requests=8,
        page_size=setting.pick(64, 16),
        **options,
    )


def _tokens(
    setting: Setting, model: CausalLM, prompts: Sequence[Sequence[int]], attention: str, *, graphs: bool, overlap: bool
) -> list[tuple[int, ...]]:
    """Return the continuation of each prompt."""
    bench = _bench(setting, model, attention, graphs=graphs, overlap=overlap)
    for number, prompt in enumerate(prompts):
        bench.submit(number, prompt, setting.pick(24, 6))
    bench.drain()
    return [bench.link.tokens(number) for number in range(len(prompts))]


def _worst(
    setting: Setting, judge: CausalLM, prompts: Sequence[Sequence[int]], found: Sequence[tuple[int, ...]]
) -> float:
    """Return the largest difference of a token's log-probability to the best one."""
    bench = _bench(setting, judge, REFERENCE, graphs=False, enable_prefix_caching=False)
    for number, (prompt, tokens) in enumerate(zip(prompts, found, strict=True)):
        bench.submit(number, (*prompt, *tokens), 1, prompt_logprobs=1)
    bench.drain()
    behind = 0.0
    for number, tokens in enumerate(found):
        for scored in bench.link.prompt_logprobs(number)[-len(tokens) :]:
            ((_, best),) = scored.top
            behind = max(behind, best - scored.logprob)
    return behind
