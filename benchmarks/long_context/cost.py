"""How long a context takes that passes through the device: compute and copies at once, whichever is slower.

    prefill of n tokens in chunks of c     FLOP      2 n P + 4 L Hq h n^2 / 2
                                           copied    (n^2 / 2c - n / 2) b  up,  n b  down
    a decoded token at n                   copied    n b

P weights in matrices, L layers, Hq query heads of size h, b bytes of KV of a token in all layers: every chunk brings in
all that is before it. Copies hide behind the attention from c = b F / (4 L Hq h bandwidth) on, at any length.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.footprint import KVSizes


@dataclass(frozen=True, slots=True)
class CostModel:
    """Sizes of a model that decide its time."""

    kv: KVSizes
    num_heads: int
    hidden_size: int
    inner_size: int

    @property
    def matrix_weights(self) -> int:
        """Of all layers' matrices; the MLP's are three."""
        kv, hidden = self.kv, self.hidden_size
        attention = 2 * hidden * kv.head_dim * (self.num_heads + kv.num_kv_heads)
        return kv.num_layers * (attention + 3 * hidden * self.inner_size)

    @property
    def pair_flop(self) -> int:
        """Of one query token with one key token, in all layers."""
        return 4 * self.kv.num_layers * self.num_heads * self.kv.head_dim


@dataclass(frozen=True, slots=True)
class CostDevice:
    """What a machine achieves, which is less than what is written on it."""

    flops: float
    """In matrix products and attention, per second."""
    copy_bandwidth: float
    """Bytes per second, from the tier beneath to the device."""
    memory_bandwidth: float
    """Bytes per second, at which decodes read KV."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a prefill, or of one decoded token."""

    flop: float
    copied_bytes: float
    compute_seconds: float
    copy_seconds: float

    @property
    def seconds(self) -> float:
        """With copies hidden behind the computation, as far as they can be."""
        return max(self.compute_seconds, self.copy_seconds)


def prefill_cost(model: CostModel, device: CostDevice, length: int, chunk: int) -> Cost:
    """
    Args:
        length: tokens of the prompt.
        chunk: tokens of each piece.
    """
    flop = 2.0 * length * model.matrix_weights + model.pair_flop * length * (length + 1) / 2
    copied = loaded_tokens(length, chunk) * model.kv.token_bytes + length * model.kv.token_bytes
    return Cost(flop, copied, flop / device.flops, copied / device.copy_bandwidth)


def decode_cost(model: CostModel, device: CostDevice, length: int) -> Cost:
    """Of one token behind `length` others: all of their KV is copied, and read once."""
    copied = float(length * model.kv.token_bytes)
    flop = 2.0 * model.matrix_weights + model.pair_flop * length
    compute = max(flop / device.flops, copied / device.memory_bandwidth)
    return Cost(flop, copied, compute, copied / device.copy_bandwidth)


def loaded_tokens(length: int, chunk: int) -> float:
    """Tokens whose KV is brought in while `length` are read: for each chunk, those before it."""
    whole, rest = divmod(length, chunk)
    return chunk * whole * (whole - 1) / 2 + (whole * chunk if rest else 0)


def hiding_chunk(model: CostModel, device: CostDevice) -> float:
    """Tokens of a chunk from which on copies hide behind attention."""
    return model.kv.token_bytes * device.flops / (model.pair_flop * device.copy_bandwidth)
