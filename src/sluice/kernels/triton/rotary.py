"""Applies head norms, rotates q and k, and writes keys and values into their pages, in one launch.

Rotary positions: RoFormer (Su et al., 2021); pair i of a head is elements i and i + head_dim / 2. Intermediate results
are rounded where `Ops` rounds them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from sluice.kernels.triton.rounding import narrowed, to_type

TILE = 4096
"""Elements of the heads that one program rotates."""


class HeadNorm(NamedTuple):
    """A root mean square norm over each head."""

    weight: torch.Tensor
    """[head_dim] float32"""
    eps: float


@triton.jit
def _rotate(
    x_ptr,
    norm_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    head,
    heads,
    x_stride,
    out_stride,
    eps,
    HAS_NORM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
):
    """Rotate the heads of one token from `x_ptr` to `out_ptr`, which may be equal."""
    pair = tl.arange(0, HALF)
    low, high = pair[None, :], pair[None, :] + HEAD_DIM // 2
    in_pair = pair < HEAD_DIM // 2
    inside = (head < heads)[:, None] & in_pair[None, :]
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    row = x_ptr + head[:, None] * x_stride
    a = tl.load(row + low, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(row + high, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        factor = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / HEAD_DIM + eps)[:, None]
        weight_a = tl.load(norm_ptr + pair, mask=in_pair, other=0.0).to(tl.float32)[None, :]
        weight_b = tl.load(norm_ptr + pair + HEAD_DIM // 2, mask=in_pair, other=0.0).to(tl.float32)[None, :]
        a = narrowed(a * factor * weight_a, dtype)
        b = narrowed(b * factor * weight_b, dtype)
    cos_a = tl.load(cos_ptr + pair, mask=in_pair, other=0.0).to(tl.float32)[None, :]
    sin_a = tl.load(sin_ptr + pair, mask=in_pair, other=0.0).to(tl.float32)[None, :]
    cos_b = tl.load(cos_ptr + pair + HEAD_DIM // 2, mask=in_pair, other=0.0).to(tl.float32)[None, :]
    sin_b = tl.load(sin_ptr + pair + HEAD_DIM // 2, mask=in_pair, other=0.0).to(tl.float32)[None, :]
    rotated_a = narrowed(a * cos_a, dtype) - narrowed(b * sin_a, dtype)
    rotated_b = narrowed(b * cos_b, dtype) + narrowed(a * sin_b, dtype)
    out = out_ptr + head[:, None] * out_stride
    tl.store(out + low, to_type(rotated_a, dtype), mask=inside)
    tl.store(out + high, to_type(rotated_b, dtype), mask=inside)


@triton.jit
def _copy_heads(x_ptr, out_ptr, head, heads, x_stride, out_stride, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr):
    element = tl.arange(0, WIDTH)
    inside = (head < heads)[:, None] & (element < HEAD_DIM)[None, :]
    x = tl.load(x_ptr + head[:, None] * x_stride + element[None, :], mask=inside)
    tl.store(out_ptr + head[:, None] * out_stride + element[None, :], x, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def _rotate_and_store(
    q_ptr,
    k_ptr,
    v_ptr,
    cos_ptr,
    sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    k_pages_ptr,
    v_pages_ptr,
    slots_ptr,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    angle_token,
    page_token,
    page_head,
    heads,
    kv_heads,
    q_eps,
    k_eps,
    q_programs,
    HAS_NORM: tl.constexpr,
    HAS_PAGES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    cos, sin = cos_ptr + token * angle_token, sin_ptr + token * angle_token
    if part < q_programs:
        head = part * HEADS + tl.arange(0, HEADS)
        q = q_ptr + token * q_token
        _rotate(q, q_norm_ptr, cos, sin, q, head, heads, q_head, q_head, q_eps, HAS_NORM, HEAD_DIM, HALF)
    else:
        head = (part - q_programs) * HEADS + tl.arange(0, HEADS)
        k = k_ptr + token * k_token
        if HAS_PAGES:
            slot = tl.load(slots_ptr + token)
            if slot >= 0:
                to_k, to_v = k_pages_ptr + slot * page_token, v_pages_ptr + slot * page_token
                _rotate(
                    k, k_norm_ptr, cos, sin, to_k, head, kv_heads, k_head, page_head, k_eps, HAS_NORM, HEAD_DIM, HALF
                )
                _copy_heads(v_ptr + token * v_token, to_v, head, kv_heads, v_head, page_head, HEAD_DIM, WIDTH)
        else:
            _rotate(k, k_norm_ptr, cos, sin, k, head, kv_heads, k_head, k_head, k_eps, HAS_NORM, HEAD_DIM, HALF)


class Destination(NamedTuple):
    """The pages to which keys and values are written."""

    v: torch.Tensor
    """[N, kv_heads, head_dim], the values to write."""
    k_pages: torch.Tensor
    """[pages, page_size, kv_heads, head_dim] of the same dtype, contiguous."""
    v_pages: torch.Tensor
    """[pages, page_size, kv_heads, head_dim] of the same dtype, contiguous."""
    kv_slots: torch.Tensor
    """[N] int64, `page * page_size + offset`; negative for a token that is not written."""


def rotate(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norms: tuple[HeadNorm, HeadNorm] | None,
    to: Destination | None,
) -> None:
    """Apply the norms if there are any, and rotate: q in place, k in place or into the pages, with the values.

    Args:
        q: [N, heads, head_dim], float32, bfloat16 or float16.
        k: [N, kv_heads, head_dim] of the same dtype. No gaps inside a head, anywhere.
        cos, sin: [N, 1, head_dim] of the same dtype, contiguous.
        norms: the norms of q and k.
        to: the pages; None rotates k in place.
    """
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    if tokens == 0:
        return
    width = triton.next_power_of_2(head_dim)
    per_program = min(max(TILE // width, 1), triton.next_power_of_2(heads))
    q_programs = triton.cdiv(heads, per_program)
    v, k_pages, v_pages, kv_slots = to or Destination(k, k, k, k)  # unused pointers
    q_norm, k_norm = norms or (HeadNorm(q, 0.0), HeadNorm(k, 0.0))
    _rotate_and_store[(tokens, q_programs + triton.cdiv(kv_heads, per_program))](
        q,
        k,
        v,
        cos,
        sin,
        q_norm.weight,
        k_norm.weight,
        k_pages,
        v_pages,
        kv_slots,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        head_dim,
        kv_heads * head_dim,
        head_dim,
        heads,
        kv_heads,
        q_norm.eps,
        k_norm.eps,
        q_programs,
        HAS_NORM=norms is not None,
        HAS_PAGES=to is not None,
        HEAD_DIM=head_dim,
        HALF=width // 2,
        WIDTH=width,
        HEADS=per_program,
        num_warps=4,
    )
