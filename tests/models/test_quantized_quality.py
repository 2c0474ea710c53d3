"""What quantised weights cost the bundled model, token by token along given text."""

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


def test_perplexity_is_nearly_that_of_bfloat16() -> None:
    """Scales that are applied along the wrong side, activations cut off, or groups that are too large cost more."""
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    ids = tokenizer.encode("\n".join(texts(7)[:200])).ids[:TOKENS]
    packer = NativePacker(Kernels(library(), library().best(), 1))
    losses, hits = {}, {}
    for quantization in ("none", "int8", "int4"):
        model, _ = load_model(
            BUNDLED,
            dtype="bfloat16",
            device=torch.device("cpu"),
            progress=False,
            quantization=quantization,
            packer=packer,
        )
        logits = chunked_logits(model, [ids], page_size=32, seed=0, max_chunk=128)[0].float()[:-1]
        losses[quantization] = float(functional.cross_entropy(logits, torch.tensor(ids[1:])))
        hits[quantization] = float((logits.argmax(-1) == torch.tensor(ids[1:])).float().mean())
    for quantization, perplexity, share in (("int8", 0.005, 0.02), ("int4", 0.1, 0.03)):
        assert abs(math.expm1(losses[quantization] - losses["none"])) <= perplexity
        assert abs(hits[quantization] - hits["none"]) <= share
