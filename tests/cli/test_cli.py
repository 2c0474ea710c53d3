"""The command line: what it accepts, what it says, how it ends."""

from __future__ import annotations

import io
import re
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from any_checkpoint import any_checkpoint
from random_checkpoint import random_checkpoint
from sluice import cli
from sluice.cli.chat.screen import CONTROL, harmless
from sluice.config import ENGINE_GROUPS, GROUPS, EngineConfig


def parsed(*arguments: str) -> dict[str, object]:
    given = vars(cli.build_parser().parse_args(arguments))
    given.pop("run")
    return given


def exit_status(*arguments: str) -> int:
    try:
        return cli.main(arguments)
    except SystemExit as end:
        return int(str(end.code))


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit status and the one line of a command that must fail."""
    status = exit_status(*arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return status, err


@pytest.mark.parametrize("command", ["serve", "generate", "explain"])
def test_every_option_is_a_flag(command: str) -> None:
    """An option that `config` gained and the command line did not."""
    text = next(
        action.choices[command].format_help()
        for action in cli.build_parser()._actions
        if isinstance(action.choices, dict) and command in action.choices
    )
    groups = (*ENGINE_GROUPS, *(["server"] if command != "generate" else []))
    for group in groups:
        assert f"\n{group}:\n" in text
        for item in fields(GROUPS[group]):
            shown = re.search(rf"--(\[no-\])?{item.name.replace('_', '-')}[ \n]", text)
            assert item.name == "model" or shown, item.name
    options = sum(len(fields(GROUPS[group])) for group in groups)
    assert len(text.splitlines()) <= options + 75, "the help must not be a book: a line says enough"
    assert max(map(len, text.splitlines())) <= 110


def test_flags_reach_the_config() -> None:
    given = parsed(
        *("serve", "some/model", "--max-num-seqs", "7", "--no-enable-prefix-caching", "--chunked-prefill-size", "-1"),
        *("--enable-mixed-chunk", "--dtype", "float64"),
    )
    config = EngineConfig.from_options(given)
    assert config.model.model == "some/model"
    assert config.model.dtype == "float64"
    assert config.scheduler.max_running_requests == 7
    assert config.scheduler.chunked_prefill_size == -1
    assert config.scheduler.schedule == "mixed"
    assert config.cache.enable_prefix_caching is False


def test_options_that_were_not_given_stay_open() -> None:
    """A default repeated by the parser would hide that the user left it open."""
    assert parsed("serve") == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--port", "x"], "--port: invalid int value: 'x'"),
        (["serve", "--port", "65536"], "--port must be from 0 to 65535, got 65536"),
        (["serve", "--dtype", "int4"], "--dtype must be one of auto, float64, float32, bfloat16, float16, got 'int4'"),
        (["serve", "--prot", "1"], "--prot"),
        (["serve", "--depth", "0"], "--depth must be at least 1, got 0"),
        (["serve", "--schedule", "prefill-first", "--enable-mixed-chunk"], "schedule"),
        (["generate"], "--prompt"),
        (["generate", "--prompt", ""], "--prompt must not be empty"),
        (["generate", "--prompt", "a", "--temperature", "-1"], "temperature must be"),
        (["generate", "--prompt", "a", "--max-tokens", "0"], "max_tokens must be"),
        (["sing"], "sing"),
        ([], "COMMAND"),
    ],
)
def test_a_wrong_command_line(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    status, message = failure(capsys, *arguments)
    assert status == 2
    assert said in message


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    """Found at once, not after minutes of loading."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, message = failure(capsys, "serve", "--port", str(port))
    assert status == 1
    assert f"cannot listen on 127.0.0.1:{port}" in message
    assert "in use; choose another" in message, "the address is repeated in the middle of the message"


def test_an_address_of_another_machine(capsys: pytest.CaptureFixture[str]) -> None:
    status, message = failure(capsys, "serve", "--host", "192.0.2.1", "--port", "0")
    assert (status, "192.0.2.1" in message) == (1, True)


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("generate", "--prompt", "a")])
def test_an_unknown_folder(command: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    name, *rest = command
    status = cli.main([name, str(tmp_path / "nothing"), *rest])
    out, err = capfd.readouterr()
    assert (status, out) == (1, "")
    assert err.startswith("sluice")
    assert "there is no file or folder" in err
    assert err.count("\n") == 1, err


@pytest.mark.parametrize("named", [(), ("--model",), ("--model-path",)])
def test_generate_streams_to_the_terminal(capsys: pytest.CaptureFixture[str], named: tuple[str, ...]) -> None:
    options = ["--max-tokens", "8", "--seed", "5", "--max-total-tokens", "256"]
    arguments = ["generate", *named, str(any_checkpoint()), "--prompt", "The water ", *options]
    assert cli.main(arguments) == 0
    first = capsys.readouterr()
    assert first.out.endswith("\n")
    assert len(first.out) > 4
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == first.out


class Display(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_generate_sends_no_commands_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a model writes cleared the screen; a model with random weights writes every character."""
    options = ["--max-tokens", "60", "--seed", "1", "--ignore-eos", "--max-total-tokens", "256"]
    arguments = ["generate", str(random_checkpoint(tmp_path)), "--prompt", "a", *options]
    assert cli.main(arguments) == 0
    piped = capsys.readouterr().out
    assert CONTROL.search(piped), "a pipe gets what the model wrote"
    display = Display()
    monkeypatch.setattr(sys, "stdout", display)
    assert cli.main(arguments) == 0
    assert display.getvalue() == harmless(piped)


def test_version_and_help_are_quick_and_load_nothing() -> None:
    """Waiting for torch just to see the list of flags."""
    program = (
        "import sys; from sluice.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'starlette', 'zmq', 'tokenizers', 'numpy', 'prompt_toolkit', 'shtab'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    for argument in (["--version"], ["--help"], ["serve", "--help"], ["generate", "--help"]):
        shown = subprocess.run([sys.executable, "-c", program, *argument], capture_output=True, text=True, check=True)
        assert shown.stdout.startswith(("sluice 0.", "usage: sluice"))
    command = [sys.executable, "-m", "sluice", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("sluice 0.")
