"""StateLimits: how steps are planned for a model whose layers have recurrent states."""

from __future__ import annotations

from math import lcm
from typing import NamedTuple


class StateLimits(NamedTuple):
    """What a scheduler knows of the states of a model's layers."""

    block: int
    """Tokens between two places at which the anchor of a state may be."""
    num_records: int = 0
    """Records that the device holds: copies of states behind cached prefixes."""
    spacing: int = 0
    """A long context gets a record every so many tokens, beside those where its prompt ends or parts from others; 0:
    none."""

    def grid(self, page_size: int) -> int:
        """Return the tokens between two places at which a record may be made: ends of pages where an anchor may be."""
        return lcm(self.block, page_size)
