"""Compiles and renders one chat template: the process that `ChatTemplate` starts.

Each frame on its standard input is answered by one on its standard output. Jinja's sandbox keeps the template from
reaching Python; the kernel ends a process that exceeds its time, and gives it no more than its memory.

The template and its special tokens come from the checkpoint, never from a request. Templates follow Hugging Face's
conventions: blocks are trimmed, and `raise_exception`, `strftime_now`, `tojson`, `{% generation %}` and loop controls
are available.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sluice.text.chat_template import OUT_OF_MEMORY, SIZE, Load, Refused, Rendered


class Renderer:
    """A compiled template and its special tokens.

    Raises:
        Exception: the template cannot be compiled.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = special_tokens
        self._template = _environment().from_string(source)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt for the next assistant message.

        Raises:
            Exception: the template refuses these messages, or does not work with them.
        """
        return self._template.render(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **self._special_tokens,
        )


class _Generation(Extension):
    """Accepts `{% generation %}`, which marks the assistant's text for training and has no effect here."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it like this)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,  # a constant that is costly to compute may never be needed
        extensions=[_Generation, loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    del environment.globals["lipsum"]
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON; jinja2's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def main() -> None:
    """Answer frames until the standard input ends."""
    source, sink = open(0, "rb"), open(1, "wb")  # noqa: SIM115  (open until the process ends)
    load = msgspec.msgpack.decode(_frame(source), type=Load)
    _limit(load.memory_mb)
    _begin_timing(load.seconds)
    try:
        renderer = Renderer(load.source, load.special_tokens)
    except Exception as error:
        _send(sink, msgspec.msgpack.encode(_refusal(error)))
        return
    _send(sink, msgspec.msgpack.encode(Rendered("")))
    decoder = msgspec.msgpack.Decoder(list[dict[str, str]])
    while True:
        frame = _frame(source)
        _begin_timing(load.seconds)
        try:
            answer = msgspec.msgpack.encode(Rendered(renderer.render(decoder.decode(frame))))
        except Exception as error:
            answer = msgspec.msgpack.encode(_refusal(error))
        _send(sink, answer)


def _begin_timing(seconds: float) -> None:
    """Let the kernel end this process after so much processor time from now."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _refusal(error: Exception) -> Refused:
    """Return the answer to a frame with which the template fails.

    Raises:
        MemoryError: it fails for lack of memory.
    """
    if isinstance(error, MemoryError):
        raise error
    reason = str(error) or type(error).__name__
    return Refused(reason.encode(errors="backslashreplace").decode())


def _frame(source: BinaryIO) -> bytes:
    """Return the next frame; end the process if there is none."""
    (size,) = SIZE.unpack(_bytes(source, SIZE.size))
    return _bytes(source, size)


def _bytes(source: BinaryIO, size: int) -> bytes:
    received = source.read(size)
    if len(received) < size:
        sys.exit()
    return received


def _send(sink: BinaryIO, answer: bytes) -> None:
    sink.write(SIZE.pack(len(answer)))
    sink.write(answer)
    sink.flush()


def _limit(memory_mb: int) -> None:
    """Limit the memory of this process to so much more than it has, and let `_begin_timing` end it."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        most = used + memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    try:
        main()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)  # not later: what is left of the memory may be in pieces
