"""The rotation of keys beside pages of int8, and what it saves where some channels are far larger than the others."""

from __future__ import annotations

import pytest
import torch

from compiled import level_name
from native_cases import KERNELS, Case, attend, make_case
from sluice.attention.hadamard import block_of, rotated, rotated_back
from sluice.attention.int8 import quantized
from sluice.kernels.cpu.library import Kernels

SIZES = [1, 12, 16, 64, 80, 128, 192, 512]


@pytest.mark.parametrize("size", SIZES)
def test_products_stay(size: int) -> None:
    q, k = torch.randn(2, 30, size, dtype=torch.float64)
    torch.testing.assert_close((rotated(q) * rotated(k)).sum(-1) / block_of(size), (q * k).sum(-1))
    torch.testing.assert_close(rotated_back(rotated(k)), k)


@pytest.mark.parametrize("size", [16, 32, 64, 128, 256])
def test_what_is_spread(size: int) -> None:
    """A channel alone, channels that are alike, and any row of the matrix, into which a plain rotation gathers them."""
    rows = torch.stack([torch.tensor([(-1.0) ** (i & j).bit_count() for i in range(size)]) for j in range(size)])
    for x in (torch.eye(size), rows):
        found = rotated(x)
        crest = found.abs().amax(-1) / found.square().mean(-1).sqrt()
        assert crest.max() <= (1 if size in {16, 64, 256} else 2**0.5) + 1e-5


def with_outliers(size: int) -> torch.Tensor:
    """Return keys [200, size], three of whose channels are a hundred times as large as the others."""
    k = torch.randn(200, size, generator=torch.Generator().manual_seed(size))
    k[:, [3, size // 2 - 1, size - 1]] += torch.tensor([100.0, -80.0, 90.0])
    return k


@pytest.mark.parametrize("size", [64, 128])
def test_large_channels_cost_the_others_little(size: int) -> None:
    k = with_outliers(size)
    others = torch.ones(size, dtype=torch.bool)
    others[[3, size // 2 - 1, size - 1]] = False
    values, scales = quantized(k)
    plain = (values * scales[:, None] - k)[:, others]
    values, scales = quantized(rotated(k))
    turned = (rotated_back(values * scales[:, None]) - k)[:, others]
    assert turned.square().mean() < plain.square().mean() / 6


def outlier_case(k: torch.Tensor, kv_dtype: torch.dtype) -> Case:
    """Return 40 queries of one head to keys [200, 64] in pages of a dtype."""
    case = make_case(3, [(40, 200)], group=1, kv_heads=1, dtype=torch.float32, kv_dtype=kv_dtype)
    case.k[0][:, 0] = k
    return case


@pytest.mark.parametrize("kernels", KERNELS, ids=level_name)
def test_attention_to_keys_with_large_channels(kernels: Kernels) -> None:
    """Queries that are not rotated, or in another way than the keys, and keys whose large channels set their scales."""
    k = with_outliers(64)
    values, scales = quantized(k)
    exact, plain = (attend(outlier_case(each, torch.float32), kernels)[0] for each in (k, values * scales[:, None]))
    found, _ = attend(outlier_case(k, torch.int8), kernels)
    assert (found - exact).norm() < 0.6 * (plain - exact).norm()
