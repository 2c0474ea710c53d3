"""The merge of partial results in one kernel, against the plain one."""

from __future__ import annotations

import pytest
import torch

from sluice.attention import merge
from sluice.attention.triton.merge import merge_states
from triton_device import HERE, each_device


@each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_agrees_with_the_plain_one(device: torch.device, dtype: torch.dtype) -> None:
    """Scores of hundreds, one part empty and full of NaN, the other, both."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 5, 3, 80, generator=generator).to(dtype)
    lse_a, lse_b = 300 * torch.randn(2, 5, 3, generator=generator)
    lse_b[4] = lse_a[4] + 0.5
    for lse, out, row in ((lse_a, a, 0), (lse_b, b, 1), (lse_a, a, 2), (lse_b, b, 2)):
        lse[row], out[row] = -torch.inf, torch.nan
    expected, expected_lse = merge.merge_states(a, lse_a, b, lse_b)
    there = [part.to(device) for part in (a, lse_a, b, lse_b)]
    out, lse = merge_states(*there)
    # Where it is a kernel, the plain one hands over to it.
    assert device.type == "cpu" or torch.equal(merge.merge_states(*there)[0], out)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert out.dtype == dtype
    torch.testing.assert_close(out.cpu(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.cpu(), expected_lse, rtol=1e-5, atol=1e-5)


def test_refuses_what_it_would_round() -> None:
    out, lse = torch.zeros(1, 1, 16, dtype=torch.float64, device=HERE), torch.zeros(1, 1, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"float64: use sluice\.attention\.merge"):
        merge_states(out, lse.to(HERE), out, lse.to(HERE))
