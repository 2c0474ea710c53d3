"""Keys and values in eight bits, through a whole engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from any_checkpoint import any_checkpoint
from paged import Row, forward_batch
from sluice import LLM, SamplingParams
from sluice.assembly.devices import resolve_here
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.attention.base import Attention, LayerKV, PagedKV
from sluice.attention.reference import ReferenceAttention
from sluice.config import ConfigError, EngineConfig

pytest.importorskip("triton")

SMALL = {"max_total_tokens": 256, "page_size": 8, "dtype": "float32", "device": "cpu", "attention_backend": "triton"}
PROMPT = [10, 200, 31, 400, 52, 60, 71, 82, 93, 104, 300, 7]


def loaded(**options: Any) -> LoadedModel:
    return load(EngineConfig.from_options(SMALL | {"model": str(any_checkpoint())} | options), progress=False)


def scored(**options: Any) -> torch.Tensor:
    """Log-probabilities of the prompt's tokens, computed in two chunks."""
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, prompt_logprobs=0)
    with LLM(any_checkpoint(), **SMALL, chunked_prefill_size=8, **options) as llm:
        (result,) = llm.generate([PROMPT], params)
    assert result.prompt_logprobs is not None
    return torch.tensor([each.logprob for each in result.prompt_logprobs if each is not None])


@dataclass(frozen=True)
class RoundedKV(LayerKV):
    """Wide pages of what eight bits would have kept."""

    narrow: torch.dtype

    def store(self, kv_slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        LayerKV(self.k, self.v).store(kv_slots, k.to(self.narrow).to(k.dtype), v.to(self.narrow).to(v.dtype))


def logits(model: LoadedModel, kv: list[PagedKV], attention: Attention) -> torch.Tensor:
    batch = forward_batch([Row(PROMPT, 0, [3, 1], logits=range(len(PROMPT)))], 8)
    with torch.inference_mode():
        return model.model.logits(model.model.forward(batch, kv, attention))


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_only_what_is_kept_is_rounded(name: str) -> None:
    """Pages that quietly stay wide would cost four times the memory that was planned; scrambled ones, the answer."""
    wide, narrow = loaded(), loaded(kv_cache_dtype=name)
    assert 4 * narrow.info.token_bytes == wide.info.token_bytes
    assert 4 * narrow.runner().footprint().pool_bytes == wide.runner().footprint().pool_bytes
    attention = narrow.backend.make(torch.device("cpu"), None, lambda: None)
    found = logits(narrow, [narrow.new_kv(narrow.shape.layer) for _ in range(narrow.shape.num_layers)], attention)
    shape = (4, 8, narrow.shape.num_kv_heads, narrow.shape.head_dim)
    rounded = [
        RoundedKV(torch.zeros(shape), torch.zeros(shape), narrow.backend.kv_dtypes[name])
        for _ in range(narrow.shape.num_layers)
    ]
    torch.testing.assert_close(found, logits(narrow, rounded, ReferenceAttention()), rtol=1e-3, atol=1e-3)


def test_a_prompt_in_two_chunks() -> None:
    """A chunk attends to what the one before it left in the pages, not to something else of the same size."""
    exact, close = scored(), scored(kv_cache_dtype="fp8_e4m3")
    assert not torch.equal(exact, close)
    assert (exact - close).abs().mean() < 0.5


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_what_cannot_read_them_is_refused(backend: str) -> None:
    with pytest.raises(ConfigError, match=r"fp8_e4m3 needs --attention-backend triton, got (reference|native)"):
        loaded(attention_backend=backend, kv_cache_dtype="fp8_e4m3")


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3"])
def test_refused_before_a_model_is_loaded(name: str) -> None:
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype (must be one of auto, fp8_e4m3|fp8_e4m3 needs)"):
        resolve_here(EngineConfig.from_options({"device": "cpu", "kv_cache_dtype": name}))
