"""The sparse policies by the names of `--sparse-policy`, and their sizes in pages. It imports no torch."""

from __future__ import annotations

from typing import NamedTuple

from sluice.config import ConfigError

FULL = "full"
SINKS, RECENT = 64, 256
"""Tokens at the beginning and at the end that Quest always selects, in whole pages."""
FROM_LAYER = 2
"""First layer in which Quest selects: in the first two, weights are spread over many pages (Tang et al. 2024)."""


class WindowSizes(NamedTuple):
    """The sizes of `window:SINKS:RECENT`, in pages."""

    sinks: int
    recent: int


class QuestSizes(NamedTuple):
    """The sizes of `quest:BUDGET[:FROM_LAYER]`, in pages."""

    num_pages: int
    sinks: int
    recent: int
    from_layer: int


class Imported(NamedTuple):
    """A policy of one's own: what is called with the page size to make it."""

    module: str
    name: str


def sparse_sizes(policy: str, page_size: int) -> WindowSizes | QuestSizes | Imported | None:
    """Return the sizes of a sparse policy, or where it is imported from; None if it is `full`.

    Args:
        page_size: tokens of a page.

    Raises:
        ConfigError: it is no sparse policy, or a size is too small.
    """
    if policy == FULL:
        return None
    name, *rest = policy.split(":")
    if name == "import" and len(rest) == 2 and all(rest):
        return Imported(*rest)
    numbers = [int(each) for each in rest if each.isascii() and each.isdecimal()]
    if len(numbers) == len(rest):
        if name == "window" and len(numbers) == 2:
            return _window(policy, *(_pages(number, page_size) for number in numbers))
        if name == "quest" and len(numbers) in (1, 2):
            return _quest(policy, page_size, *numbers)
    raise ConfigError(
        f"--sparse-policy must be {FULL}, window:SINKS:RECENT or quest:BUDGET[:FROM_LAYER], in tokens, or"
        f" import:MODULE:NAME, got {policy!r}"
    )


def _window(policy: str, sinks: int, recent: int) -> WindowSizes:
    if not sinks + recent:
        raise ConfigError(f"--sparse-policy must keep some token, got {policy!r}")
    return WindowSizes(sinks, recent)


def _quest(policy: str, page_size: int, budget: int, from_layer: int = FROM_LAYER) -> QuestSizes:
    sinks, recent = _pages(SINKS, page_size), _pages(RECENT, page_size)
    least = (sinks + recent + 1) * page_size
    if budget < least:
        raise ConfigError(
            f"--sparse-policy must have a budget of {least} tokens at least: {sinks * page_size} at the beginning,"
            f" {recent * page_size} at the end and a page of {page_size}, got {policy!r}"
        )
    return QuestSizes(budget // page_size, sinks, recent, from_layer)


def refuse_late_layers(policy: str, from_layer: int, num_layers: int) -> None:
    """Raise ConfigError for a policy that begins behind the model's last layer.

    Args:
        from_layer: the first layer in which it selects.
    """
    if from_layer >= num_layers:
        raise ConfigError(
            f"--sparse-policy {policy} selects pages from layer {from_layer} on, but the model has layers 0 to"
            f" {num_layers - 1}; let it begin at one of these (quest:BUDGET:FROM_LAYER)"
        )


def _pages(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)
