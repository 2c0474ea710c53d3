"""The sizes of a checkpoint that recalls exactly, and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from benchmarks.exact_recall.golay import CODE_LENGTH, MAX_CODES

BOS, EOS = 0, 1
"""Every prompt starts with BOS. EOS is the answer if there is nothing to recall. All other ids are words."""
ROPE_THETA = 1e30
SLOW_RADIANS = 0.3
"""Most radians that a slow pair turns over all positions. Codes on slow pairs match at any distance."""
FAST_RADIANS = 0.5
"""Fewest radians that a pair turns to help distinguish distances."""
MAX_POSITIONS = 1 << 24
"""Largest position that float32 represents exactly: other engines compute angles in float32."""


class ShapeError(ValueError):
    """The construction cannot have these sizes."""


@dataclass(frozen=True, slots=True)
class RecallShape:
    """Sizes of the two layers.

    Raises:
        ShapeError: a size is out of its range. The message names size, value and range.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    previous: int
    """Number of last tokens that form the key."""
    vocab_size: int = 256
    max_positions: int = 1 << 20

    def __post_init__(self) -> None:
        room = (self.hidden_size - 2) // CODE_LENGTH - 2
        positions, slow = self.max_positions, len(self.slow_pairs)
        _require(self.previous >= 1, "previous", self.previous, "at least 1")
        _require(self.previous <= room, "previous", self.previous, f"at most {room} in {self.hidden_size} dimensions")
        _require(
            self.previous <= self.num_heads, "previous", self.previous, f"at most the {self.num_heads} heads: one each"
        )
        _require(
            self.num_heads % self.num_kv_heads == 0,
            "num_heads",
            self.num_heads,
            f"a multiple of num_kv_heads = {self.num_kv_heads}",
        )
        _require(self.head_dim % 2 == 0, "head_dim", self.head_dim, "even")
        _require(3 <= self.vocab_size <= MAX_CODES, "vocab_size", self.vocab_size, f"from 3 to {MAX_CODES}")
        _require(2 <= positions <= MAX_POSITIONS, "max_positions", positions, f"from 2 to {MAX_POSITIONS}")
        _require(
            self.match_pairs < slow,
            "previous",
            self.previous,
            f"at most {2 * (slow - 1) // CODE_LENGTH}: of {self.head_dim // 2} rotary pairs {slow} turn less than"
            f" {SLOW_RADIANS} radians over {positions} positions, and each token of the key takes"
            f" {CODE_LENGTH // 2}, and nothing found 1",
        )

    @property
    def frequencies(self) -> npt.NDArray[np.float64]:
        """Radians per position of each rotary pair, [head_dim / 2], in descending order."""
        return ROPE_THETA ** (-np.arange(0, self.head_dim, 2) / self.head_dim)

    @property
    def fast_pairs(self) -> npt.NDArray[np.intp]:
        """Indices of the pairs that distinguish distances."""
        return np.flatnonzero(self.frequencies * self.max_positions > FAST_RADIANS)

    @property
    def slow_pairs(self) -> npt.NDArray[np.intp]:
        """Indices of the slow pairs."""
        return np.flatnonzero(self.frequencies * self.max_positions < SLOW_RADIANS)

    @property
    def match_pairs(self) -> int:
        """Number of pairs that the codes of a key take."""
        return self.previous * CODE_LENGTH // 2


def _require(ok: bool, name: str, value: int, accepted: str) -> None:
    if not ok:
        raise ShapeError(f"{name} must be {accepted}, got {value}")


SHAPES: Mapping[str, RecallShape] = MappingProxyType(
    {
        "small": RecallShape(hidden_size=128, num_heads=2, num_kv_heads=1, head_dim=64, previous=2),
        "middle": RecallShape(hidden_size=256, num_heads=2, num_kv_heads=1, head_dim=128, previous=2),
        "gqa": RecallShape(hidden_size=512, num_heads=4, num_kv_heads=2, head_dim=128, previous=4),
    }
)
