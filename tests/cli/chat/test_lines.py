"""Messages as they are typed, and the history of them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from sluice.cli.chat.lines import MOST_KEPT, History, reader
from sluice.cli.chat.message import Entered, message_of

PASTE, PASTED = "\x1b[200~", "\x1b[201~"
"""What a terminal sends before and after a paste."""
UP, LEFT, DELETE = "\x1b[A", "\x1b[D", "\x7f"


def entered(keys: str, kept: History | None = None) -> str:
    """What is read when these keys are pressed, which must all be used."""
    with create_pipe_input() as source, create_app_session(input=source, output=DummyOutput()):
        source.send_text(keys)
        message = reader(kept or History(None), ("/clear", "/stats"))()
        assert not source.read_keys(), "keys were left"
        return message


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("Hello\r", Entered("Hello", False)),
        ("/stats\r", Entered("/stats", True)),
        ("/st\t\r", Entered("/stats", True)),
        (" /usr is a folder\r", Entered(" /usr is a folder", False)),
        ("one\\\rtwo\\\r\r", Entered("one\ntwo\n", False)),
        ('"""\rone\r\r  two"""\r', Entered("one\n\n  two", False)),
        ('"""one"""\r', Entered("one", False)),
        ('"""/clear\r"""\r', Entered("/clear", False)),
        ("/system You are\\\rbrief.\r", Entered("/system You are\nbrief.", False)),
        (f"{PASTE}a pasted line\nand another{PASTED}\r", Entered("a pasted line\nand another", False)),
        (f"{PASTE}make \\\n  all{PASTED}\r", Entered("make \\\n  all", False)),
        (f"one\\\rtwo{UP}{DELETE}\r", Entered("on\ntwo", False)),
    ],
)
def test_a_message_may_have_several_lines(keys: str, message: Entered) -> None:
    """Each line of a message became a message of its own, or a pasted path a command."""
    assert message_of(entered(keys)) == message


@pytest.mark.parametrize(("key", "error"), [("\x04", EOFError), ("half\x03", KeyboardInterrupt)])
def test_keys_that_leave(key: str, error: type[BaseException]) -> None:
    with pytest.raises(error):
        entered(key)


def test_the_arrow_keys_bring_messages_back(tmp_path: Path) -> None:
    """A message of two lines came back as two."""
    kept = History(tmp_path / "history")
    for keys in ("one\\\rtwo\r", "three\r", "three\r"):
        entered(keys, kept)
    kept.save()
    assert entered(f"{UP}\r", History(tmp_path / "history")) == "three"
    assert entered(f"{UP}{UP}\r", History(tmp_path / "history")) == "one\ntwo"


def test_the_history_comes_back(tmp_path: Path) -> None:
    """A message of two lines came back as two, or the file was open to every user of the machine."""
    path = tmp_path / "state" / "history"
    first = History(path)
    for text in ("one\ntwo", "three", "fünf"):
        first.append_string(text)
    assert first.save() is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = History(path)
    assert second._kept == ["one\ntwo", "three", "fünf"]
    for number in range(MOST_KEPT):
        second.append_string(str(number))
    second.save()
    assert len(History(path)._kept) == MOST_KEPT


def test_a_history_that_cannot_be_used_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"\xff\n")
    assert History(tmp_path / "broken")._kept == []
    (tmp_path / "file").touch()
    lost = History(tmp_path / "file" / "history")
    lost.append_string("one")
    assert "cannot be written" in str(lost.save())
