"""Computes the time of a context that passes through the device: that of compute or of copies, the longer one.

    prefill of n tokens in chunks of c     FLOP      2 n P + 4 L Hq h n^2 / 2
                                           copied    (n^2 / 2c - n / 2) b  up,  n b  down

P weights in matrices, L layers, Hq query heads of size h, b bytes of KV of a token in all layers. Every chunk loads all
KV before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.types.footprint import KVSizes


@dataclass(frozen=True, slots=True)
class CostModel:
    """The sizes of a model that determine its time."""

    kv: KVSizes
    num_heads: int
    hidden_size: int
    inner_size: int

    @property
    def matrix_weights(self) -> int:
        """Number of weights in all layers' matrices, three of them in an MLP."""
        kv, hidden = self.kv, self.hidden_size
        attention = 2 * hidden * kv.head_dim * (self.num_heads + kv.num_kv_heads)
        return kv.num_layers * (attention + 3 * hidden * self.inner_size)

    @property
    def pair_flop(self) -> int:
        """FLOP of one query token with one key token, in all layers."""
        return 4 * self.kv.num_layers * self.num_heads * self.kv.head_dim


@dataclass(frozen=True, slots=True)
class CostDevice:
    """Rates that a machine achieves, which are below its nominal ones."""

    flops: float
    """FLOP per second in matrix products and attention."""
    copy_bandwidth: float
    """Bytes per second from the lower tier to the device."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a prefill."""

    flop: float
    copied_bytes: float
    compute_seconds: float
    copy_seconds: float

    @property
    def seconds(self) -> float:
        """Seconds in all, with copies hidden behind the computation as far as possible."""
        return max(self.compute_seconds, self.copy_seconds)


def prefill_cost(model: CostModel, device: CostDevice, length: int, chunk: int) -> Cost:
    """Return the cost of a prefill.

    Args:
        length: tokens of the prompt.
        chunk: tokens of each piece.
    """
    flop = 2.0 * length * model.matrix_weights + model.pair_flop * length * (length + 1) / 2
    copied = loaded_tokens(length, chunk) * model.kv.token_bytes + length * model.kv.token_bytes
    return Cost(flop, copied, flop / device.flops, copied / device.copy_bandwidth)


def loaded_tokens(length: int, chunk: int) -> float:
    """Return the tokens whose KV is loaded while `length` are read: for each chunk, those before it."""
    whole, rest = divmod(length, chunk)
    return chunk * whole * (whole - 1) / 2 + (whole * chunk if rest else 0)
