"""What quantised weights cost the default model, token by token along a text of ours.

The file's four bits, widened, are what they are compared with. Of 256 tokens, int8 raises the perplexity by 0.7%, int4,
which rounds a second time, by 26%, and KV in int8 lowers it by 0.4%.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from compiled import library
from paged_model import chunked_logits
from real_model import needs_real_model
from sluice.attention.base import PagedKV
from sluice.attention.int8 import Int8KV
from sluice.attention.spec import KVShape
from sluice.kernels.cpu.library import Kernels
from sluice.models.base import CausalLM
from sluice.models.default_model import default_checkpoint
from sluice.models.loader import load_model
from sluice.models.packers import NativePacker
from sluice.text.tokenizer_files import load_tokenizer

pytestmark = needs_real_model
TEXT = Path(__file__).parents[2] / "docs" / "architecture.md"
TOKENS = 256


@pytest.fixture(scope="module")
def ids() -> list[int]:
    with closing(load_tokenizer(default_checkpoint(None))) as tokenizer:
        return tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:TOKENS]


def load(quantization: str) -> CausalLM:
    packer = NativePacker(Kernels(library(), library().best(), 1))
    return load_model(
        default_checkpoint(None),
        dtype="bfloat16",
        device=torch.device("cpu"),
        progress=False,
        quantization=quantization,
        packer=packer,
    )[0]


@pytest.fixture(scope="module")
def widened() -> CausalLM:
    """The model in bfloat16."""
    return load("none")


def loss_and_hits(
    ids: list[int], model: CausalLM, new_kv: Callable[[KVShape], PagedKV] | None = None
) -> tuple[float, float]:
    """Return the mean loss, and the share of tokens that are the likeliest."""
    (logits,) = chunked_logits(model, [ids], page_size=32, seed=0, max_chunk=128, new_kv=new_kv)
    logits, after = logits.float()[:-1], torch.tensor(ids[1:])
    return float(functional.cross_entropy(logits, after)), float((logits.argmax(-1) == after).float().mean())


@pytest.fixture(scope="module")
def plain(ids: list[int], widened: CausalLM) -> tuple[float, float]:
    return loss_and_hits(ids, widened)


@pytest.mark.parametrize(("quantization", "perplexity", "share"), [("int8", 0.02, 0.02), ("int4", 0.3, 0.03)])
def test_perplexity_is_nearly_that_of_bfloat16(
    ids: list[int], plain: tuple[float, float], quantization: str, perplexity: float, share: float
) -> None:
    """Scales that are applied along the wrong side, activations cut off, or groups that are too large cost more."""
    loss, hits = loss_and_hits(ids, load(quantization))
    assert abs(math.expm1(loss - plain[0])) <= perplexity
    assert abs(hits - plain[1]) <= share


def test_perplexity_of_kv_is_that_of_bfloat16(ids: list[int], plain: tuple[float, float], widened: CausalLM) -> None:
    loss, hits = loss_and_hits(ids, widened, Int8KV.empty)
    assert loss != plain[0]
    assert abs(math.expm1(loss - plain[0])) <= 0.01
    assert abs(hits - plain[1]) <= 0.01
