"""What quantised weights cost the bundled model, token by token along given text."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice

import pytest
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from compiled import library
from paged_model import chunked_logits
from sluice.attention.base import PagedKV
from sluice.attention.int8 import Int8KV
from sluice.attention.spec import KVShape
from sluice.kernels.cpu.library import Kernels
from sluice.models.hub import BUNDLED
from sluice.models.loader import load_model
from sluice.models.packers import NativePacker
from training.tokenizer import texts

TOKENS = 1200


@pytest.fixture(scope="module")
def ids() -> list[int]:
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    found: list[int] = tokenizer.encode("\n".join(islice(texts(7), 200))).ids[:TOKENS]
    return found


def loss_and_hits(
    ids: list[int], quantization: str, new_kv: Callable[[KVShape], PagedKV] | None = None
) -> tuple[float, float]:
    """Return the mean loss, and the share of tokens that are the likeliest."""
    packer = NativePacker(Kernels(library(), library().best(), 1))
    model, _ = load_model(
        BUNDLED,
        dtype="bfloat16",
        device=torch.device("cpu"),
        progress=False,
        quantization=quantization,
        packer=packer,
    )
    (logits,) = chunked_logits(model, [ids], page_size=32, seed=0, max_chunk=128, new_kv=new_kv)
    logits, after = logits.float()[:-1], torch.tensor(ids[1:])
    return float(functional.cross_entropy(logits, after)), float((logits.argmax(-1) == after).float().mean())


@pytest.fixture(scope="module")
def plain(ids: list[int]) -> tuple[float, float]:
    return loss_and_hits(ids, "none")


@pytest.mark.parametrize(("quantization", "perplexity", "share"), [("int8", 0.005, 0.02), ("int4", 0.1, 0.03)])
def test_perplexity_is_nearly_that_of_bfloat16(
    ids: list[int], plain: tuple[float, float], quantization: str, perplexity: float, share: float
) -> None:
    """Scales that are applied along the wrong side, activations cut off, or groups that are too large cost more."""
    loss, hits = loss_and_hits(ids, quantization)
    assert abs(math.expm1(loss - plain[0])) <= perplexity
    assert abs(hits - plain[1]) <= share


def test_perplexity_of_kv_is_that_of_bfloat16(ids: list[int], plain: tuple[float, float]) -> None:
    loss, hits = loss_and_hits(ids, "none", Int8KV.empty)
    assert loss != plain[0]
    assert abs(math.expm1(loss - plain[0])) <= 0.005
    assert abs(hits - plain[1]) <= 0.02
