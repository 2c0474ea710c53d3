"""Runs an engine that is a library in a child process, which answers each line of JSON with a line."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from benchmarks.peers.environment import ROOT, SetupError
from benchmarks.peers.peer import Command
from sluice.bench import BenchError

STOP_SECONDS = 30.0
Ask = Callable[[Mapping[str, Any]], int]


@contextmanager
def child(command: Command, first: Mapping[str, Any]) -> Iterator[Ask]:
    """Start the process, send it the first line, and wait until it answers. It ends when it reads no more.

    Returns:
        A function that sends a line and returns the number that the child answers. It raises BenchError if the child
        has ended.

    Raises:
        SetupError: the child ends before its first answer; it printed why.
    """
    process = subprocess.Popen(
        command.arguments,
        cwd=ROOT,
        env=os.environ | command.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    source, sink = process.stdout, process.stdin

    def ask(line: Mapping[str, Any]) -> int:
        if (answer := _answer(sink, source, line)) is None:
            raise BenchError(f"the engine's process ended with {process.wait()}")
        return answer

    try:
        if _answer(sink, source, first) is None:
            raise SetupError(f"the engine's process ended with {process.wait()}")
        yield ask
    finally:
        _stop(process)


def _answer(sink: IO[str], source: IO[str], line: Mapping[str, Any]) -> int | None:
    """Return the answer to a line; None if the process has ended."""
    try:
        sink.write(json.dumps(line) + "\n")
        sink.flush()
    except BrokenPipeError:
        return None
    answer = source.readline()
    return int(answer) if answer else None


def _stop(process: subprocess.Popen[str]) -> None:
    try:
        process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
