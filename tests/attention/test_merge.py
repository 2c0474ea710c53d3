"""Merging partial attention results by log-sum-exp."""

from __future__ import annotations

import pytest
import torch

from sluice.attention.merge import MERGED_ROWS, Partials, merge_states


def partial(seed: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(5, 3, 4, generator=generator, dtype=torch.float64).to(dtype)
    lse = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    return out, lse if dtype == torch.float64 else lse.float()


def test_empty_part_changes_nothing() -> None:
    """An empty part may hold anything, NaN included: only its -inf counts."""
    out, lse = partial(0)
    nothing = torch.full_like(out, torch.nan), torch.full_like(lse, -torch.inf)
    for merged in (merge_states(out, lse, *nothing), merge_states(*nothing, out, lse)):
        torch.testing.assert_close(merged[0], out)
        torch.testing.assert_close(merged[1], lse)


def test_two_empty_parts_are_empty() -> None:
    out, lse = torch.full((2, 1, 4), torch.nan), torch.full((2, 1), -torch.inf)
    merged, merged_lse = merge_states(out, lse, out, lse)
    assert torch.equal(merged, torch.zeros(2, 1, 4))
    assert torch.isneginf(merged_lse).all()


def test_order_of_parts_does_not_matter() -> None:
    a, b, c = (partial(seed) for seed in range(3))
    left = merge_states(*merge_states(*a, *b), *c)
    right = merge_states(*merge_states(*c, *b), *a)
    torch.testing.assert_close(left, right, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shift", [-5000.0, 5000.0])
def test_huge_scores_do_not_overflow(shift: float) -> None:
    """exp(lse) of a score of a few hundred overflows float32: only differences may be exponentiated."""
    (out_a, lse_a), (out_b, lse_b) = partial(0), partial(1)
    plain, plain_lse = merge_states(out_a, lse_a, out_b, lse_b)
    moved, moved_lse = merge_states(out_a, lse_a + shift, out_b, lse_b + shift)
    torch.testing.assert_close(moved, plain, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moved_lse, plain_lse + shift)


def test_low_precision_parts_are_merged_in_float32() -> None:
    (out_a, lse_a), (out_b, lse_b) = partial(0, torch.bfloat16), partial(1, torch.bfloat16)
    out, lse = merge_states(out_a, lse_a, out_b, lse_b)
    exact, _ = merge_states(out_a.double(), lse_a.double(), out_b.double(), lse_b.double())
    assert out.dtype == torch.bfloat16
    assert lse.dtype == torch.float32
    torch.testing.assert_close(out, exact.to(torch.bfloat16), rtol=0, atol=2**-8)


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_many_parts_are_merged_as_two_by_two(count: int) -> None:
    """A part that is left out, counted twice or given another weight; some are merged early, where rows are many."""
    parts = [partial(seed) for seed in range(count)]
    parts[count // 2] = torch.full((5, 3, 4), torch.nan).double(), torch.full((5, 3), -torch.inf).double()
    partials, expected = Partials(), parts[0]
    for part in parts:
        partials.add(*part)
    for part in parts[1:]:
        expected = merge_states(*expected, *part)
    assert len(partials) <= -(-MERGED_ROWS // 5)
    if count == 1:
        assert torch.isneginf(partials.merged()[1]).all()
        return
    torch.testing.assert_close(partials.merged(), expected, rtol=1e-12, atol=1e-12)


def test_many_huge_scores_do_not_overflow() -> None:
    parts = [partial(seed) for seed in range(4)]
    plain, moved = Partials(), Partials()
    for out, lse in parts:
        plain.add(out, lse)
        moved.add(out, lse + 5000)
    torch.testing.assert_close(moved.merged()[0], plain.merged()[0], rtol=1e-9, atol=1e-9)


def test_many_parts_without_keys_are_empty() -> None:
    partials = Partials()
    for _ in range(3):
        partials.add(torch.full((2, 1, 4), torch.nan), torch.full((2, 1), -torch.inf))
    out, lse = partials.merged()
    assert torch.equal(out, torch.zeros(2, 1, 4))
    assert torch.isneginf(lse).all()
