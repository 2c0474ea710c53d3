"""The options as arguments of a command line, with the flags of other engines."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from sluice.config.base import Option, flag, options_of
from sluice.config.compat import FOREIGN, Fixed
from sluice.config.engine import GROUPS
from sluice.config.json_flag import JsonFlag

SUFFIXES: Mapping[str, int] = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def add_options(
    parser: argparse.ArgumentParser,
    group: str,
    own: Collection[str] = (),
    default: str | None = None,
    hidden: Collection[str] = (),
) -> None:
    """Add the flags of one group of `config`, but those that the command has itself. Aliases are not listed.

    Args:
        default: what holds for options that are left out, in words; None: the default of each.
        hidden: options that are not listed.
    """
    add_fields(parser.add_argument_group(group), GROUPS[group], {"model", *own}, default, hidden)


def add_fields(
    shown: argparse._ArgumentGroup,
    group: type,
    own: Collection[str] = (),
    default: str | None = None,
    hidden: Collection[str] = (),
) -> None:
    """Add the flags of one group of options, as `add_options`."""
    types = {item.name: str(item.type) for item in fields(group)}
    defaults = {item.name: item.default for item in fields(group)}
    for name, option in options_of(group):
        if name in own:
            continue
        settings = _settings(option, types[name], defaults[name])
        if default is not None:
            settings["help"] = f"{option.help} (default: {default})"
        if name in hidden:
            settings["help"] = argparse.SUPPRESS
        shorts = (option.short,) if option.short else ()
        shown.add_argument(flag(name), *shorts, dest=name, **settings)
        for alias in option.aliases:
            shown.add_argument(flag(alias), dest=name, **(settings | {"help": argparse.SUPPRESS}))


def add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of other engines that are no options here; they are not listed."""
    for name, foreign in FOREIGN.items():
        if isinstance(foreign, JsonFlag) or (isinstance(foreign, Fixed) and foreign.takes_value):
            shorts = (foreign.short,) if foreign.short else ()
            parser.add_argument(flag(name), *shorts, dest=name, help=argparse.SUPPRESS)
        else:
            parser.add_argument(flag(name), action=argparse.BooleanOptionalAction, help=argparse.SUPPRESS)


def _settings(option: Option, type_name: str, default: object) -> dict[str, Any]:
    settings: dict[str, Any] = {"help": help_of(option, default)}
    if "bool" in type_name:
        return settings | {"action": argparse.BooleanOptionalAction}
    if option.choices:
        one_of = f"{{{','.join(option.choices)}}}"
        return settings | {"metavar": one_of if option.metavar == "N" else option.metavar}
    if "tuple" in type_name:
        return settings | {"nargs": "+", "action": "extend", "metavar": option.metavar}
    kind = float if "float" in type_name else whole_number if "int" in type_name else str
    return settings | {"type": kind, "metavar": option.metavar}


def whole_number(text: str) -> int:
    """Return the integer that a text is; `64K` is 64 * 1024 and `64k` is 64 * 1000, likewise M and G.

    Raises:
        ValueError: it is no such number.
    """
    factor = SUFFIXES.get(text[-1:])
    return int(text) if factor is None else int(text[:-1]) * factor


# argparse names the type in its message.
whole_number.__name__ = "int"


def help_of(option: Option, default: object) -> str:
    return f"{option.help} (default: {option.unset or _show(default)})"


def _show(default: object) -> str:
    return {True: "on", False: "off"}[default] if isinstance(default, bool) else str(default)
