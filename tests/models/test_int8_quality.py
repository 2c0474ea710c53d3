"""What int8 costs the bundled model, token by token along given text."""

from __future__ import annotations

import math

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from compiled import library
from paged_model import chunked_logits
from sluice.models.hub import BUNDLED
from sluice.models.loader import load_model
from sluice.models.packers import NativePacker
from sluice.native.library import Kernels
from training.train import texts

TOKENS = 1200


def test_perplexity_is_that_of_bfloat16() -> None:
    """Scales that are applied along the wrong side, or activations cut off, cost much more than half a percent."""
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    ids = tokenizer.encode("\n".join(texts(7)[:200])).ids[:TOKENS]
    packer = NativePacker(Kernels(library(), library().best(), 1))
    losses, best = [], []
    for quantization in ("none", "int8"):
        model, _ = load_model(
            BUNDLED,
            dtype="bfloat16",
            device=torch.device("cpu"),
            progress=False,
            quantization=quantization,
            packer=packer,
        )
        logits = chunked_logits(model, [ids], page_size=32, seed=0, max_chunk=128)[0].float()[:-1]
        losses.append(float(functional.cross_entropy(logits, torch.tensor(ids[1:]))))
        best.append(logits.argmax(-1))
    assert abs(math.expm1(losses[1] - losses[0])) <= 0.005
    hits = [float((found == torch.tensor(ids[1:])).float().mean()) for found in best]
    assert abs(hits[1] - hits[0]) <= 0.02
