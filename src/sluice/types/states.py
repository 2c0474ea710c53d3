"""StateLimits: how steps are planned for a model whose layers have recurrent states."""

from __future__ import annotations

from typing import NamedTuple


class StateLimits(NamedTuple):
    """What a scheduler knows of the states of a model's layers."""

    block: int
    """Tokens between two places at which the anchor of a state may be."""
