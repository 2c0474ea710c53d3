"""Write `docs/flags.md` from the options in `sluice.config`: `python scripts/flags.py` (part of `make format`).

A test compares the file with the output of this script, so that every flag is documented.
"""

from __future__ import annotations

from dataclasses import Field, fields
from pathlib import Path

from sluice.config import FOREIGN, GROUPS, Fixed, Option, Switch, flag

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
column *also accepted* too. Whole numbers may end in `k`, `m` or `g` (thousands), or in `K`, `M` or `G` (1024).
"""
HEADINGS = {"kv_events": "KV events", "lora": "LoRA"}
FOREIGN_INTRO = """\
## Flags of other engines

Flags of vLLM and SGLang that are no options here. A value that asks for what Sluice does anyway is accepted; any other
is refused with what to do instead.
"""


def page() -> str:
    """Return the whole document."""
    groups = ["server", *(name for name in GROUPS if name != "server")]
    return "\n".join([INTRO, *map(section, groups), foreign_flags()])


def section(group: str) -> str:
    rows = [row(item) for item in fields(GROUPS[group])]
    head = ["flag", "default", "meaning", "SGLang", "vLLM", "also accepted"]
    lines = [f"## {HEADINGS.get(group, group.capitalize())}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
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
    return [*(flag(alias) for alias in option.aliases), *switches_of(name)]


def switches_of(name: str) -> list[str]:
    """Return the flags of other engines that set an option, each with the value that it sets."""
    found = []
    for foreign_name, foreign in FOREIGN.items():
        if isinstance(foreign, Switch) and foreign.option == name:
            if foreign.on is None:
                found.append(f"--no-{flag(foreign_name)[2:]} ({show(foreign.off)})")
            else:
                found.append(f"{flag(foreign_name)} ({show(foreign.on)})")
    return found


def foreign_flags() -> str:
    """Return the table of flags that are no options."""
    rows = [
        f"| {code(flag(name))} | {', '.join(code(str(value).lower()) for value in item.accepted)} | {item.otherwise} |"
        for name, item in FOREIGN.items()
        if isinstance(item, Fixed)
    ]
    return "\n".join([FOREIGN_INTRO, "| flag | accepted | otherwise |", "|---|---|---|", *rows]) + "\n"


def show(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def code(text: str) -> str:
    """Return a name in code style; a remark in parentheses stays plain."""
    name, space, rest = text.partition(" ")
    return f"`{name}`{space}{rest}" if text else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
