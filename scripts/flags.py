"""Write `docs/flags.md` from the options in `sluice.config`: `python scripts/flags.py` (part of `make format`).

A test compares the file with the output of this script, so that every flag is documented.
"""

from __future__ import annotations

from dataclasses import Field, fields
from pathlib import Path

from sluice.config import GROUPS, SWITCHES, Option, flag

PAGE = Path(__file__).parents[1] / "docs" / "flags.md"

INTRO = """\
# Flags

<!-- Written by scripts/flags.py from src/sluice/config: change it there, then run `make format`. -->

`sluice serve` takes all of these; `sluice generate` and `LLM(...)` take all but those of the server, `LLM` with
underscores for dashes. To turn a flag off, put `--no-` before its name. `sluice explain` with the same flags shows
the value of every option and the reason for it, without loading a model. `GET /server_info` shows them for a running
server.

You can set any option alone: the options that you do not set adapt to it. Values and combinations that cannot work
are refused at the start, with the name of the option.

The columns *SGLang* and *vLLM* give the flag of those engines for the same thing. Sluice accepts the names in the
column *also accepted* too.
"""


def page() -> str:
    """Return the whole document."""
    return "\n".join([INTRO, *(section(group) for group in ("server", *(name for name in GROUPS if name != "server")))])


def section(group: str) -> str:
    rows = [row(item) for item in fields(GROUPS[group])]
    head = ["flag", "default", "meaning", "SGLang", "vLLM", "also accepted"]
    lines = [f"## {group.capitalize()}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *rows]) + "\n"


def row(item: Field[object]) -> str:
    """Return an option as a line of its group's table."""
    option: Option = item.metadata["option"]
    cells = [
        "`MODEL`" if item.name == "model" else code(flag(item.name)),
        default_of(item, option),
        meaning_of(option),
        code(option.sglang),
        code(option.vllm),
        ", ".join(code(name) for name in also_accepted(item.name, option)),
    ]
    return f"| {' | '.join(cells)} |"


def default_of(item: Field[object], option: Option) -> str:
    if option.unset:
        return option.unset
    if isinstance(item.default, bool):
        return "on" if item.default else "off"
    return code(str(item.default))


def meaning_of(option: Option) -> str:
    """Return the help, more details, and the choices unless the help lists them."""
    sentences = [f"{option.help[0].upper()}{option.help[1:]}."]
    if option.choices and option.choices[0] not in option.help:
        sentences.append(f"One of {', '.join(code(choice) for choice in option.choices)}.")
    return " ".join([*sentences, option.more]).strip()


def also_accepted(name: str, option: Option) -> list[str]:
    switches = [
        f"{flag(switch_name)} ({show(switch.on)})" for switch_name, switch in SWITCHES.items() if switch.option == name
    ]
    return [*(flag(alias) for alias in option.aliases), *switches]


def show(value: str | bool) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def code(text: str) -> str:
    """Return a name in code style; a remark in parentheses stays plain."""
    name, space, rest = text.partition(" ")
    return f"`{name}`{space}{rest}" if text else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
