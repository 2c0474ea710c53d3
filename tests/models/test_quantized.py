"""Quantised weights and the definition of int8 products, in plain torch."""

from __future__ import annotations

import pytest
import torch

from sluice.models.quantized import Int4Weight, Int8Weight, int8_linear, quantize_rows


def normal(*size: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_is_off_by_at_most_half_a_step(dtype: torch.dtype) -> None:
    """A scale of a whole tensor in place of a row, or values that are cut off in place of rounded."""
    weight = (normal(40, 33) * torch.logspace(-3, 3, 40)[:, None]).to(dtype)
    weight[7] = 0.0
    quantised = Int8Weight.quantize(weight)
    step = weight.float().abs().amax(1, keepdim=True) / 127
    assert bool(((quantised.dense(torch.float32) - weight.float()).abs() <= 0.5001 * step).all())
    assert quantised.values.abs().amax() == 127
    assert (quantised.out_features, quantised.in_features) == (40, 33)


def test_products_are_off_by_at_most_both_roundings() -> None:
    """A scale applied twice or to the wrong side; a bias that is scaled."""
    x, weight, bias = normal(9, 64), normal(20, 64, seed=2), normal(20, seed=3)
    x[2] *= 1000.0
    x[3] = 0.0
    quantised = Int8Weight.quantize(weight)
    got = int8_linear(x, quantised, bias)
    half_steps = x.abs().amax(1, keepdim=True) / 254, weight.abs().amax(1) / 254
    # |xw - x'w'| <= |x| |w - w'| + |w'| |x - x'|, summed over the inputs.
    bound = x.abs().sum(1, keepdim=True) * half_steps[1] + half_steps[0] * (weight.abs().sum(1) + 64 * half_steps[1])
    assert bool(((got - (x @ weight.T + bias)).abs() <= 1.001 * bound + 1e-4).all())
    assert torch.equal(got[3], bias)


@pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
def test_a_row_without_a_number_has_none(wrong: float) -> None:
    """A broken row turned into plausible tokens, and the rows beside it broken."""
    x = normal(3, 16)
    x[1, 5] = wrong
    y = int8_linear(x, Int8Weight.quantize(normal(4, 16)), None)
    assert not bool(y[1].isfinite().any())
    assert bool(y[[0, 2]].isfinite().all())
    with pytest.raises(ValueError, match="infinite or no numbers"):
        Int8Weight.quantize(x)


def test_tiny_rows_are_zero() -> None:
    """The inverse of their scale overflows."""
    values, scales = quantize_rows(torch.full((2, 4), 1e-37))
    assert not values.any()
    assert not scales.any()


def test_four_bits_in_groups() -> None:
    """Nibbles in the other order, or groups along the outputs."""
    values = torch.tensor([[0x10, 0x32], [0x54, 0xFE]], dtype=torch.uint8)
    weight = Int4Weight(values, torch.tensor([[1.0, 2.0], [0.5, 1.0]]), torch.tensor([[0.0, -8.0], [1.0, 0.0]]))
    assert (weight.out_features, weight.in_features, weight.group) == (2, 4, 2)
    assert weight.dense(torch.float32).tolist() == [[0.0, 1.0, -4.0, -2.0], [3.0, 3.5, 14.0, 15.0]]


def test_other_shapes_are_refused() -> None:
    """Scales of another layer, which would be read behind their end."""
    ok = torch.zeros(4, 6, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"scales must be torch.float32 of shape \[4\], got torch.float32 \[6\]"):
        Int8Weight(ok, torch.ones(6))
    with pytest.raises(ValueError, match=r"values must be torch.int8 of shape \[4, 6\], got torch.uint8"):
        Int8Weight(ok.view(torch.uint8), torch.ones(4))
    with pytest.raises(ValueError, match="3 groups do not divide 8 inputs"):
        Int4Weight(torch.zeros(2, 4, dtype=torch.uint8), torch.ones(2, 3), torch.ones(2, 3))
