"""The documentation of the flags is that of the flags."""

from __future__ import annotations

from dataclasses import fields

import flags
from sluice.config import GROUPS, Option, flag


def test_the_page_is_up_to_date() -> None:
    """Run `make format` if this fails: an option was added or changed."""
    assert flags.PAGE.read_text(encoding="utf-8") == flags.page()


def test_every_option_is_on_the_page_with_its_default() -> None:
    rows = {line.split("|")[1].strip(): line for line in flags.page().splitlines() if line.startswith("| `")}
    for group in GROUPS.values():
        for item in fields(group):
            option: Option = item.metadata["option"]
            name = "`MODEL`" if item.name == "model" else f"`{flag(item.name)}`"
            assert item.default is not None or option.unset, f"{item.name}: None needs an explanation in `unset`"
            assert (option.unset or str(item.default) in rows[name]) or isinstance(item.default, bool)
            assert all(flag(alias) in rows[name] for alias in option.aliases)


def test_names_of_the_other_engines_are_flags() -> None:
    for group in GROUPS.values():
        for item in fields(group):
            option: Option = item.metadata["option"]
            for name in (option.sglang, option.vllm):
                assert name in ("", "MODEL") or name.startswith("--"), f"{item.name}: {name}"
