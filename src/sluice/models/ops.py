"""The small operations between a decoder's matrix products, as an interface that is chosen when a model is loaded.

`Ops` defines each operation in plain torch. Its subclasses fuse the same arithmetic and may round less often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch.nn import functional

from sluice.attention.base import PagedKV
from sluice.attention.states import StateSpec
from sluice.models.blocks.lora import LoraSlots, add_lora
from sluice.models.fp8_rows import Rows, fp8_rows
from sluice.models.state_ops import TORCH_STATE_OPS, StateOps

Activation = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
}


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which norms and angles are computed: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Norm(NamedTuple):
    """A norm over the last dimension.

    It is a layer norm (Ba, Kiros and Hinton, 2016) if it has a bias, else a root mean square norm (Zhang and Sennrich,
    2019).
    """

    weight: torch.Tensor
    """[size], in `compute_dtype` of the input."""
    eps: float
    bias: torch.Tensor | None = None
    """[size], as the weight"""
    is_fp8: bool = False
    """What it gives is quantised, for a layer that computes in FP8."""


class Angles(NamedTuple):
    """Rotary angles of a step's tokens, each [N, 1, size] in the model's dtype, for the first `size` of a head."""

    cos: torch.Tensor
    sin: torch.Tensor


class HeadNorms(NamedTuple):
    """Norms over each head of q and k, which some models apply before the rotation."""

    q: Norm
    k: Norm


class Ops:
    """The operations of a decoder apart from matrix products and attention, in plain torch on any device and dtype.

    Inputs may be views with strided rows (parts of one fused product); the last dimension is contiguous. Results are
    new tensors in the dtype of the inputs. Operations widen to float32 where transformers does.
    """

    def norm(self, x: torch.Tensor, norm: Norm) -> Rows:
        """Return the norm of x [..., size]."""
        if norm.is_fp8:
            return fp8_rows(self._plain_norm(x, norm))
        return self._plain_norm(x, norm)

    def _plain_norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        wide = x.to(compute_dtype(x.dtype))
        if norm.bias is not None:
            return functional.layer_norm(wide, x.shape[-1:], norm.weight, norm.bias, norm.eps).to(x.dtype)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
        return (norm.weight * wide).to(x.dtype)

    def add_norm(self, x: torch.Tensor, delta: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, Rows]:
        """Return `x + delta` and its norm, all [N, size]. `x` may be overwritten."""
        total = x + delta
        return total, self.norm(total, norm)

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
        """Apply the head norms if there are any, rotate q and k, and write k and v into the pages.

        Args:
            q: [N, heads, head_dim]; pair i of the rotated elements is i and i + half their number.
            k, v: [N, kv_heads, head_dim].
            angles: None does not rotate.
            kv: the layer's pages.
            kv_slots: [N] int64, the position in the pages of each token's key and value.
            k_offset: [kv_heads, head_dim] float32, what pages of int8 hold rotated keys without (`key_offset.py`).

        Returns:
            The rotated q. The inputs may be overwritten.
        """
        if norms is not None:
            # Not `norm`: subclasses norm rows, and these are heads.
            q, k = self._plain_norm(q, norms.q), self._plain_norm(k, norms.k)
        k = rotate(k, angles)
        if k_offset is not None and kv.k.dtype == torch.int8:
            k = k.float() - k_offset
        kv.store(kv_slots, k, v)
        return rotate(q, angles)

    def rotate_queries(self, q: torch.Tensor, angles: Angles | None, norm: Norm | None) -> torch.Tensor:
        """Return q [N, heads, head_dim], normalised per head if there is a norm, and rotated."""
        return rotate(q if norm is None else self._plain_norm(q, norm), angles)

    def gate_and_mul(self, gate: torch.Tensor, up: torch.Tensor, activation: str, *, to_fp8: bool = False) -> Rows:
        """Return `activation(gate) * up`, all [N, size], quantised if asked.

        Args:
            activation: a key of `ACTIVATIONS`.
        """
        rows = ACTIVATIONS[activation](gate) * up
        return fp8_rows(rows) if to_fp8 else rows

    def add_lora(self, y: torch.Tensor, x: Rows, tokens: torch.Tensor, slots: LoraSlots) -> None:
        """Add to the outputs y of a layer what the adapters of their rows give: see `blocks.lora.add_lora`."""
        add_lora(y, x, tokens, slots)

    def add_lora_and_gate(
        self, y: torch.Tensor, x: Rows, tokens: torch.Tensor, slots: LoraSlots, activation: str
    ) -> torch.Tensor:
        """Do so for a layer of gate and up, before these are rounded, and gate them.

        Args:
            y: [N, 2 * size] float32, gate and up, which are overwritten.
            activation: a key of `ACTIVATIONS`.

        Returns:
            `activation(gate) * up`, [N, size] bfloat16.
        """
        self.add_lora(y, x, tokens, slots)
        gate, up = y.chunk(2, dim=-1)
        return (ACTIVATIONS[activation](gate) * up).to(torch.bfloat16)

    def of_states(self, spec: StateSpec) -> StateOps:
        """Return the operations of layers with states of these sizes."""
        return TORCH_STATE_OPS

    def gated_norm(self, x: torch.Tensor, gate: torch.Tensor, norm: Norm, *, gates_first: bool) -> torch.Tensor:
        """Return the root mean square norm of each group of x, times the gate's silu.

        Args:
            x: [N, groups, size], in `compute_dtype` of the gate.
            gate: [N, groups, size].
            norm: its weight is [size], or [groups, size].
            gates_first: the norm is that of `x * silu(gate)`.

        Returns:
            [N, groups * size] in the gate's dtype.
        """
        factor = functional.silu(gate.to(x.dtype))
        if gates_first:
            x = x * factor
        x = norm.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps))
        return (x if gates_first else x * factor).to(gate.dtype).flatten(1)


def dense_rows(x: torch.Tensor) -> torch.Tensor:
    """Return x [N, size] with a contiguous last dimension."""
    return x if x.stride(1) == 1 else x.contiguous()


def rotate(x: torch.Tensor, angles: Angles | None) -> torch.Tensor:
    """Rotate the first elements of each head of x [N, heads, head_dim], as many as there are angles.

    Pair i is elements i and i + half their number, as Hugging Face stores weights.
    """
    if angles is None:
        return x
    size = angles.cos.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * angles.cos + torch.cat((-second, first), dim=-1) * angles.sin
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned
