"""The small operations between a decoder's matrix products, as an interface that is chosen when a model is loaded.

`TorchOps` defines each operation and runs on every device and dtype. Other implementations fuse the same arithmetic and
may round less often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from sluice.attention.base import PagedKV

Activation = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What norms and rotary angles are computed in: float64 stays float64, all else is float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Norm(NamedTuple):
    """A root mean square norm (Zhang and Sennrich, 2019) over the last dimension."""

    weight: torch.Tensor
    """[size], in the dtype of what is normed."""
    eps: float


class LayerNorm(NamedTuple):
    """A layer norm (Ba, Kiros and Hinton, 2016) over the last dimension."""

    weight: torch.Tensor
    """[size], in the dtype of what is normed."""
    bias: torch.Tensor
    """[size]"""
    eps: float


class Angles(NamedTuple):
    """Rotary angles of a step's tokens, each [N, 1, head_dim] in the model's dtype."""

    cos: torch.Tensor
    sin: torch.Tensor


class HeadNorms(NamedTuple):
    """The norms that some models put over each head of q and k, before the rotation."""

    q: Norm
    k: Norm


class Ops(Protocol):
    """What a decoder does to its hidden states apart from matrix products and attention.

    Inputs may be views with gaps between rows (parts of one fused product); the last dimension has none. Results are
    new tensors in the dtype of the inputs.
    """

    def rms_norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        """[N, size] to the same."""
        ...

    def add_rms_norm(self, x: torch.Tensor, delta: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
        """`x + delta` and its norm, all [N, size]. `x` may be overwritten."""
        ...

    def layer_norm(self, x: torch.Tensor, norm: LayerNorm) -> torch.Tensor:
        """[N, size] to the same."""
        ...

    def add_layer_norm(
        self, x: torch.Tensor, delta: torch.Tensor, norm: LayerNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `add_rms_norm`."""
        ...

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
        """Norm each head of q and k if the model does, turn both, and write k and v into the pages.

        Args:
            q: [N, heads, head_dim]; pair i of a head is elements i and i + head_dim / 2.
            k, v: [N, kv_heads, head_dim].
            kv: the layer's pages.
            kv_slots: [N] int64, where each token's key and value go.

        Returns:
            The turned q. What was given may be overwritten.
        """
        ...

    def gate_and_mul(self, gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
        """`activation(gate) * up`, all [N, size]; the activation is a key of `ACTIVATIONS`."""
        ...


class TorchOps:
    """Plain torch. Where it widens to float32 is where transformers does."""

    def rms_norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        """See `Ops.rms_norm`; any leading dimensions."""
        wide = x.to(compute_dtype(x.dtype))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
        return norm.weight * wide.to(x.dtype)

    def add_rms_norm(self, x: torch.Tensor, delta: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.add_rms_norm`."""
        total = x + delta
        return total, self.rms_norm(total, norm)

    def layer_norm(self, x: torch.Tensor, norm: LayerNorm) -> torch.Tensor:
        """See `Ops.layer_norm`."""
        return functional.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)

    def add_layer_norm(
        self, x: torch.Tensor, delta: torch.Tensor, norm: LayerNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.add_layer_norm`."""
        total = x + delta
        return total, self.layer_norm(total, norm)

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
        """See `Ops.rotate_and_store`."""
        if norms is not None:
            q, k = self.rms_norm(q, norms.q), self.rms_norm(k, norms.k)
        kv.store(kv_slots, rotate(k, angles), v)
        return rotate(q, angles)

    def gate_and_mul(self, gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
        """See `Ops.gate_and_mul`."""
        return ACTIVATIONS[activation](gate) * up


def rotate(x: torch.Tensor, angles: Angles) -> torch.Tensor:
    """Turn x [N, heads, head_dim]; pair i is elements i and i + head_dim / 2, as Hugging Face stores weights."""
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos + torch.cat((-second, first), dim=-1) * angles.sin
