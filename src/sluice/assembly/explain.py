"""The effective value of every option and the reason for it, as `sluice explain` and `GET /server_info` show them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from sluice.config import ENGINE_GROUPS, GROUPS, EngineConfig, Option, ServerConfig, flag, options_of

HIDDEN = "(hidden)"
"""Shown in place of a secret."""
WHEN_LOADED = "when the model is loaded"
"""Ends the reason of a value that is not known before."""
LATER = "(later)"
"""Shown in place of such a value."""
Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Setting:
    """One option with its effective value."""

    group: str
    name: str
    value: Value
    """The value; None means no limit, or unknown before the model is loaded, as the reason says."""
    reason: str

    def as_json(self) -> dict[str, Value]:
        return {"value": self.value, "reason": self.reason, "group": self.group, "flag": flag(self.name)}


def explain(
    server: ServerConfig, engine: EngineConfig, reasons: Mapping[str, str], given: Collection[str]
) -> list[Setting]:
    """Return every option, in the order of the groups.

    Args:
        engine: resolved.
        reasons: of the values that were derived (`resolve.Resolution`).
        given: names of the options that the user set.
    """
    config = {group: getattr(engine, group) for group in ENGINE_GROUPS} | {"server": server}
    return [
        Setting(group, name, _shown(getattr(config[group], name), option), _reason(group, name, reasons, given))
        for group in ("server", *ENGINE_GROUPS)
        for name, option in options_of(GROUPS[group])
    ]


def _shown(value: Value, option: Option) -> Value:
    return HIDDEN if option.secret and value is not None else value


def _reason(group: str, name: str, reasons: Mapping[str, str], given: Collection[str]) -> str:
    if name in given:
        return f"you set it; {reasons[name]}" if name in reasons else "you set it"
    if name in reasons:
        return reasons[name]
    unset = dict(options_of(GROUPS[group]))[name].unset
    return f"default: {unset}" if unset else "default"


def table(settings: Collection[Setting]) -> str:
    """Return a table for a terminal: a block for each group, with option, value and reason."""
    rows = {setting: (flag(setting.name), _in_table(setting), setting.reason) for setting in settings}
    widths = [max(len(row[column]) for row in rows.values()) for column in (0, 1)]
    return "\n\n".join(
        "\n".join([f"{group}:", *(_line(rows[setting], widths) for setting in settings if setting.group == group)])
        for group in _in_order(setting.group for setting in settings)
    )


def _in_table(setting: Setting) -> str:
    return LATER if setting.value is None and WHEN_LOADED in setting.reason else show(setting.value)


def _line(row: tuple[str, str, str], widths: list[int]) -> str:
    name, value, reason = row
    return f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {reason}"


def show(value: Value) -> str:
    """Return a value as a person would write it."""
    if value in (None, ""):
        return "-"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _in_order(names: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(names))
