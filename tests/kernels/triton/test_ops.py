"""The operations by Triton against torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from slow import products, slow
from sluice.attention.base import LayerKV
from sluice.attention.triton.kv import TritonKV
from sluice.models.ops import ACTIVATIONS, Angles, HeadNorms, Norm, Ops
from sluice.models.triton_ops import TritonOps
from triton_device import each_device, quiet

pytestmark = quiet
TORCH = Ops()
TRITON = TritonOps()
DTYPES = (torch.bfloat16, torch.float32, torch.float16)
each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, slow(torch.float16)], ids=str)
ROUNDING = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2e-6}
"""Relative size of one unit in the last place: sums in another order may be rounded the other way."""
SHAPES = ((1, 16), (3, 40), (5, 1000))
Draw = Callable[..., torch.Tensor]


@pytest.fixture
def draw() -> Draw:
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(device, dtype)

    return normal


def assert_near(found: torch.Tensor, expected: torch.Tensor, atol: float = 1e-6, share: float = 0.05) -> None:
    """Check that values differ by at most one unit, and only a small share of them."""
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=ROUNDING[found.dtype], atol=atol)
    if found.dtype != torch.float32:
        assert (found != expected).sum() <= max(1, share * found.numel())


@each_device
@each_dtype
def test_rms_norms(dtype: torch.dtype, device: torch.device, draw: Draw) -> None:
    """Sizes that are no power of two; rows that are part of a wider tensor; the norm of the rounded sum."""
    for rows, size in SHAPES:
        x = draw(rows, size + 24, dtype=dtype, device=device)[:, 8 : 8 + size]
        delta, norm = (
            draw(rows, size, dtype=dtype, device=device),
            Norm(draw(size, dtype=torch.float32, device=device), 1e-6),
        )
        before = x.clone()
        assert_near(TRITON.norm(x, norm), TORCH.norm(x, norm))
        total, normed = TRITON.add_norm(x, delta, norm)
        assert torch.equal(total, before + delta)
        assert_near(normed, TORCH.norm(before + delta, norm))


@each_device
@each_dtype
def test_layer_norms(dtype: torch.dtype, device: torch.device, draw: Draw) -> None:
    """A variance from sums of squares is lost beside a mean of 100; columns after the end do not belong to the row."""
    for rows, size in SHAPES:
        x, delta = draw(rows, size, dtype=dtype, device=device) + 100, draw(rows, size, dtype=dtype, device=device)
        weight, bias = draw(2, size, dtype=torch.float32, device=device)
        norm, before = Norm(weight, 1e-5, bias), x.clone()
        assert_near(TRITON.norm(x, norm), TORCH.norm(x, norm), atol=3e-4)
        total, normed = TRITON.add_norm(x, delta, norm)
        assert torch.equal(total, before + delta)
        assert_near(normed, TORCH.norm(before + delta, norm), atol=3e-4)


@each_device
@products(activation=[*ACTIVATIONS], dtype=DTYPES)
def test_gates(activation: str, dtype: torch.dtype, device: torch.device, draw: Draw) -> None:
    """Gate and up are halves of one product; only a NaN gives NaN, not a gate far from zero.

    Far below zero a GELU is a difference of nearly equal numbers, in torch as well.
    """
    for rows, size in ((1, 16), (3, 1100)):
        gate, up = (draw(rows, 2 * size, dtype=dtype, device=device) * 3).chunk(2, dim=1)
        gate[0, :4] = torch.tensor([-300.0, 300.0, 0.0, torch.nan])
        found, expected = (ops.gate_and_mul(gate, up, activation) for ops in (TRITON, TORCH))
        assert found.isnan().equal(expected.isnan())
        assert_near(found.nan_to_num(), expected.nan_to_num(), atol=2e-5, share=0.1)


@each_device
@products(heads=[(4, 2, 64), (3, 3, 80), (70, 1, 128)], with_norms=[False, True], dtype=DTYPES)
def test_rotate_and_store(
    heads: tuple[int, int, int], with_norms: bool, dtype: torch.dtype, device: torch.device, draw: Draw
) -> None:
    """q, k and v are parts of one product; heads of 80 are no power of two; 70 heads need two programs."""
    of_queries, of_keys, head_dim = heads
    for tokens in (1, 5):
        fused = draw(tokens, of_queries + 2 * of_keys, head_dim, dtype=dtype, device=device)
        turn = draw(tokens, 1, head_dim // 2, dtype=torch.float32, device=device).repeat(1, 1, 2)
        angles = Angles(turn.cos().to(dtype), turn.sin().to(dtype))
        weights = draw(2, head_dim, dtype=torch.float32, device=device)
        norms = HeadNorms(*(Norm(weight, 1e-6) for weight in weights)) if with_norms else None
        slots = torch.tensor([9, 0, 5, 11, 2], device=device)[:tokens]
        outcomes = []
        for ops in (TORCH, TRITON):
            pages = torch.full((2, 3, 4, of_keys, head_dim), 7.0, dtype=dtype, device=device)
            q, k, v = fused.clone().split((of_queries, of_keys, of_keys), dim=1)
            outcomes.append((ops.rotate_and_store(q, k, v, angles, norms, LayerKV(*pages), slots), pages))
        (expected_q, expected_pages), (q, pages) = outcomes
        # A difference of two products loses the digits that they have in common.
        assert_near(q, expected_q, atol=16 * ROUNDING[dtype] if with_norms else 4e-6)
        assert_near(pages[0], expected_pages[0], atol=16 * ROUNDING[dtype] if with_norms else 4e-6)
        assert torch.equal(pages[1], expected_pages[1])


@each_device
def test_a_row_does_not_depend_on_other_rows(device: torch.device, draw: Draw) -> None:
    """To the last bit."""
    x, norm = draw(9, 300, dtype=torch.bfloat16, device=device), Norm(torch.ones(300, device=device), 1e-6)
    together, gated = TRITON.norm(x, norm), TRITON.gate_and_mul(x, x, "silu")
    for row in (0, 4, 8):
        alone = x[row : row + 1]
        assert torch.equal(TRITON.norm(alone, norm)[0], together[row])
        assert torch.equal(TRITON.gate_and_mul(alone, alone, "silu")[0], gated[row])


@each_device
def test_no_rows(device: torch.device, draw: Draw) -> None:
    """A step without logits has no rows in its last norm, and an empty grid is an error."""
    x = torch.empty(0, 24, device=device)
    norm = Norm(torch.ones(24, device=device), 1e-6)
    assert [part.shape for part in TRITON.add_norm(x, x, norm)] == [x.shape] * 2
    assert TRITON.gate_and_mul(x, x, "silu").shape == x.shape


@each_device
def test_torch_computes_float64(device: torch.device, draw: Draw) -> None:
    x, weight = draw(3, 24, dtype=torch.float64, device=device), draw(24, dtype=torch.float64, device=device)
    norm, layer_norm = Norm(weight, 1e-6), Norm(weight, 1e-6, weight)
    assert torch.equal(TRITON.norm(x, norm), TORCH.norm(x, norm))
    assert torch.equal(TRITON.add_norm(x, x, norm)[1], TORCH.add_norm(x, x, norm)[1])
    assert torch.equal(TRITON.norm(x, layer_norm), TORCH.norm(x, layer_norm))
    assert torch.equal(TRITON.gate_and_mul(x, x, "gelu"), TORCH.gate_and_mul(x, x, "gelu"))


@each_device
@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float32], ids=str)
def test_pages_of_another_type(stored: torch.dtype, device: torch.device, draw: Draw) -> None:
    """Pages of 8-bit types have their own scale, and pages of other types their own way of storing."""
    q, k, v = draw(3, 5, 2, 64, dtype=torch.bfloat16, device=device)
    angles = Angles(*draw(2, 5, 1, 64, dtype=torch.bfloat16, device=device))
    slots = torch.arange(3, 8, device=device)
    outcomes = []
    for ops in (TORCH, TRITON):
        scales = {"k_scale": 0.5} if stored.itemsize == 1 else {}
        kv = TritonKV(*(torch.zeros(1, 16, 2, 64, device=device).to(stored) for _ in range(2)), **scales)
        turned = ops.rotate_and_store(q.clone(), k.clone(), v, angles, None, kv, slots)
        outcomes.append((turned, kv.k.float(), kv.v.float()))
    for expected, found in zip(*outcomes, strict=True):
        assert torch.equal(found, expected)
        assert found.any()


@each_device
def test_rows_of_padding_are_not_written(device: torch.device, draw: Draw) -> None:
    """A CUDA graph runs with more rows than a step has; the slots of the others are negative."""
    q, k, v = draw(3, 3, 2, 64, dtype=torch.bfloat16, device=device)
    angles = Angles(*draw(2, 3, 1, 64, dtype=torch.bfloat16, device=device))
    pages = torch.zeros(2, 1, 4, 2, 64, dtype=torch.bfloat16, device=device)
    TRITON.rotate_and_store(q, k, v, angles, None, TritonKV(*pages), torch.tensor([-1, 2, -1], device=device))
    assert pages.flatten(3).any(-1).tolist() == [[[False, False, True, False]]] * 2
