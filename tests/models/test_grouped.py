"""Products with weights in groups, as they are defined in torch."""

from __future__ import annotations

import pytest
import torch

from block_makers import random_blocks
from sluice.models.block_types import BLOCK_TYPES, group_weight
from sluice.models.group_weight import GroupWeight
from sluice.models.grouped import RUN, grouped_linear, quantize_runs
from sluice.models.quantized import Int4Weight, int4_linear


def normal(*size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("has_minimums", [True, False])
def test_one_run_is_a_product_with_four_bits(has_minimums: bool) -> None:
    """Both definitions are one, so that a kernel may serve both."""
    made = Int4Weight.quantize(normal(40, 96, seed=1))
    weight = Int4Weight(made.values, made.scales, normal(40, 3, seed=2) if has_minimums else None)
    numbers = torch.stack((weight.values & 15, weight.values >> 4), -1).flatten(1)
    same = GroupWeight(numbers, 0 if has_minimums else 8, weight.scales, weight.minimums)
    x, bias = normal(5, 96, seed=3).bfloat16(), normal(40, seed=4).bfloat16()
    assert torch.equal(grouped_linear(x, same, bias, run=96), int4_linear(x, weight, bias))
    assert torch.equal(same.dense(torch.float32), weight.dense(torch.float32))


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_an_outlier_costs_only_its_run(kind: str) -> None:
    """With one scale a row, one large activation took most bits of all others."""
    weight = group_weight(kind, random_blocks(kind, 32, 1024, tame=True))
    x = normal(4, 1024, seed=1)
    x[:, 7] = 60
    exact = x.double() @ weight.dense(torch.float64).T

    def error(run: int) -> float:
        return float((grouped_linear(x, weight, None, run) - exact).norm() / exact.norm())

    assert error(RUN) < 0.1 * error(1024)


def test_outliers_are_multiplied_as_they_are() -> None:
    """They set the scale of their run: what rounding took from their neighbours was nearly all that eight bits cost."""
    x = normal(6, 1024, seed=1).clamp(-2, 2)
    x[:, 64:66] = torch.tensor([30.0, -40.0])
    x[:3, 500] = 90
    found = quantize_runs(x)
    assert [row.nonzero()[:, 0].tolist() for row in found.is_outlier] == [[64, 65, 500]] * 3 + [[64, 65]] * 3
    assert not found.values[found.is_outlier].any()
    kept = (found.values.view(6, -1, RUN) * found.scales[..., None]).view_as(x)
    assert (kept - x)[~found.is_outlier].abs().max() < 0.51 * 2 / 127
    alone = [quantize_runs(row[None]).values for row in x]
    assert torch.equal(torch.cat(alone), found.values)


def test_an_outlier_alone_is_exact() -> None:
    """A weight that is multiplied as an integer, without its scale, or the one of a neighbour."""
    weight = group_weight("Q4_K", random_blocks("Q4_K", 32, 512, tame=True))
    x = torch.zeros(2, 512)
    x[0, 77], x[1, 500] = 3.0, -0.5
    expected = torch.stack((3 * weight.dense(torch.float32)[:, 77], -weight.dense(torch.float32)[:, 500] / 2))
    assert torch.equal(grouped_linear(x, weight, None), expected)


def test_a_row_without_a_number_has_none() -> None:
    """A broken row turned into plausible tokens."""
    weight = group_weight("Q8_0", random_blocks("Q8_0", 32, 512, tame=True))
    x = normal(3, 512, seed=2)
    x[1, 400], x[2, 3] = float("nan"), float("inf")
    finite = grouped_linear(x, weight, None).isfinite()
    assert finite.all(1).tolist() == [True, False, False]
    assert not finite[1:].any()
