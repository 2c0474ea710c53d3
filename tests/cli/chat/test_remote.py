"""Conversations with a server, by the command line and in a pseudo-terminal."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import free_port
from scripted_chat import echo, say
from serve_process import PATIENCE
from sluice import cli
from sse_server import Call, ScriptedServer, scripted_in_a_thread


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_in_a_thread(echo) as server:
        yield server


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SLUICE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def piped(monkeypatch: pytest.MonkeyPatch, text: str, *arguments: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return cli.main(["chat", *arguments])


def test_a_message_from_a_pipe(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of the environment")
    options = ("--url", f"{server.url}/v1/", "--system", "Be brief.", "--temperature", "0", "--stop", "x")
    assert piped(monkeypatch, "Hello,\nyou\n", *options) == 0
    assert capsys.readouterr() == ("You said <Hello,\nyou>.\n", "")
    (call,) = server.calls
    assert call.path == "/v1/chat/completions"
    assert call.headers["authorization"] == "Bearer of the environment"
    assert call.body["model"] == "toy"
    assert call.body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (call.body["temperature"], call.body["stop"]) == (0, ["x"])
    assert "top_p" not in call.body, "the server has defaults of its own"


def test_the_key_of_the_command_line_goes_first(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_API_KEY", "other")
    assert piped(monkeypatch, "Hello", "toy", "--url", server.url, "--api-key", "mine") == 0
    assert server.calls[0].headers["authorization"] == "Bearer mine"


def test_openais_key_is_not_sent_over_plain_http(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An address that is not that of the loopback interface, although it leads there."""
    url = server.url.replace("127.0.0.1", "0.0.0.0")
    monkeypatch.setenv("OPENAI_API_KEY", "of OpenAI")
    assert piped(monkeypatch, "Hello", "--url", url) == 0
    assert "authorization" not in server.calls[0].headers
    assert capsys.readouterr().err.startswith("sluice chat: OPENAI_API_KEY is not sent to 0.0.0.0 over plain HTTP")
    assert piped(monkeypatch, "Hello", "--url", url, "--api-key", "mine") == 0
    assert server.calls[1].headers["authorization"] == "Bearer mine"
    assert "over plain HTTP: others may read it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--url", "localhost:8000"], 2, "--url must be like http://localhost:8000, got 'localhost:8000'"),
        (["--url", "http://me:secret@here"], 2, "must not hold a user or a password"),
        (["--url", "http://here", "--dtype", "float32"], 2, "--dtype is of an engine in this process"),
        (["--api-key", "x"], 2, "--api-key is for --url"),
        (["--temperature", "-1"], 2, "temperature must be"),
        (["--url", f"http://127.0.0.1:{free_port()}"], 1, "is the server running?"),
    ],
)
def test_a_command_line_that_cannot_work(
    arguments: list[str], status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert piped(monkeypatch, "Hello", *arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sluice chat: error: ")
    assert said in err
    assert err.count("\n") == 1
    assert "secret" not in err


def test_several_models(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.models = {"data": [{"id": "one"}, {"id": "two"}]}
    assert piped(monkeypatch, "Hello", "--url", server.url) == 1
    assert "'one', 'two'; name one" in capsys.readouterr().err
    assert piped(monkeypatch, "Hello", "three", "--url", server.url) == 1
    assert "has no model 'three'" in capsys.readouterr().err
    assert piped(monkeypatch, "Hello", "two", "--url", server.url) == 0
    assert server.calls[0].body["model"] == "two"


def test_adapters_beside_the_only_model(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with adapters lists several names, and a user who names none means the model."""
    server.models = {"data": [{"id": "one"}, {"id": "sql", "parent": "one"}]}
    assert piped(monkeypatch, "Hello", "--url", server.url) == 0
    assert server.calls[0].body["model"] == "one"


async def refuse(call: Call) -> None:
    call.chunked = False
    await call.head(400, "application/json")
    await call.raw(b'{"error": {"message": "the prompt is too long"}}')


async def break_off(call: Call) -> None:
    await call.head()
    await say(call, "half")


async def fail_midway(call: Call) -> None:
    await call.head()
    await say(call, "half")
    await call.event({"error": {"message": "out of order"}})


async def babble(call: Call) -> None:
    await call.head()
    await call.event("no JSON")


async def send_commands(call: Call) -> None:
    await call.head()
    await say(call, "a\x1b[2Jb", finish="stop")
    await call.end(completion_tokens=2)


async def refuse_with_commands(call: Call) -> None:
    call.chunked = False
    await call.head(400, "application/json")
    await call.raw(rb'{"error": {"message": "no\u001b[2J\u009b1m way"}}')


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (refuse, "the prompt is too long (HTTP 400)"),
        (break_off, "the connection"),
        (fail_midway, "out of order"),
        (babble, "no event of a streamed chat"),
    ],
)
def test_a_server_in_trouble(
    handler: object, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer that breaks off looked like a whole one."""
    with scripted_in_a_thread(handler) as server:  # type: ignore[arg-type]
        assert piped(monkeypatch, "Hello", "--url", server.url) == 1
    assert said in capsys.readouterr().err


class Display(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_an_answer_to_a_pipe_sends_no_commands_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """`printf Hello | sluice chat` cleared the screen if the model said so."""
    display = Display()
    monkeypatch.setattr(sys, "stdout", display)
    with scripted_in_a_thread(send_commands) as server:
        assert piped(monkeypatch, "Hello", "--url", server.url) == 0
    assert display.getvalue() == "a\ufffd[2Jb\n", "the answer alone"


def test_an_error_sends_no_commands_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_in_a_thread(refuse_with_commands) as server:
        assert piped(monkeypatch, "Hello", "--url", server.url) == 1
    assert capsys.readouterr().err == "sluice chat: error: no\ufffd[2J\ufffd1m way (HTTP 400)\n"


PROGRAM = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("sluice", run_name="__main__", alter_sys=True)
"""
"""`python -m sluice`, which heeds SIGINT although its parents may not: a shell lets its background ignore it."""


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process = process
        self._end = end
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C at the prompt. What had come before is dropped."""
        while select.select([self._end], [], [], 0)[0]:
            os.read(self._end, 65536)
        self.type("\x03")

    def until(self, text: str) -> str:
        """Return what came up to a text."""
        while text not in self._seen:
            ready, _, _ = select.select([self._end], [], [], PATIENCE)
            assert ready, f"{text!r} does not come: {self._seen!r}"
            try:
                data = os.read(self._end, 65536)
            except OSError:
                data = b""
            assert data, f"the program ended: {self._seen!r}"
            self._seen += data.decode()
        before, _, self._seen = self._seen.partition(text)
        return before

    def ended(self) -> int:
        return self.process.wait(PATIENCE)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, "chat", *arguments]
    environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    with process:
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            os.close(ours)


def test_a_conversation_in_a_terminal(server: ScriptedServer, tmp_path: Path) -> None:
    with terminal("--url", server.url) as screen:
        assert f"toy, at {server.url}" in screen.until(">>>")
        screen.type("Hello\n")
        screen.until("You said <Hello>.")
        screen.until("[6 tokens, ")
        screen.until("prompt 7]")
        screen.type("please go on\n")
        screen.until("You said <please go on>")
        screen.process.send_signal(signal.SIGINT)
        screen.until("[stopped; ")
        screen.until(">>>")
        screen.type('"""two\n')
        screen.until("...")
        screen.type('lines"""\n')
        screen.until("You said <two")
        screen.until("lines>")
        screen.until(">>>")
        screen.type("/exit\n")
        assert screen.ended() == 0
    said = [message["content"] for message in server.calls[2].body["messages"]]
    assert said == ["Hello", "You said <Hello>.", "please go on", "You said <please go on>", "two\nlines"]
    kept = (tmp_path / "state/sluice/chat_history").read_text().splitlines()
    assert [json.loads(line) for line in kept[-2:]] == ['"""two\nlines"""', "/exit"]


def test_a_wait_is_shown_and_removed() -> None:
    """A server that reads a long prompt looked like one that hangs."""
    shown = threading.Event()

    async def late(call: Call) -> None:
        await call.head()
        await asyncio.to_thread(shown.wait, PATIENCE)
        await say(call, "At last", finish="stop")
        await call.end(completion_tokens=2)

    with scripted_in_a_thread(late) as server, terminal("--url", server.url, "--no-history") as screen:
        screen.until(">>>")
        screen.type("Hello\n")
        screen.until("waiting for the answer: ")
        shown.set()
        assert screen.until("At last").endswith("\r\x1b[K"), "the line stays before the answer"
        screen.until(">>>")


def test_a_second_interrupt_leaves(server: ScriptedServer, tmp_path: Path) -> None:
    """Ctrl-C, twice, at the prompt and while an answer streams."""
    with terminal("--url", server.url, "--no-history") as screen:
        screen.until(">>>")
        screen.interrupt()
        screen.until("Ctrl-C again leaves")
        screen.until(">>>")
        screen.interrupt()
        assert screen.ended() == 130
    assert not (tmp_path / "state").exists()
