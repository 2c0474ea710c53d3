"""`Ops` by Triton's kernels: one launch each, rounding what `TorchOps` rounds."""

from __future__ import annotations

import torch

from sluice.attention.base import LayerKV, PagedKV
from sluice.attention.triton.kv import TritonKV
from sluice.models.ops import Angles, HeadNorms, LayerNorm, Norm, TorchOps
from sluice.triton.gates import CODES, gate_rows
from sluice.triton.norms import MAX_SIZE, norm_rows
from sluice.triton.rotary import Destination, HeadNorm, rotate

TYPES = (torch.bfloat16, torch.float16, torch.float32)


class TritonOps:
    """See `Ops`. What the kernels do not take, another dtype, is left to `TorchOps`."""

    def __init__(self) -> None:
        self._torch = TorchOps()

    def rms_norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        """See `Ops.rms_norm`."""
        if not _takes(x):
            return self._torch.rms_norm(x, norm)
        return norm_rows(_dense_rows(x), None, norm.weight, None, norm.eps)[1]

    def add_rms_norm(self, x: torch.Tensor, delta: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.add_rms_norm`."""
        if not _takes(x):
            return self._torch.add_rms_norm(x, delta, norm)
        return norm_rows(_dense_rows(x), _dense_rows(delta), norm.weight, None, norm.eps)

    def layer_norm(self, x: torch.Tensor, norm: LayerNorm) -> torch.Tensor:
        """See `Ops.layer_norm`."""
        if not _takes(x):
            return self._torch.layer_norm(x, norm)
        return norm_rows(_dense_rows(x), None, norm.weight, norm.bias, norm.eps)[1]

    def add_layer_norm(
        self, x: torch.Tensor, delta: torch.Tensor, norm: LayerNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.add_layer_norm`."""
        if not _takes(x):
            return self._torch.add_layer_norm(x, delta, norm)
        return norm_rows(_dense_rows(x), _dense_rows(delta), norm.weight, norm.bias, norm.eps)

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
        """See `Ops.rotate_and_store`; q is overwritten, and k where the pages are of another type."""
        if q.dtype not in TYPES:
            return self._torch.rotate_and_store(q, k, v, angles, norms, kv, kv_slots)
        q, k, v = (part if part.stride(-1) == 1 else part.contiguous() for part in (q, k, v))
        heads = None if norms is None else (HeadNorm(*norms.q), HeadNorm(*norms.k))
        if isinstance(kv, LayerKV | TritonKV) and kv.k.dtype == q.dtype:
            rotate(q, k, angles.cos, angles.sin, heads, Destination(v, kv.k, kv.v, kv_slots))
        else:
            rotate(q, k, angles.cos, angles.sin, heads, None)
            kv.store(kv_slots, k, v)
        return q

    def gate_and_mul(self, gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
        """See `Ops.gate_and_mul`."""
        if gate.dtype not in TYPES or activation not in CODES:
            return self._torch.gate_and_mul(gate, up, activation)
        return gate_rows(_dense_rows(gate), _dense_rows(up), activation)


def _takes(x: torch.Tensor) -> bool:
    return x.dtype in TYPES and x.shape[-1] <= MAX_SIZE


def _dense_rows(x: torch.Tensor) -> torch.Tensor:
    """x [N, size] with gaps between rows at most."""
    return x if x.stride(1) == 1 else x.contiguous()
