"""Classes of priority: how soon a request is to have its first token, and how long its stream may stand still."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

ClassName = Literal["interactive", "standard", "batch"]
Priority = int | str
"""What a request asks for: a number where requests are ordered by priority, a class where they are by deadline."""
CLASS_NAMES: tuple[ClassName, ...] = get_args(ClassName)
"""From the most urgent class to the least."""
DEFAULT_CLASS: ClassName = "standard"
"""The class of requests that name none."""


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """The targets of the requests of a class, in microseconds."""

    name: str
    ttft_target: int
    """From a request's arrival to its first token."""
    itl_target: int = 0
    """What its stream may stand still in a step; 0: what the scheduler's own target is."""
