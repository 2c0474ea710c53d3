"""Messages as they are typed, and the history of them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sluice.cli.chat.lines import MOST_KEPT, Entered, History, read_message


def entered(*lines: str) -> Entered:
    given = iter(lines)
    message = read_message(lambda prompt: next(given))
    assert next(given, None) is None, "lines were left"
    return message


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["Hello"], Entered("Hello", False)),
        (["/stats"], Entered("/stats", True)),
        ([" /usr is a folder"], Entered(" /usr is a folder", False)),
        (["one\\", "two\\", ""], Entered("one\ntwo\n", False)),
        (['"""', "one", "", '  two"""'], Entered("one\n\n  two", False)),
        (['"""one"""'], Entered("one", False)),
        (['"""/clear', '"""'], Entered("/clear", False)),
        (["/system You are\\", "brief."], Entered("/system You are\nbrief.", False)),
        (["a pasted line\nand another"], Entered("a pasted line\nand another", False)),
    ],
)
def test_a_message_may_have_several_lines(lines: list[str], message: Entered) -> None:
    """Each line of a message became a message of its own, or a pasted path a command."""
    assert entered(*lines) == message


def test_the_history_comes_back(tmp_path: Path) -> None:
    """A message of two lines came back as two, or the file was open to every user of the machine."""
    path = tmp_path / "state" / "history"
    first = History(path, ())
    for text in ("one\ntwo", "three", "three", "fünf"):
        first.add(text)
    assert first.save() is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = History(path, ())
    assert second._kept == ["one\ntwo", "three", "fünf"]
    for number in range(MOST_KEPT):
        second.add(str(number))
    second.save()
    assert len(History(path, ())._kept) == MOST_KEPT


def test_a_history_that_cannot_be_used_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"\xff\n")
    assert History(tmp_path / "broken", ())._kept == []
    (tmp_path / "file").touch()
    lost = History(tmp_path / "file" / "history", ())
    lost.add("one")
    assert "cannot be written" in str(lost.save())
