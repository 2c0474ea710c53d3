"""Keys and values into pages, and back."""

from __future__ import annotations

import pytest
import torch

from sluice.attention.base import LayerKV
from sluice.attention.spec import KVShape
from sluice.attention.triton.kv import TritonKV
from triton_device import each_device

PAGES, PAGE_SIZE, HEADS, HEAD_DIM = 5, 4, 3, 80


def empty(dtype: torch.dtype, device: torch.device) -> TritonKV:
    kv = TritonKV.empty(KVShape(PAGES, PAGE_SIZE, HEADS, HEAD_DIM, dtype, device))
    kv.k.zero_(), kv.v.zero_()
    return kv


@each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_pages_hold_what_was_stored(device: torch.device, dtype: torch.dtype) -> None:
    """In any order, from a fused product with gaps between tokens; rows of padding are nowhere."""
    kv = empty(dtype, device)
    plain = LayerKV(torch.zeros_like(kv.k), torch.zeros_like(kv.v))
    slots = torch.randperm(PAGES * PAGE_SIZE)[:9].to(device)
    fused = torch.randn(9, 2 * HEADS, HEAD_DIM).to(device, dtype)
    k, v = fused.split(HEADS, 1)
    plain.store(slots, k, v)
    padding = torch.tensor([-1, -1], device=device)
    more = torch.full_like(fused[:2], torch.nan)
    with_padding = torch.cat((fused, more))
    kv.store(torch.cat((slots, padding)), *with_padding.split(HEADS, 1))
    pages = torch.tensor([[4, 0], [1, 3]], device=device)
    assert torch.equal(kv.k, plain.k)
    assert torch.equal(kv.v, plain.v)
    for found, expected in zip(kv.gather(pages), plain.gather(pages), strict=True):
        assert torch.equal(found, expected)


@each_device
@pytest.mark.parametrize(("dtype", "most"), [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)], ids=str)
def test_eight_bits_with_a_scale(device: torch.device, dtype: torch.dtype, most: float) -> None:
    """Too large is the largest there is: e4m3 would make NaN of it, which no layer recovers from."""
    plain = empty(dtype, device)
    kv = TritonKV(plain.k, plain.v, k_scale=0.5, v_scale=2.0)
    k, v = torch.randn(2, 1, HEADS, HEAD_DIM).to(device)
    k[0, 0, 0], v[0, 0, 0] = 1e6, -1e6
    kv.store(torch.tensor([6], device=device), k, v)
    found_k, found_v = (x[1, 2] for x in kv.gather(torch.arange(PAGES, device=device)))
    assert (found_k[0, 0].item(), found_v[0, 0].item()) == (most * 0.5, -most * 2.0)
    for found, stored in ((found_k, k[0]), (found_v, v[0])):
        torch.testing.assert_close(found[1:], stored[1:], rtol=0.13, atol=0.01)
