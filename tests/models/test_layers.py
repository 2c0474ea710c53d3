"""The blocks compute in the dtypes they must."""

from __future__ import annotations

import pytest
import torch

from sluice.models.layers import RMSNorm, Rotary
from sluice.models.ops import ACTIVATIONS, rotate
from sluice.models.rope import Rope


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rms_norm_squares_in_float32(dtype: torch.dtype) -> None:
    """The square of 300 overflows float16, which would make the whole row zero."""
    x = torch.full((2, 16), 300.0, dtype=dtype)
    norm = RMSNorm(16, 1e-6, dtype)
    norm.weight.data.fill_(2.0)
    out = norm(x)
    assert out.dtype == dtype
    assert torch.equal(out, torch.full_like(x, 2.0))


def test_rotary_angles_are_not_rounded_to_the_model_dtype() -> None:
    """bfloat16 cannot represent odd positions above 256: positions 4,001 and 4,002 would be rotated alike."""
    rotary = Rotary(Rope(10_000.0), 8, torch.bfloat16)
    cos, sin = rotary(torch.tensor([4001, 4002]))
    exact = torch.tensor([4001.0, 4002.0], dtype=torch.float64)
    assert cos.dtype == sin.dtype == torch.bfloat16
    torch.testing.assert_close(cos[:, 0, 0].double(), exact.cos(), rtol=0, atol=4e-3)
    torch.testing.assert_close(sin[:, 0, 0].double(), exact.sin(), rtol=0, atol=4e-3)


@pytest.mark.parametrize("position", [1 << 20, (1 << 22) + 1, (1 << 24) + 1])
def test_rotary_angles_stay_exact_at_millions_of_positions(position: int) -> None:
    """Above 2^20 the error of a float32 product exceeds the difference of neighbours; 2^24 + 1 is no float32."""
    rotary = Rotary(Rope(1e30), 128, torch.float32)
    cos, sin = rotary(torch.tensor([position, position + 1]))
    exact = torch.tensor([position, position + 1])[:, None].double() * rotary.inv_freq.double()
    torch.testing.assert_close(cos[:, 0, :64].double(), exact.cos(), rtol=0, atol=1e-6)
    torch.testing.assert_close(sin[:, 0, 64:].double(), exact.sin(), rtol=0, atol=1e-6)


def test_rotation_depends_on_distance_alone() -> None:
    """After rotation, q.k depends only on the distance of the positions."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 8, generator=generator, dtype=torch.float64)
    rotary = Rotary(Rope(100.0), 8, torch.float64)

    def product(q_position: int, k_position: int) -> torch.Tensor:
        turned_q = rotate(q, rotary(torch.tensor([q_position])))
        return (turned_q * rotate(k, rotary(torch.tensor([k_position])))).sum()

    torch.testing.assert_close(product(7, 3), product(1007, 1003), rtol=1e-10, atol=1e-10)
    assert abs(float(product(7, 3) - product(7, 4))) > 1e-3


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_transformers_own(name: str) -> None:
    from transformers.activations import ACT2FN

    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS[name](x), ACT2FN[name](x), rtol=1e-12, atol=1e-12)
