"""`sluice completion`: scripts with which bash, zsh and fish complete the command line. shtab writes them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import Any

from sluice.config import GROUPS, flag, options_of

SHELLS = ("bash", "zsh", "fish")
FILES = ("FILE", "FOLDER", "PATH", "PREFIX", "MODEL")
"""What stands for a path, or for something that may be one, in help."""
OPTIONS: Mapping[str, tuple[str, ...]] = {
    flag(name): option.choices for group in GROUPS.values() for name, option in options_of(group)
}
"""Flag of an engine or a server -> its values. The parser does not know them: `config` checks them, with aliases."""
BASH = """
# To bash, --flag=value is three words.
_sluice() {
  local words=() word at=0 current=$COMP_CWORD
  for word in "${COMP_WORDS[@]}"; do
    if [[ $word != "=" ]]; then words+=("$word")
    elif ((at == COMP_CWORD)); then words+=("")
    elif ((at < COMP_CWORD)); then current=$((current - 1)); fi
    at=$((at + 1))
  done
  COMP_WORDS=("${words[@]}") COMP_CWORD=$current
  _shtab_sluice
}
complete -o bashdefault -F _sluice sluice"""


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `sluice completion`."""
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run_completion(given: Mapping[str, Any], parser: argparse.ArgumentParser) -> int:
    """Print the script for a shell. Returns the exit status."""
    import shtab

    _describe_values(parser, shtab.FILE)
    print(shtab.complete(parser, given["shell"]) + (BASH if given["shell"] == "bash" else ""))
    return 0


def _describe_values(parser: argparse.ArgumentParser, file: Mapping[str, Any]) -> None:
    """Tell a parser, which parses nothing any more, the values of its flags, and which of them are paths."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _describe_values(below, file)
        elif action.metavar in FILES:
            action.complete = file  # type: ignore[attr-defined]
        elif action.choices is None:
            listed = re.fullmatch(r"\{(.+)\}", str(action.metavar))
            action.choices = listed[1].split(",") if listed else OPTIONS.get("".join(action.option_strings[:1])) or None
