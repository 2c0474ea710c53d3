"""Penalties and log-probabilities by Triton against torch."""

from __future__ import annotations

import pytest
import torch

from slow import products
from sluice.runner.features.logprobs import score_rows
from sluice.runner.features.penalties import TokenCounts
from sluice.runner.logit_ops import TORCH_LOGIT_OPS, LogitOps, PenaltyValues
from sluice.runner.triton_logit_ops import TritonLogitOps
from triton_device import each_device, quiet

pytestmark = quiet
TRITON = TritonLogitOps()
BOTH = (TORCH_LOGIT_OPS, TRITON)


def normal(*size: int, seed: int, device: torch.device) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(device)


@each_device
@products(vocab=[9, 1500], dtype=[torch.float64, torch.float32])
def test_penalties(vocab: int, dtype: torch.dtype, device: torch.device) -> None:
    """Rows and counts in different orders; a row without penalties keeps its logits bit by bit."""
    counts = TokenCounts(vocab, device)
    opened = [counts.row_for(slot) for slot in range(3)]
    for slot, row in enumerate(opened):
        prompt, outputs = [slot, 1, 1], [slot + 2, 3, 3, 3]
        counts.open(row, torch.tensor(prompt, device=device), torch.tensor(outputs, device=device))
    count_rows = torch.tensor([opened[2], opened[0]], device=device)
    numbers = torch.tensor([[1.3, 0.4, 0.25], [0.7, -0.9, 0.5]], dtype=torch.float64, device=device).T
    rows = torch.tensor([4, 1], device=device)
    logits = normal(5, vocab, seed=vocab, device=device).to(dtype)
    results = [logits.clone() for _ in BOTH]
    for ops, result in zip(BOTH, results, strict=True):
        ops.penalize(result, rows, counts.tables, count_rows, PenaltyValues(*numbers))
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-6)
    assert torch.equal(results[1][[0, 2, 3]], logits[[0, 2, 3]])
    assert not torch.equal(results[1][1], logits[1])


@each_device
@products(vocab=[5, 9000], dtype=[torch.float16, torch.bfloat16, torch.float64, torch.float32])
def test_totals(vocab: int, dtype: torch.dtype, device: torch.device) -> None:
    """Large logits do not overflow; a block of only -inf gives no NaN; rows without a usable maximum give NaN."""
    logits = (normal(7, vocab, seed=vocab, device=device) * 30).to(dtype)
    logits[0, 1:] = -torch.inf
    logits[1, 4] = torch.nan
    logits[2, 4] = torch.inf
    logits[3] = -torch.inf
    found, expected = TRITON.totals(logits), TORCH_LOGIT_OPS.totals(logits)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-5, equal_nan=True)
    assert found.isnan().tolist() == [False, True, True, True, False, False, False]
    assert torch.equal(TRITON.totals(logits[4:5]), found[4:5]), "company changes a total"


@each_device
@pytest.mark.parametrize("width", [0, 4])
def test_log_probabilities(width: int, device: torch.device) -> None:
    """The reported log-probabilities are the same by both."""

    def scores_of(ops: LogitOps) -> list[list[float]]:
        scores = score_rows(logits, tokens, rows, width, 3 * 4 * 500, ops)
        assert scores.top_ids.shape == (5, width)
        return torch.cat((scores.logprobs[:, None], scores.top_ids, scores.top_logprobs), dim=1).tolist()

    logits = normal(6, 500, seed=1, device=device).bfloat16()
    logits += torch.arange(500, device=device) / 64  # no two alike
    tokens = torch.tensor([0, 499, 7, 7, -1, 3], device=device)
    rows = torch.tensor([0, 1, 3, 4, 5], device=device)
    for found, expected in zip(scores_of(TRITON), scores_of(TORCH_LOGIT_OPS), strict=True):
        assert found == pytest.approx(expected, rel=1e-5)


@each_device
@products(vocab=[31, 32, 2049], dtype=[torch.float16, torch.float32, torch.bfloat16])
def test_masks(vocab: int, dtype: torch.dtype, device: torch.device) -> None:
    """A token is excluded in the rows that are named, each by its own mask, and in a last word that is not whole."""
    logits = normal(5, vocab, seed=vocab, device=device).to(dtype)
    words = torch.Generator().manual_seed(vocab)
    bits = torch.randint(-(2**31), 2**31, (3, -(-vocab // 32)), generator=words).to(torch.int32).to(device)
    rows = torch.tensor([4, 0, 3], device=device)
    results = [logits.clone() for _ in BOTH]
    for ops, result in zip(BOTH, results, strict=True):
        ops.mask(result, rows, bits)
    assert torch.equal(results[1], results[0])
    assert torch.equal(results[1][[1, 2]], logits[[1, 2]])
    assert results[1][rows].isinf().any(1).all()
