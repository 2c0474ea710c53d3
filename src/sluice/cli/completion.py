"""`sluice completion`: scripts with which bash, zsh and fish complete the command line, written from the parser.

A script is a table: nothing of Sluice runs when Tab is pressed. Flags that help does not list are left out.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.config import GROUPS, flag, options_of

FILES = ("FILE", "FOLDER", "PATH", "PREFIX", "MODEL")
"""What stands for a path, or for something that may be one, in help."""
OPTIONS: Mapping[str, tuple[str, ...]] = {
    flag(name): option.choices for group in GROUPS.values() for name, option in options_of(group)
}
"""Flag of an engine or a server -> its values. The parser does not know them: `config` checks them, with aliases."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of a command."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    values: tuple[str, ...]
    """Accepted values; empty: any."""
    takes_file: bool


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or one below it."""

    path: tuple[str, ...]
    help: str
    flags: tuple[Flag, ...]
    takes_file: bool
    """It has an argument that may be a path."""
    values: tuple[str, ...]
    """Accepted values of an argument that has a list of them."""
    commands: tuple[Command, ...]
    """Those below it."""

    @property
    def names(self) -> str:
        """What may follow it apart from flags: names of commands or values, separated by spaces."""
        return " ".join([*(each.path[-1] for each in self.commands), *self.values])

    def all(self) -> Iterator[Command]:
        """Yield this command and all below it."""
        yield self
        for each in self.commands:
            yield from each.all()


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `sluice completion`."""
    parser.add_argument("shell", choices=tuple(WRITERS), help="the shell")


def run_completion(given: Mapping[str, Any], parser: argparse.ArgumentParser) -> int:
    """Print the script for a shell. Returns the exit status."""
    print(WRITERS[given["shell"]](command_of(parser)), end="")
    return 0


def command_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = (), help: str = "") -> Command:
    """Return what a parser accepts."""
    flags: list[Flag] = []
    commands: list[Command] = []
    values: tuple[str, ...] = ()
    takes_file = False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            commands += [command_of(each, (*path, name), helps[name]) for name, each in action.choices.items()]
        elif action.option_strings:
            if action.help != argparse.SUPPRESS:
                flags.append(_flag(action))
        else:
            takes_file |= _stands_for_a_file(action)
            values += tuple(action.choices or ())
    return Command(path, help, tuple(flags), takes_file, values, tuple(commands))


def _flag(action: argparse.Action) -> Flag:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    listed = re.fullmatch(r"\{(.+)\}", metavar)
    own = action.choices or OPTIONS.get(action.option_strings[0], ())
    values = tuple(listed[1].split(",")) if listed else tuple(map(str, own))
    help = " ".join((action.help or "").replace("%%", "%").split())
    return Flag(tuple(action.option_strings), help, action.nargs != 0, values, _stands_for_a_file(action))


def _stands_for_a_file(action: argparse.Action) -> bool:
    return action.metavar in FILES


def bash(program: Command) -> str:
    """Return the script for bash."""
    values, words = [], []
    for command in program.all():
        path = " ".join(command.path)
        flags = " ".join(name for each in command.flags for name in each.names)
        files = "yes" if command.takes_file else "''"
        words.append(
            f"    {shlex.quote(path)}) flags={shlex.quote(flags)} names={shlex.quote(command.names)} files={files};;"
        )
        for option in command.flags:
            if option.takes_value:
                keys = "|".join(shlex.quote(f"{path} {name}") for name in option.names)
                values.append(f"    {keys}) {_bash_value(option)}; return;;")
    paths = "|".join(shlex.quote(" ".join(each.path)) for each in program.all() if each.path)
    newline = "\n"
    return f"""\
# Completion of sluice for bash, written by `sluice completion bash`.
_sluice_files() {{
  local IFS=$'\\n'
  COMPREPLY=($(compgen -f -- "$1"))
}}
_sluice() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" command="" word flags names files
  [[ $previous == "=" ]] && previous="${{COMP_WORDS[COMP_CWORD-2]}}"
  [[ $current == "=" ]] && current=""
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "${{command:+$command }}$word" in
      {paths}) command="${{command:+$command }}$word";;
    esac
  done
  case "$command $previous" in
{newline.join(values)}
  esac
  case "$command" in
{newline.join(words)}
  esac
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$current"))
  elif [[ -n $files ]]; then
    _sluice_files "$current"
  else
    COMPREPLY=($(compgen -W "$names" -- "$current"))
  fi
}}
complete -o filenames -F _sluice sluice
"""


def _bash_value(option: Flag) -> str:
    """Return the command that offers values of a flag."""
    if option.takes_file:
        return '_sluice_files "$current"'
    if option.values:
        return f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(option.values))} -- "$current"))'
    return "COMPREPLY=()"


def zsh(program: Command) -> str:
    """Return the script for zsh."""
    functions = "\n".join(_zsh_function(command) for command in program.all())
    return f"""\
#compdef sluice
# Completion of sluice for zsh, written by `sluice completion zsh`.
{functions}
if [[ $funcstack[1] == _sluice ]]; then _sluice "$@"; else compdef _sluice sluice; fi
"""


def _zsh_function(command: Command) -> str:
    name = "_".join(["_sluice", *command.path])
    specs = [_zsh_flag(each, option) for option in command.flags for each in option.names]
    if command.commands:
        specs += ["'1: :->command'", "'*:: :->rest'"]
    elif command.values:
        specs.append(_zsh_quoted(f"1:value:({' '.join(command.values)})"))
    elif command.takes_file:
        specs.append("'*:file:_files'")
    lines = [f"{name}() {{", "  local context state line", "  typeset -A opt_args"]
    lines += ["  _arguments -S -C \\", *(f"    {spec} \\" for spec in specs[:-1]), f"    {specs[-1]}"]
    if command.commands:
        listed = " ".join(_zsh_quoted(f"{_zsh_escaped(each.path[-1])}:{each.help}") for each in command.commands)
        cases = " ".join(f"{each.path[-1]}) {'_'.join(['_sluice', *each.path])};;" for each in command.commands)
        lines += [
            "  case $state in",
            f"    command) local -a commands=({listed}); _describe command commands;;",
            f"    rest) case $line[1] in {cases} esac;;",
            "  esac",
        ]
    return "\n".join([*lines, "}"])


def _zsh_flag(name: str, option: Flag) -> str:
    help = re.sub(r"([\[\]:\\])", r"\\\1", option.help)
    if not option.takes_value:
        return _zsh_quoted(f"{name}[{help}]")
    action = "_files" if option.takes_file else f"({' '.join(option.values)})" if option.values else ""
    return _zsh_quoted(f"{name}{'=' if name.startswith('--') else ''}[{help}]:value:{action}")


def _zsh_escaped(text: str) -> str:
    return text.replace(":", r"\:")


def _zsh_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def fish(program: Command) -> str:
    """Return the script for fish."""
    lines = ["# Completion of sluice for fish, written by `sluice completion fish`.", "complete -c sluice -f"]
    for command in program.all():
        below = " ".join(each.path[-1] for each in command.commands)
        seen = [f"__fish_seen_subcommand_from {name}" for name in command.path]
        here = "; and ".join([*seen, *([f"not __fish_seen_subcommand_from {below}"] if below else [])])
        condition = f" -n {_fish_quoted(here)}" if here else ""
        for each in command.commands:
            lines += [f"complete -c sluice{condition} -a {each.path[-1]} -d {_fish_quoted(each.help)}"]
        if command.values:
            lines.append(f"complete -c sluice{condition} -a {_fish_quoted(' '.join(command.values))}")
        if command.takes_file:
            lines.append(f"complete -c sluice{condition} -F")
        lines += [_fish_flag(each, condition) for each in command.flags]
    return "\n".join([*lines, ""])


def _fish_flag(option: Flag, condition: str) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
    takes = ""
    if option.takes_file:
        takes = " -r -F"
    elif option.takes_value:
        takes = f" -x -a {_fish_quoted(' '.join(option.values))}" if option.values else " -x"
    return f"complete -c sluice{condition} {names}{takes} -d {_fish_quoted(option.help)}"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


WRITERS: Mapping[str, Callable[[Command], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
