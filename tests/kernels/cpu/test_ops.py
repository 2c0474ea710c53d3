"""The operations of the compiled kernels, at every level, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from compiled import all_kernels, level_name
from sluice.attention.base import LayerKV
from sluice.attention.packed import PackedKV
from sluice.attention.spec import KVShape
from sluice.kernels.cpu.library import Kernels
from sluice.models.native_ops import NativeOps
from sluice.models.ops import Angles, HeadNorms, Norm, Ops

KERNELS = all_kernels()
EXACT = Ops()
DTYPES = (torch.bfloat16, torch.float32)
each_level = pytest.mark.parametrize("kernels", KERNELS, ids=level_name)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
ROUNDING = {torch.bfloat16: 2**-8, torch.float32: 2e-6}
"""Relative error of one rounding to the dtype."""
ROWS = (1, 3, 200)
"""One, a few, and so many that threads share them."""
SIZES = (16, 40, 1024, 1000)


@pytest.fixture
def draw() -> Callable[..., torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(dtype)

    return normal


def norm_of(weight: torch.Tensor) -> Norm:
    return Norm(weight, 1e-6)


def wide(norm: Norm) -> Norm:
    return Norm(norm.weight.double(), norm.eps)


def assert_rounded(found: torch.Tensor, exact: torch.Tensor, atol: float = 1e-6) -> None:
    """Check that the error is at most one rounding, as after a computation in float32."""
    torch.testing.assert_close(found.double(), exact, rtol=ROUNDING[found.dtype], atol=atol)


@each_level
@each_dtype
def test_rms_norm(kernels: Kernels, dtype: torch.dtype, draw: Callable[..., torch.Tensor]) -> None:
    """Sizes that are no multiple of the lanes, and rows that are part of a wider tensor."""
    for rows in ROWS:
        for size in SIZES:
            x = draw(rows, size + 24, dtype=dtype)[:, 8 : 8 + size]
            norm, before = norm_of(draw(size, dtype=torch.float32)), x.clone()
            found = NativeOps(kernels).norm(x, norm)
            assert_rounded(found, EXACT.norm(x.double(), wide(norm)))
            assert torch.equal(x, before), "the residual is still needed"


@each_level
@each_dtype
def test_add_rms_norm(kernels: Kernels, dtype: torch.dtype, draw: Callable[..., torch.Tensor]) -> None:
    """The norm is that of the rounded sum, which is kept: the next layer adds to it."""
    for rows in ROWS:
        for size in SIZES:
            x, delta = draw(2, rows, size, dtype=dtype)
            norm, expected = norm_of(draw(size, dtype=torch.float32)), x + delta
            total, found = NativeOps(kernels).add_norm(x, delta, norm)
            assert torch.equal(total, expected)
            assert_rounded(found, EXACT.norm(expected.double(), wide(norm)))


@each_level
@each_dtype
def test_layer_norms(kernels: Kernels, dtype: torch.dtype, draw: Callable[..., torch.Tensor]) -> None:
    """A variance from sums of squares is lost beside a mean of 100; lanes after the end do not belong to the row."""
    for rows in ROWS:
        for size in SIZES:
            x, delta = draw(2, rows, size, dtype=dtype)
            x += 100
            weight, bias = draw(2, size, dtype=torch.float32)
            norm = Norm(weight, 1e-5, bias)
            exact = Norm(weight.double(), 1e-5, bias.double())
            found = NativeOps(kernels).norm(x, norm)
            assert_rounded(found, EXACT.norm(x.double(), exact), atol=2e-4)
            expected = x + delta
            total, found = NativeOps(kernels).add_norm(x, delta, norm)
            assert torch.equal(total, expected)
            assert_rounded(found, EXACT.norm(expected.double(), exact), atol=2e-4)


@each_level
@each_dtype
def test_gate_and_mul(kernels: Kernels, dtype: torch.dtype, draw: Callable[..., torch.Tensor]) -> None:
    """Gate and up are halves of one product; a gate far below zero must give zero, not NaN."""
    for rows in ROWS:
        for size in SIZES:
            gate, up = (draw(rows, 2 * size, dtype=dtype) * 4).chunk(2, dim=1)
            gate[0, :3] = torch.tensor([-300.0, 300.0, 0.0])
            found = NativeOps(kernels).gate_and_mul(gate, up, "silu")
            assert_rounded(found, EXACT.gate_and_mul(gate.double(), up.double(), "silu"))


@each_level
@each_dtype
@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize("head_dim", [64, 80, 256])
def test_rotate_and_store(
    kernels: Kernels, dtype: torch.dtype, with_norms: bool, head_dim: int, draw: Callable[..., torch.Tensor]
) -> None:
    """q, k and v are parts of one product; in heads of 80, the elements of a pair are not whole lanes apart."""
    heads, kv_heads, page_size = 4, 2, 16
    for tokens in ROWS:
        fused = draw(tokens, heads + 2 * kv_heads, head_dim, dtype=dtype)
        q, k, v = fused.split((heads, kv_heads, kv_heads), dim=1)
        turn = draw(tokens, 1, head_dim // 2, dtype=torch.float32).repeat(1, 1, 2)
        angles = Angles(turn.cos().to(dtype), turn.sin().to(dtype))
        norms = HeadNorms(*(norm_of(draw(head_dim, dtype=torch.float32)) for _ in range(2)))
        pages = -(-tokens // page_size) + 1
        slots = torch.randperm(pages * page_size, generator=torch.Generator().manual_seed(1))[:tokens]
        exact_kv = LayerKV(*(torch.zeros(pages, page_size, kv_heads, head_dim, dtype=torch.float64) for _ in range(2)))
        exact_q = EXACT.rotate_and_store(
            *(part.double() for part in (q, k, v)),
            Angles(angles.cos.double(), angles.sin.double()),
            HeadNorms(wide(norms.q), wide(norms.k)) if with_norms else None,
            exact_kv,
            slots,
        )
        kv = PackedKV.empty(kernels, KVShape(pages, page_size, kv_heads, head_dim, dtype, torch.device("cpu")))
        kv.k.zero_()
        kv.v.zero_()
        found = NativeOps(kernels).rotate_and_store(q, k, v, angles, norms if with_norms else None, kv, slots)
        # A difference of two products loses the digits that they have in common.
        assert_rounded(found, exact_q, atol=4e-6)
        for own, exact in zip(kv.gather(torch.arange(pages)), exact_kv.gather(torch.arange(pages)), strict=True):
            assert_rounded(own, exact, atol=4e-6)


@each_level
def test_a_row_does_not_depend_on_other_rows(kernels: Kernels, draw: Callable[..., torch.Tensor]) -> None:
    """To the last bit, in a batch that threads share."""
    ops, x, norm = NativeOps(kernels), draw(200, 1000, dtype=torch.bfloat16), norm_of(draw(1000, dtype=torch.float32))
    together, activated = ops.norm(x, norm), ops.gate_and_mul(x, x, "silu")
    for row in (0, 57, 199):
        assert torch.equal(ops.norm(x[row : row + 1], norm)[0], together[row])
        assert torch.equal(ops.gate_and_mul(x[row : row + 1], x[row : row + 1], "silu")[0], activated[row])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_torch_computes_other_dtypes(dtype: torch.dtype, draw: Callable[..., torch.Tensor]) -> None:
    ops, x = NativeOps(KERNELS[0]), draw(3, 24, dtype=dtype)
    norm = norm_of(draw(24, dtype=torch.float32 if dtype == torch.float16 else dtype))
    assert torch.equal(ops.norm(x, norm), EXACT.norm(x, norm))
    assert torch.equal(ops.gate_and_mul(x, x, "silu"), EXACT.gate_and_mul(x, x, "silu"))
    assert torch.equal(ops.add_norm(x.clone(), x, norm)[1], EXACT.add_norm(x, x, norm)[1])


def test_pages_in_the_layout_of_torch(draw: Callable[..., torch.Tensor]) -> None:
    """If another backend computes attention, keys must be stored in its layout."""
    q, k, v = draw(3, 5, 2, 64, dtype=torch.bfloat16)
    angles = Angles(*(draw(5, 1, 64, dtype=torch.bfloat16) for _ in range(2)))
    found, expected = (LayerKV(*torch.zeros(2, 1, 16, 2, 64, dtype=torch.bfloat16)) for _ in range(2))
    slots = torch.arange(3, 8)
    turned = NativeOps(KERNELS[0]).rotate_and_store(q, k, v, angles, None, found, slots)
    assert torch.equal(turned, EXACT.rotate_and_store(q, k, v, angles, None, expected, slots))
    assert torch.equal(found.k, expected.k)
