"""Which layers of a decoder need keys and values of the latest positions alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.models.plan import LayerPlan


@dataclass(frozen=True, slots=True)
class WindowedLayers:
    """The layers whose queries see a window of the latest positions."""

    length: int
    """The largest of their windows: positions that a query sees at most, its own included."""
    are_windowed: tuple[bool, ...]
    """Whether all that read the keys and values of a layer see a window, for each layer that has some of its own."""


def windowed_layers(plans: Sequence[LayerPlan]) -> WindowedLayers | None:
    """Return the layers with a window; None: there are none."""
    owners = [number for number, plan in enumerate(plans) if plan.donor is None and plan.has_kv]
    readers: dict[int, list[int | None]] = {number: [] for number in owners}
    for number, plan in enumerate(plans):
        if plan.has_kv:
            readers[number if plan.donor is None else plan.donor].append(plan.window)
    are_windowed = tuple(None not in readers[number] for number in owners)
    lengths = [window for number in owners for window in readers[number] if None not in readers[number]]
    length = max((window for window in lengths if window is not None), default=None)
    return None if length is None else WindowedLayers(length, are_windowed)
