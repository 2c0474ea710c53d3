"""`Ops` by the compiled kernels: one pass over memory each, float32 inside, rounded once at the end."""

from __future__ import annotations

import torch
from torch.nn import functional

from sluice.attention.base import PagedKV
from sluice.attention.packed import STEPS, PackedKV, dense_heads
from sluice.models.ops import ACTIVATIONS, Angles, HeadNorms, LayerNorm, Norm, TorchOps
from sluice.native.abi import NormCall, SiluMulCall
from sluice.native.library import Kernels


class NativeOps:
    """See `Ops`. What the kernels do not take, another dtype or pages laid out for torch, is left to `TorchOps`."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._torch = TorchOps()

    def rms_norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        """See `Ops.rms_norm`."""
        if x.dtype not in STEPS:
            return self._torch.rms_norm(x, norm)
        return self._norm(_dense_rows(x), None, norm)

    def add_rms_norm(self, x: torch.Tensor, delta: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.add_rms_norm`; `x` is overwritten with the sum."""
        if x.dtype not in STEPS:
            return self._torch.add_rms_norm(x, delta, norm)
        x = _dense_rows(x)
        return x, self._norm(x, _dense_rows(delta), norm)

    def layer_norm(self, x: torch.Tensor, norm: LayerNorm) -> torch.Tensor:
        """See `Ops.layer_norm`."""
        if x.dtype not in STEPS:
            return self._torch.layer_norm(x, norm)
        return self._norm(_dense_rows(x), None, norm)

    def add_layer_norm(
        self, x: torch.Tensor, delta: torch.Tensor, norm: LayerNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.add_layer_norm`; `x` is overwritten with the sum."""
        if x.dtype not in STEPS:
            return self._torch.add_layer_norm(x, delta, norm)
        x = _dense_rows(x)
        return x, self._norm(x, _dense_rows(delta), norm)

    def rotate_and_store(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        angles: Angles,
        norms: HeadNorms | None,
        kv: PagedKV,
        kv_slots: torch.Tensor,
    ) -> torch.Tensor:
        """See `Ops.rotate_and_store`; q and k are overwritten."""
        if not isinstance(kv, PackedKV) or q.dtype != kv.k.dtype:
            return self._torch.rotate_and_store(q, k, v, angles, norms, kv, kv_slots)
        q, k, v = dense_heads(q), dense_heads(k), dense_heads(v)
        call = kv.store_call(kv_slots, k, v)
        call.q, call.q_stride, call.heads = q.data_ptr(), q.stride(0), q.shape[1]
        call.cos, call.sin = angles.cos.data_ptr(), angles.sin.data_ptr()
        if norms is not None:
            call.q_weight, call.q_eps = norms.q.weight.data_ptr(), norms.q.eps
            call.k_weight, call.k_eps = norms.k.weight.data_ptr(), norms.k.eps
        self._kernels.rotate_store(call)
        return q

    def gate_and_mul(self, gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
        """See `Ops.gate_and_mul`."""
        if gate.dtype not in STEPS or ACTIVATIONS[activation] is not functional.silu:
            return self._torch.gate_and_mul(gate, up, activation)
        gate, up = _dense_rows(gate), _dense_rows(up)
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

    def _norm(self, x: torch.Tensor, delta: torch.Tensor | None, norm: Norm | LayerNorm) -> torch.Tensor:
        out = torch.empty(x.shape, dtype=x.dtype)
        call = NormCall(
            x=x.data_ptr(),
            delta=None if delta is None else delta.data_ptr(),
            weight=norm.weight.data_ptr(),
            bias=norm.bias.data_ptr() if isinstance(norm, LayerNorm) else None,
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


def _dense_rows(x: torch.Tensor) -> torch.Tensor:
    """x [N, size] with gaps between rows at most."""
    return x if x.stride(1) == 1 else x.contiguous()
