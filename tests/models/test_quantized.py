"""Quantised weights and the definition of int8 products, in plain torch."""

from __future__ import annotations

import pytest
import torch

from sluice.models.quantized import Int4Weight, Int8Weight, int4_linear, int8_linear, quantize_rows


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


@pytest.mark.parametrize("group", [32, 64, 8])
def test_four_bits_are_off_by_about_half_a_step(group: int) -> None:
    """Groups along the outputs, a sign that is lost, or a scale no better than that of the largest magnitude."""
    weight = normal(40, 128) * torch.logspace(-3, 3, 40)[:, None]
    weight[7], weight[8, :group], weight[9, 5] = 0.0, 1e-42, -3e3
    quantised = Int4Weight.quantize(weight, group)
    off = (quantised.dense(torch.float32) - weight).unflatten(1, (-1, group))
    groups = weight.unflatten(1, (-1, group))
    extreme = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    step = -extreme / 8
    plain = step * (groups / torch.where(step == 0, 1.0, step)).round().clamp(-8, 7) - groups
    assert bool((off.abs() <= 1.2 * step.abs() + 1e-30).all())
    assert off.square().sum() < plain.square().sum()
    assert quantised.group == group
    assert torch.equal(quantised.scales, quantised.scales.bfloat16().float())
    assert not quantised.dense(torch.float32)[7].any()


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_products_of_four_bits_are_those_of_the_weight(is_symmetric: bool) -> None:
    """A scale or minimum of another group; a zero point that is left out."""
    x, bias = normal(9, 64), normal(20, seed=3)
    made = Int4Weight.quantize(normal(20, 64, seed=2), 16)
    weight = made if is_symmetric else Int4Weight(made.values, made.scales, normal(20, 4, seed=4))
    values, scales = quantize_rows(x)
    wanted = (values.double() * scales[:, None]) @ weight.dense(torch.float64).T + bias
    assert torch.allclose(int4_linear(x, weight, bias).double(), wanted, rtol=1e-5, atol=1e-4)


def test_weights_of_four_bits_are_joined() -> None:
    """A symmetric weight that loses its zero point beside one that has minimums."""
    first, second = (Int4Weight.quantize(normal(4, 64, seed=seed)) for seed in (1, 2))
    other = Int4Weight(second.values, second.scales, normal(4, 2, seed=3))
    for parts in ((first, second), (first, other)):
        joined = Int4Weight.joined(parts)
        assert torch.equal(joined.dense(torch.float32), torch.cat([part.dense(torch.float32) for part in parts]))
    assert first.equals(Int4Weight.quantize(normal(4, 64)))
    assert not first.equals(second)
    assert not second.equals(other)


def test_what_four_bits_cannot_hold() -> None:
    """Inputs that are left out behind the last group; noise in place of a broken weight."""
    with pytest.raises(ValueError, match="groups of 32 must divide its 40 inputs, which must be even"):
        Int4Weight.quantize(normal(4, 40))
    with pytest.raises(ValueError, match="groups of 5 must divide its 5 inputs, which must be even"):
        Int4Weight.quantize(normal(4, 5), 5)
    for wrong in (float("inf"), float("nan")):
        weight = normal(4, 64)
        weight[2, 40] = wrong
        with pytest.raises(ValueError, match="infinite or no numbers"):
            Int4Weight.quantize(weight)


def test_other_shapes_are_refused() -> None:
    """Scales of another layer, which would be read behind their end."""
    ok = torch.zeros(4, 6, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"scales must be torch.float32 of shape \[4\], got torch.float32 \[6\]"):
        Int8Weight(ok, torch.ones(6))
    with pytest.raises(ValueError, match=r"values must be torch.int8 of shape \[4, 6\], got torch.uint8"):
        Int8Weight(ok.view(torch.uint8), torch.ones(4))
    with pytest.raises(ValueError, match="3 groups do not divide 8 inputs"):
        Int4Weight(torch.zeros(2, 4, dtype=torch.uint8), torch.ones(2, 3), torch.ones(2, 3))
