"""Masks over logits: on a CPU by words, with the same outcome as bit by bit."""

from __future__ import annotations

import pytest
import torch

from sluice.runner.cpu_logit_ops import CPU_LOGIT_OPS, MINUS_INF
from sluice.runner.logit_ops import TORCH_LOGIT_OPS


@pytest.mark.parametrize("dtype", MINUS_INF)
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 1000])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99, 1.0])
def test_words_and_bits_exclude_the_same_tokens(dtype: torch.dtype, vocab_size: int, share: float) -> None:
    """Of each type, for masks that allow little or much, and at the end of a vocabulary that is no whole word."""
    draw = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(4, vocab_size, generator=draw).to(dtype)
    words = -(-vocab_size // 32)
    allowed = torch.rand(3, words, 32, generator=draw) < share
    weights = torch.tensor([1 << bit for bit in range(32)])
    bits = (allowed * weights).sum(-1).to(torch.int32)
    rows = torch.tensor([3, 0, 2])
    expected = logits.clone()
    expected[rows] = torch.where(allowed.flatten(1)[:, :vocab_size], logits[rows], -torch.inf)
    for ops in (CPU_LOGIT_OPS, TORCH_LOGIT_OPS):
        found = logits.clone()
        ops.mask(found, rows, bits)
        assert torch.equal(found, expected), ops
