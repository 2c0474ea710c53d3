"""Why an answer cannot be constrained as it was asked for."""

from __future__ import annotations


class ConstraintError(ValueError):
    """A schema, a regular expression, a choice or a grammar cannot be used. The message names the place.

    Args:
        place: the field that holds it, as a path; empty if it is unknown.
    """

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}" if place else reason)
        self.place = place
        self.reason = reason
