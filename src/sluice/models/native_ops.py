"""`Ops` by the compiled kernels: one pass over memory per operation, in float32, rounded once at the end."""

from __future__ import annotations

import torch
from torch.nn import functional

from sluice.attention.base import PagedKV
from sluice.attention.int8 import PackedInt8KV
from sluice.attention.packed import STEPS, PackedKV, dense_heads
from sluice.attention.states import StateSpec
from sluice.kernels.cpu.abi import CODES, GatedNormCall, LoraCall, NormCall, SiluMulCall
from sluice.kernels.cpu.library import Kernels
from sluice.models.blocks.lora import LoraSlots
from sluice.models.fp8_rows import Rows, plain
from sluice.models.native_states import NativeStates, has_kernel
from sluice.models.ops import ACTIVATIONS, Angles, HeadNorms, Norm, Ops, dense_rows
from sluice.models.state_ops import StateOps


class NativeOps(Ops):
    """`Ops` by the compiled kernels, which overwrite their inputs.

    Torch computes what they do not support: other dtypes, and pages in torch's layout.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._states = NativeStates(kernels)

    def norm(self, x: torch.Tensor, norm: Norm) -> Rows:
        return self._norm(dense_rows(x), None, norm) if x.dtype in STEPS else super().norm(x, norm)

    def add_norm(self, x: torch.Tensor, delta: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, Rows]:
        if x.dtype not in STEPS:
            return super().add_norm(x, delta, norm)
        x = dense_rows(x)
        return x, self._norm(x, dense_rows(delta), norm)

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
        is_partial = angles is not None and angles.cos.shape[-1] < q.shape[-1]
        if not isinstance(kv, PackedKV | PackedInt8KV) or q.dtype not in kv.dtypes or is_partial:
            return super().rotate_and_store(q, k, v, angles, norms, kv, kv_slots, k_offset)
        q, k, v = dense_heads(q), dense_heads(k), dense_heads(v)
        call = kv.store_call(kv_slots, k, v)
        call.q, call.q_stride, call.heads = q.data_ptr(), q.stride(0), q.shape[1]
        if angles is not None:
            call.cos, call.sin = angles.cos.data_ptr(), angles.sin.data_ptr()
        call.k_offset = None if k_offset is None else k_offset.data_ptr()
        if norms is not None:
            call.q_weight, call.q_eps = norms.q.weight.data_ptr(), norms.q.eps
            call.k_weight, call.k_eps = norms.k.weight.data_ptr(), norms.k.eps
        self._kernels.rotate_store(call)
        return q

    def gate_and_mul(self, gate: torch.Tensor, up: torch.Tensor, activation: str, *, to_fp8: bool = False) -> Rows:
        if to_fp8 or gate.dtype not in STEPS or ACTIVATIONS[activation] is not functional.silu:
            return super().gate_and_mul(gate, up, activation, to_fp8=to_fp8)
        gate, up = dense_rows(gate), dense_rows(up)
        out = torch.empty(gate.shape, dtype=gate.dtype)
        call = SiluMulCall(
            gate=gate.data_ptr(),
            up=up.data_ptr(),
            out=out.data_ptr(),
            gate_stride=gate.stride(0),
            up_stride=up.stride(0),
            rows=gate.shape[0],
            size=gate.shape[1],
            is_bf16=gate.dtype == torch.bfloat16,
        )
        self._kernels.silu_mul(call)
        return out

    def add_lora(self, y: torch.Tensor, x: Rows, tokens: torch.Tensor, slots: LoraSlots) -> None:
        if isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16:
            self._kernels.lora(lora_call(y, dense_rows(x), tokens, slots))
        else:
            super().add_lora(y, x, tokens, slots)

    def add_lora_and_gate(
        self, y: torch.Tensor, x: Rows, tokens: torch.Tensor, slots: LoraSlots, activation: str
    ) -> torch.Tensor:
        x = dense_rows(plain(x))
        call = lora_call(y, x, tokens, slots)
        gated = torch.empty((y.shape[0], y.shape[1] // 2), dtype=torch.bfloat16)
        call.gated, call.activation = gated.data_ptr(), CODES[activation]
        self._kernels.lora(call)
        return gated

    def of_states(self, spec: StateSpec) -> StateOps:
        return self._states if has_kernel(spec) else super().of_states(spec)

    def gated_norm(self, x: torch.Tensor, gate: torch.Tensor, norm: Norm, *, gates_first: bool) -> torch.Tensor:
        if gate.dtype not in STEPS:
            return super().gated_norm(x, gate, norm, gates_first=gates_first)
        x, gate = x.contiguous(), dense_heads(gate)
        count, groups, size = x.shape
        out = torch.empty(count, groups * size, dtype=gate.dtype)
        call = GatedNormCall(
            x=x.data_ptr(),
            gate=gate.data_ptr(),
            weight=norm.weight.data_ptr(),
            out=out.data_ptr(),
            gate_stride=gate.stride(0),
            weight_stride=size if norm.weight.dim() == 2 else 0,
            rows=count * groups,
            groups=groups,
            size=size,
            is_bf16=gate.dtype == torch.bfloat16,
            gates_first=gates_first,
            eps=norm.eps,
        )
        self._kernels.gated_norm(call)
        return out

    def _norm(self, x: torch.Tensor, delta: torch.Tensor | None, norm: Norm) -> torch.Tensor:
        assert norm.weight.dtype == torch.float32, "the kernel reads float32"
        out = torch.empty(x.shape, dtype=x.dtype)
        call = NormCall(
            x=x.data_ptr(),
            delta=None if delta is None else delta.data_ptr(),
            weight=norm.weight.data_ptr(),
            bias=None if norm.bias is None else norm.bias.data_ptr(),
            out=out.data_ptr(),
            x_stride=x.stride(0),
            delta_stride=0 if delta is None else delta.stride(0),
            rows=x.shape[0],
            size=x.shape[1],
            is_bf16=x.dtype == torch.bfloat16,
            eps=norm.eps,
        )
        self._kernels.norm(call)
        return out


def lora_call(y: torch.Tensor, x: torch.Tensor, tokens: torch.Tensor, slots: LoraSlots) -> LoraCall:
    """Return the call that adds what adapters give for rows x [N, in_features] in bfloat16 to y, in this or float32."""
    assert tokens.dtype == torch.int32 and tokens.is_contiguous(), f"slots in {tokens.dtype}"
    assert slots.a.dtype == torch.bfloat16, f"adapters in {slots.a.dtype}"
    return LoraCall(
        x=x.data_ptr(),
        slots=tokens.data_ptr(),
        a=slots.a.data_ptr(),
        b=slots.b.data_ptr(),
        ranks=slots.ranks.data_ptr(),
        scales=slots.scales.data_ptr(),
        outputs=slots.widths.data_ptr(),
        y=y.data_ptr(),
        x_stride=x.stride(0),
        y_stride=y.stride(0),
        b_stride=slots.b.stride(1),
        rows=len(x),
        in_features=slots.in_features,
        out_features=sum(slots.outputs),
        parts=len(slots.outputs),
        max_rank=slots.b.shape[1],
        is_float_y=y.dtype == torch.float32,
    )
