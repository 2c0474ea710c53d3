"""The options of a fleet as arguments: of `sluice fleet`, and of applications of Ray Serve."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, NoReturn

from sluice.config import ENGINE_GROUPS, ConfigError, flag
from sluice.config.arguments import add_fields, add_foreign_flags, add_options
from sluice.fleet.options import REFUSED, FleetOptions


def add_fleet_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `sluice fleet`."""
    add_fields(parser.add_argument_group("fleet"), FleetOptions)
    for group in ("server", *ENGINE_GROUPS):
        add_options(parser, group, hidden=REFUSED)
    add_foreign_flags(parser)


def given_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an application, which may be texts, with the types that they have.

    Raises:
        ConfigError: an option that there is not, or a bad value.
    """
    parser = _Parser(allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--model", "--model-path", dest="model")
    add_fleet_arguments(parser)
    words: list[str] = []
    for name, value in args.items():
        match str(value).lower() if isinstance(value, bool | str) else value:
            case "true":
                words.append(flag(name))
            case "false":
                words.append(f"--no-{flag(name).removeprefix('--')}")
            case _:
                words.append(f"{flag(name)}={value}")
    return vars(parser.parse_args(words))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)
