"""Masks over logits: bit by bit, by words, and compiled."""

from __future__ import annotations

import pytest
import torch

from compiled import library
from sluice.kernels.cpu.library import Kernels
from sluice.runner.cpu_logit_ops import CPU_LOGIT_OPS, MINUS_INF, NativeLogitOps
from sluice.runner.logit_ops import TORCH_LOGIT_OPS, LogitOps


@pytest.fixture(scope="module", params=["torch", "words", "compiled"])
def ops(request: pytest.FixtureRequest) -> LogitOps:
    if request.param == "compiled":
        return NativeLogitOps(Kernels(library(), library().best(), 2))
    return TORCH_LOGIT_OPS if request.param == "torch" else CPU_LOGIT_OPS


@pytest.mark.parametrize("dtype", MINUS_INF)
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 10_000])
def test_what_is_not_allowed_is_excluded(ops: LogitOps, dtype: torch.dtype, vocab_size: int) -> None:
    """Of each type, for masks that allow little or much, and at the end of a vocabulary that is no whole word."""
    draw = torch.Generator().manual_seed(vocab_size)
    for share in (0.0, 0.01, 0.5, 0.99, 1.0):
        logits = torch.randn(4, vocab_size, generator=draw).to(dtype)
        words = -(-vocab_size // 32)
        allowed = torch.rand(3, words, 32, generator=draw) < share
        weights = torch.tensor([1 << bit for bit in range(32)])
        bits = (allowed * weights).sum(-1).to(torch.int32)
        rows = torch.tensor([3, 0, 2])
        expected = logits.clone()
        expected[rows] = torch.where(allowed.flatten(1)[:, :vocab_size], logits[rows], -torch.inf)
        ops.mask(logits, rows, bits)
        assert torch.equal(logits, expected), share
