"""Writes keys and values into pages."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _store(
    slots,
    k,
    v,
    k_pages,
    v_pages,
    k_stride,
    v_stride,
    k_page_stride,
    v_page_stride,
    PAGE_SIZE: tl.constexpr,
    TOKEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a token and a block of its TOKEN elements."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot >= 0:
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        held = at < TOKEN
        page = slot // PAGE_SIZE
        within = slot % PAGE_SIZE * TOKEN + at
        tl.store(k_pages + page * k_page_stride + within, tl.load(k + token * k_stride + at, mask=held), mask=held)
        tl.store(v_pages + page * v_page_stride + within, tl.load(v + token * v_stride + at, mask=held), mask=held)


def store_kv(
    kv_slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor
) -> None:
    """Write the keys and values of N tokens.

    Args:
        kv_slots: [N] int64, `page * page_size + offset`; below 0: not written.
        k, v: [N, kv_heads, head_dim] in the dtype of the pages, gaps between tokens at most.
        k_pages, v_pages: [pages, page_size, kv_heads, head_dim], each page dense.
    """
    tokens = kv_slots.shape[0]
    if not tokens:
        return
    k, v = (_bits(_dense_tokens(x)) for x in (k, v))
    k_pages, v_pages = _bits(k_pages), _bits(v_pages)
    size = k.shape[1] * k.shape[2]
    block = min(1024, triton.next_power_of_2(size))
    _store[(tokens, triton.cdiv(size, block))](
        kv_slots,
        k,
        v,
        k_pages,
        v_pages,
        k.stride(0),
        v.stride(0),
        k_pages.stride(0),
        v_pages.stride(0),
        PAGE_SIZE=k_pages.shape[1],
        TOKEN=size,
        BLOCK=block,
    )


def _bits(x: torch.Tensor) -> torch.Tensor:
    """Return eight-bit floats as bytes, which every device can copy."""
    return x.view(torch.uint8) if x.element_size() == 1 else x


def _dense_tokens(x: torch.Tensor) -> torch.Tensor:
    is_dense = x.stride(2) == 1 and x.stride(1) == x.shape[2]
    return x if is_dense else x.contiguous()
