"""What can be known of a model before it is loaded: memory, and the most tokens a second that its shapes allow.

Every token that is decoded for one stream reads all weights that it is multiplied by, and the KV of the tokens before
it. No processor does that faster than its memory delivers them: the rate is a bound (Williams et al., "Roofline: An
Insightful Visual Performance Model", 2009), which computation, planning and sampling only lower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sluice.models.catalog.sizes import ModelSizes

NUMBER_SIZES: Mapping[str, tuple[float, float]] = {
    "none": (2, 2),
    "int8": (1 + 2 / 32, 1 + 2 / 32),
    "int4": (0.5 + 2 / 32, 1 + 2 / 32),
}
"""`--quantization` -> bytes of a number in a linear layer, and in the embedding or the head, as `models.spec` has
them."""


class StoredBytes(NamedTuple):
    """Bytes of weights that are computed as a file stores them."""

    held: int
    """Bytes in memory."""
    read: int
    """Bytes of the weights that a token is multiplied by."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a model of these sizes needs, and what it may reach."""

    sizes: ModelSizes
    quantization: str = "none"
    """A key of `NUMBER_SIZES`; without meaning if weights are computed as stored."""
    stored: StoredBytes | None = None

    @property
    def weights_bytes(self) -> float:
        """Bytes of the weights in memory.

        In 16 bits, a head that is the embedding counts twice: processors without products in bfloat16 hold it in a
        layout of its own.
        """
        if self.stored is not None:
            return self.stored.held
        layer, table = NUMBER_SIZES[self.quantization]
        layers = self.sizes.weights - self.sizes.table + self.sizes.idle
        tables = self.sizes.stored - layers
        if self.quantization == "none":
            tables = 2 * self.sizes.table + self.sizes.lookups
        return layers * layer + tables * table

    @property
    def read_bytes(self) -> float:
        """Bytes of the weights that one token is multiplied by."""
        if self.stored is not None:
            return self.stored.read
        layer, table = NUMBER_SIZES[self.quantization]
        return (self.sizes.weights - self.sizes.table) * layer + self.sizes.table * table

    def rate(self, bandwidth: float, context: int = 0) -> float:
        """Return the most tokens a second of one stream.

        Args:
            bandwidth: of the memory, in bytes a second.
            context: tokens before it.
        """
        return bandwidth / (self.read_bytes + context * self.sizes.token_bytes)


def gigabytes(size: float) -> str:
    """Return a size in words, with two significant digits or more."""
    if size < 1e9:
        return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    return f"{size / 1e9:.1f} GB"
