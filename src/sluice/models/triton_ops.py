"""`Ops` by Triton kernels: one launch per operation, rounding where `Ops` rounds."""

from __future__ import annotations

import torch

from sluice.attention.base import LayerKV, PagedKV
from sluice.attention.states import StateSpec
from sluice.attention.triton.kv import TritonKV
from sluice.kernels.triton.gates import CODES, gate_rows, gate_rows_to_fp8
from sluice.kernels.triton.lora import LoraMatrices, add_lora
from sluice.kernels.triton.norms import MAX_SIZE, norm_rows
from sluice.kernels.triton.rotary import Destination, HeadNorm, rotate
from sluice.models.blocks.lora import LoraSlots, wide_rows
from sluice.models.fp8_rows import Fp8Rows, Rows
from sluice.models.ops import Angles, HeadNorms, Norm, Ops, dense_rows
from sluice.models.state_ops import StateOps
from sluice.models.triton_states import TritonStates, has_triton_kernel

TYPES = (torch.bfloat16, torch.float16, torch.float32)


class TritonOps(Ops):
    """`Ops` by Triton kernels. Torch computes dtypes and sizes that they do not support."""

    def __init__(self) -> None:
        self._states = TritonStates()

    def norm(self, x: torch.Tensor, norm: Norm) -> Rows:
        if not _supports(x):
            return super().norm(x, norm)
        return _normed(dense_rows(x), None, norm)[1]

    def add_norm(self, x: torch.Tensor, delta: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, Rows]:
        if not _supports(x):
            return super().add_norm(x, delta, norm)
        return _normed(dense_rows(x), dense_rows(delta), norm)

    def rotate_and_store(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        angles: Angles | None,
        norms: HeadNorms | None,
        kv: PagedKV,
        kv_slots: torch.Tensor,
        k_offset: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if q.dtype not in TYPES or angles is None or angles.cos.shape[-1] < q.shape[-1]:
            return super().rotate_and_store(q, k, v, angles, norms, kv, kv_slots, k_offset)
        q, k, v = (part if part.stride(-1) == 1 else part.contiguous() for part in (q, k, v))
        heads = None if norms is None else (HeadNorm(*norms.q[:2]), HeadNorm(*norms.k[:2]))
        if isinstance(kv, LayerKV | TritonKV) and kv.k.dtype == q.dtype:
            rotate(q, k, angles.cos, angles.sin, heads, Destination(v, kv.k, kv.v, kv_slots))
        else:
            rotate(q, k, angles.cos, angles.sin, heads, None)
            kv.store(kv_slots, k, v)
        return q

    def of_states(self, spec: StateSpec) -> StateOps:
        return self._states if has_triton_kernel(spec) else super().of_states(spec)

    def gate_and_mul(self, gate: torch.Tensor, up: torch.Tensor, activation: str, *, to_fp8: bool = False) -> Rows:
        if gate.dtype not in TYPES or activation not in CODES or (to_fp8 and not _supports(gate)):
            return super().gate_and_mul(gate, up, activation, to_fp8=to_fp8)
        gate, up = dense_rows(gate), dense_rows(up)
        if to_fp8:
            return Fp8Rows(*gate_rows_to_fp8(gate, up, activation), gate.dtype)
        return gate_rows(gate, up, activation)

    def add_lora(self, y: torch.Tensor, x: Rows, tokens: torch.Tensor, slots: LoraSlots) -> None:
        if slots.a.dtype not in TYPES:
            super().add_lora(y, x, tokens, slots)
            return
        add_lora(
            y,
            dense_rows(wide_rows(x)),
            tokens,
            LoraMatrices(slots.a, slots.b, slots.ranks, slots.scales, slots.outputs),
        )


def _normed(x: torch.Tensor, delta: torch.Tensor | None, norm: Norm) -> tuple[torch.Tensor, Rows]:
    total, rows, scales = norm_rows(x, delta, norm.weight, norm.bias, norm.eps, to_fp8=norm.is_fp8)
    return total, rows if scales is None else Fp8Rows(rows, scales, x.dtype)


def _supports(x: torch.Tensor) -> bool:
    return x.dtype in TYPES and x.shape[-1] <= MAX_SIZE
