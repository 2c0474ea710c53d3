"""The value of `--priority-classes`: the targets of each class, as text.

    interactive:ttft=500ms,batch:ttft=1h:itl=8x

Classes that it leaves out, and targets, have their defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from sluice.config.base import ConfigError, micros_of
from sluice.types import CLASS_NAMES, PriorityClass

FLAG = "--priority-classes"
FORM = "NAME:ttft=TIME, with :itl=TIME behind it or :itl=4x for 4 times --itl-target, and commas between classes"
TTFT: Mapping[str, str] = {"interactive": "1s", "standard": "10s", "batch": "10m"}
ITL: Mapping[str, str] = {"interactive": "1x", "standard": "1x", "batch": "4x"}
"""Default targets. Those of ITL count where the scheduler's is a time."""
TIMES = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)x")


def default_classes(itl_target: int) -> str:
    """Return the default classes as text.

    Args:
        itl_target: microseconds of the scheduler's; 0: it has none; below 0: it follows the time of decodes.
    """
    itl = {name: f":itl={ITL[name]}" if itl_target > 0 and ITL[name] != "1x" else "" for name in CLASS_NAMES}
    return ",".join(f"{name}:ttft={TTFT[name]}{itl[name]}" for name in CLASS_NAMES)


def classes_of(text: str | None, itl_target: int) -> tuple[PriorityClass, ...]:
    """Return the classes, from the most urgent to the least.

    Args:
        text: None is the default.
        itl_target: microseconds of the scheduler's; 0: it has none, and classes have none either; below 0: it
            follows the time of decodes, and classes have only what they are given.

    Raises:
        ConfigError: it is not of the form, a class is unknown or there twice, a target cannot be kept, or a class is to
            be sooner than a more urgent one.
    """
    found = {
        name: PriorityClass(name, _micros(TTFT[name]), _itl_of(ITL[name], name, itl_target) if itl_target > 0 else 0)
        for name in CLASS_NAMES
    }
    given: set[str] = set()
    for part in () if text is None else text.split(","):
        name, *settings = part.strip().split(":")
        if name not in found:
            raise ConfigError(f"{FLAG}: classes are {', '.join(CLASS_NAMES)}, got {name!r}; the form is {FORM}")
        if name in given or not settings:
            why = "is given twice" if name in given else "has no target"
            raise ConfigError(f"{FLAG}: the class {name} {why}; the form is {FORM}")
        given.add(name)
        found[name] = _changed(found[name], settings, itl_target)
    classes = tuple(found.values())
    for one, other in pairwise(classes):
        if one.ttft_target > other.ttft_target:
            raise ConfigError(
                f"{FLAG}: the TTFT target of {one.name}, {one.ttft_target / 1e6:g} s, must not be longer than that of"
                f" {other.name}, {other.ttft_target / 1e6:g} s"
            )
    return classes


def _changed(one: PriorityClass, settings: list[str], itl_target: int) -> PriorityClass:
    """Return a class with the targets that its settings give."""
    for setting in settings:
        key, _, value = setting.partition("=")
        if key == "ttft":
            one = replace(one, ttft_target=_micros(value, f"the TTFT target of {one.name}"))
        elif key == "itl":
            if not itl_target:
                raise ConfigError(f"{FLAG}: itl={value} of {one.name} needs a target (--itl-target TIME)")
            one = replace(one, itl_target=_itl_of(value, one.name, itl_target))
        else:
            raise ConfigError(f"{FLAG}: a target of {one.name} is ttft or itl, got {setting!r}; the form is {FORM}")
    return one


def _itl_of(value: str, name: str, itl_target: int) -> int:
    """Return an ITL target in microseconds."""
    times = TIMES.fullmatch(value)
    what = f"the ITL target of {name}"
    if times and itl_target < 0:
        raise ConfigError(f"{FLAG}: {what} must be a time beside an --itl-target that follows decodes, got {value!r}")
    micros = round(float(times[1]) * itl_target) if times else _micros(value, what, ", or a multiple such as 4x")
    if micros < itl_target:
        raise ConfigError(f"{FLAG}: {what}, {value}, is below --itl-target, {itl_target / 1e6:g} s")
    return micros


def _micros(value: str, what: str = "", more: str = "") -> int:
    micros = micros_of(value)
    if micros is None:
        raise ConfigError(f"{FLAG}: {what} must be a time such as 500ms, 10s or 1h{more}, got {value!r}")
    return micros
