"""The Triton kernels in complete engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

import tiny_families
import tiny_models
from slow import slow
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.assembly.small_operations import use_triton
from sluice.attention.select import backend_named
from sluice.config import EngineConfig
from sluice.engine.messages import Submit
from sluice.models.base import CausalLM
from sluice.models.ops import Ops
from sluice.runner.logit_ops import TORCH_LOGIT_OPS
from sluice.testing import ManualLink
from sluice.types import SamplingParams, TokenLogprobs
from triton_device import each_device, quiet

pytestmark = quiet
ASKED = (
    SamplingParams(temperature=0.0, seed=0, logprobs=2, prompt_logprobs=1),
    SamplingParams(seed=1, logprobs=0),
    SamplingParams(seed=2, top_k=20, repetition_penalty=1.3, presence_penalty=0.4),
    SamplingParams(seed=3, top_p=0.8, min_p=0.02, frequency_penalty=0.5, logit_bias=((3, 2.0),)),
)
SUBMITS = [
    Submit(number, tuple((7 * number + 3 * at) % 120 + 3 for at in range(length)), replace(params, max_tokens=3))
    for number, (length, params) in enumerate(zip((11, 3, 6, 1), ASKED, strict=True))
]


def generated(loaded: LoadedModel) -> tuple[list[tuple[int, ...]], list[Sequence[TokenLogprobs]]]:
    link = ManualLink()
    engine = loaded.engine(link)
    link.put(*SUBMITS)
    engine.step()
    for _ in range(100):
        if engine.is_idle:
            break
        engine.step()
    numbers = range(len(SUBMITS))
    return [link.tokens(i) for i in numbers], [link.prompt_logprobs(i) + link.logprobs(i) for i in numbers]


FAMILIES: dict[str, Callable[[], transformers.PreTrainedModel]] = {
    "qwen3": lambda: tiny_models.qwen3(num_hidden_layers=1),
    "gpt2": lambda: tiny_models.gpt2(n_layer=1),
    "no rotation": lambda: tiny_families.smollm3(num_hidden_layers=2, no_rope_layers=[0, 1]),
    "rotated halves": lambda: tiny_families.phi4_mini(num_hidden_layers=1),
    "caps and windows": lambda: tiny_families.gemma2(num_hidden_layers=2),
    "norms over all heads": lambda: tiny_families.olmo2(num_hidden_layers=1),
    "values with a norm": lambda: tiny_families.gemma4(num_hidden_layers=4, layer_types=tiny_families.KINDS),
    "values that are keys": lambda: tiny_families.gemma4_31b(num_hidden_layers=2, layer_types=tiny_families.KINDS[:2]),
}


@each_device
@pytest.mark.parametrize(
    "name", ["qwen3", "no rotation", *(slow(name) for name in FAMILIES if name not in ("qwen3", "no rotation"))]
)
def test_the_tokens_of_torch(name: str, device: torch.device, tmp_path: Path) -> None:
    """Norms, rotations, gates, slots and filters are those of torch; chunks and decodes share steps."""
    options = {"dtype": "float32", "device": str(device), "attention_backend": "reference"}
    options |= {"page_size": 4, "chunked_prefill_size": 8}
    FAMILIES[name]().save_pretrained(tmp_path)
    config = EngineConfig.from_options({"model": str(tmp_path), "max_total_tokens": 256, **options})
    loaded = load(config, progress=False)
    assert isinstance(loaded.model, CausalLM)
    loaded.model.use(Ops())
    tokens, logprobs = generated(replace(loaded, logit_ops=TORCH_LOGIT_OPS))
    found_tokens, found_logprobs = generated(
        replace(loaded, logit_ops=use_triton(loaded.model), backend=backend_named("triton"))
    )
    assert found_tokens == tokens
    assert [len(of) for of in tokens] == [3] * len(SUBMITS)
    for found, expected in zip(found_logprobs, logprobs, strict=True):
        assert [item.token_id for item in found] == [item.token_id for item in expected]
        assert [item.logprob for item in found] == pytest.approx([item.logprob for item in expected], abs=2e-4)
