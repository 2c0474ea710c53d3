"""argparse as Sluice uses it: errors in one line, wide help, and what several commands take."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NoReturn

from sluice.config import GROUPS, flag, options_of
from sluice.config.arguments import help_of
from sluice.version import DISTRIBUTION, VERSION

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
HELP_WIDTH = 110
SAMPLING_OPTIONS: Mapping[str, tuple[type, str, str]] = {
    "max_tokens": (int, "N", "maximum number of tokens to generate (default: {})"),
    "temperature": (float, "X", "sampling temperature; 0: greedy (default: the model's, or 1.0)"),
    "top_p": (
        float,
        "X",
        "sample from the most likely tokens whose probabilities add up to this (default: the model's, or 1.0)",
    ),
    "top_k": (int, "N", "sample from this many most likely tokens; 0: off (default: the model's, or 0)"),
    "min_p": (
        float,
        "X",
        "leave out tokens less likely than this fraction of the most likely (default: the model's, or 0)",
    ),
    "seed": (int, "N", "random seed; the same seed gives the same text (default: a new one each time)"),
}


class Parser(argparse.ArgumentParser):
    """argparse, with errors in one line, which name the flag that an unknown one is close to."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def parse_known_args(
        self, args: Any = None, namespace: Any = None
    ) -> Any:  # as argparse's: commands come here, too
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            close = get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown


class HelpFormatter(argparse.HelpFormatter):
    """Wide enough that a command's help fits on a screen."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=40, width=HELP_WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """A flag that can be on or off as --[no-]flag."""
        if isinstance(action, argparse.BooleanOptionalAction):
            return f"--[no-]{action.option_strings[0].removeprefix('--')}"
        return super()._format_action_invocation(action)


class ShowVersion(argparse.Action):
    """Looks up the version when it is shown: that takes longer than the rest of a `--help`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from sluice_namesakes import warning

        print(f"sluice {VERSION} ({DISTRIBUTION})")
        if (line := warning()) is not None:
            print(line, file=sys.stderr)
        parser.exit()


def add_command(
    commands: Any, name: str, help: str, run: Any, *, of_model: str | None = None
) -> argparse.ArgumentParser:
    """Add a command that takes a model.

    Args:
        of_model: help of the model; None: that of the option.
    """
    parser = add_plain_command(commands, name, help, f"sluice {name} [MODEL] [options]", run)
    model = dict(options_of(GROUPS["model"]))["model"]
    parser.add_argument("model", nargs="?", metavar="MODEL", help=of_model or help_of(model, None))
    # Apart from the positional argument, so that two models are refused.
    parser.add_argument("--model", "--model-path", dest="model_path", help=argparse.SUPPRESS)
    return parser


def add_plain_command(commands: Any, name: str, help: str, usage: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        formatter_class=HelpFormatter,
        usage=usage,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.set_defaults(run=run)
    return parser


def add_sampling_arguments(group: argparse._ArgumentGroup, max_tokens: str) -> None:
    """Add the flags of sampling.

    Args:
        max_tokens: the default of --max-tokens, in words.
    """
    for name, (kind, metavar, help) in SAMPLING_OPTIONS.items():
        group.add_argument(flag(name), type=kind, metavar=metavar, help=help.format(max_tokens))
    group.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; may be repeated")
