"""Compiles and renders one chat template: the process that `ChatTemplate` starts.

Each frame on its standard input is answered by one on its standard output. Jinja's sandbox keeps the template from
reaching Python; the kernel ends a process that exceeds its time, and gives it no more than its memory.

The template and its special tokens come from the checkpoint or the operator, never from a request. Templates follow
Hugging Face's conventions: blocks are trimmed, and `raise_exception`, `strftime_now`, `tojson`, `{% generation %}` and
loop controls are available.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sluice.text.chat_template import (
    DEFAULT,
    Message,
    Render,
    Rendered,
    RenderOptions,
    TemplateRefused,
    TemplateSetup,
)
from sluice.text.child_side import begin_timing, frame, limit, pipes, run, send
from sluice.text.special_text import SpecialText, texts_of, unused_characters


class Renderer:
    """A compiled template and its special tokens.

    Args:
        special_text: keeps text of messages from becoming special tokens; None: nothing does.

    Raises:
        Exception: the template cannot be compiled.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], special_text: SpecialText | None = None) -> None:
        self._special_tokens = special_tokens
        self._special_text = special_text
        self._template = _environment().from_string(source)

    def render(self, messages: Sequence[Message], options: RenderOptions = DEFAULT) -> str:
        """Return the prompt of a conversation, with spelled special tokens if its texts may hold some.

        Raises:
            Exception: the template refuses these messages, or does not work with them.
        """
        if not options.continue_final_message:
            return self._prompt(messages, options, lambda prompt: prompt)
        *others, last = messages
        cut = _Cut(messages, options.variables)
        return self._prompt([*others, {**last, "content": cut.marked(last["content"])}], options, cut.applied)

    def _prompt(self, messages: Sequence[Message], options: RenderOptions, finish: Callable[[str], str]) -> str:
        """Return the prompt of a conversation; `finish` is applied before its special tokens are spelled."""
        special_text = self._special_text
        marks = None if special_text is None else special_text.marks_for(messages, options.variables)
        if special_text is None or marks is None:
            return finish(self._rendered(messages, options.variables, options))
        try:
            marked = special_text.marked(messages, marks), special_text.marked_variables(options.variables, marks)
            prompt = finish(self._rendered(*marked, options))
        except jinja2.TemplateError as error:
            raise jinja2.TemplateError(marks.removed_from(str(error))) from error
        return special_text.spelled(prompt, marks)

    def _rendered(self, messages: Sequence[Message], variables: Mapping[str, Any], options: RenderOptions) -> str:
        messages = [_with_arguments(message) for message in messages]
        own = {"messages": messages, "add_generation_prompt": options.add_generation_prompt}
        return self._template.render({"tools": None, "documents": None, **variables, **own, **self._special_tokens})


class _Arguments(dict[str, Any]):
    """The arguments of a call: an object, and where a template takes them for a text, its JSON.

    Most templates write the object as JSON or go through it; those of DeepSeek V3 append it to a text.
    """

    def __str__(self) -> str:
        return _tojson(self)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


def _with_arguments(message: Message) -> Message:
    """Return a message whose calls have their arguments in both forms."""
    if not message.get("tool_calls"):
        return message
    calls = [_with_both_forms(call) for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def _with_both_forms(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
        return call
    return {**call, "function": {**function, "arguments": _Arguments(function["arguments"])}}


class _Cut:
    """Ends a prompt where the content of its last message ends, by a character that the conversation does not use.

    A space after the character shows whether the template trims the content; then the end of the prompt is trimmed.
    """

    def __init__(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> None:
        texts = [*texts_of([*messages, variables])]
        self._mark = next(unused_characters(set().union(*texts), texts))

    def marked(self, content: str) -> str:
        return f"{content}{self._mark} "

    def applied(self, prompt: str) -> str:
        """Return the prompt up to the mark.

        Raises:
            TemplateError: the template leaves the content out.
        """
        before, mark, after = prompt.rpartition(self._mark)
        if not mark:
            raise jinja2.TemplateError("it leaves out the content of the final message, which is to be continued")
        return before if after.startswith(" ") else before.rstrip()


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
    return datetime.now().strftime(pattern)  # noqa: DTZ005 - without a time zone, as transformers does it


def main() -> None:
    """Answer frames until the standard input ends."""
    source, sink = pipes()
    load = msgspec.msgpack.decode(frame(source), type=TemplateSetup)
    special_text = None if load.spellings is None else SpecialText(load.spellings)
    limit(load.memory_mb)
    begin_timing(load.seconds)
    try:
        renderer = Renderer(load.source, load.special_tokens, special_text)
    except Exception as error:  # noqa: BLE001 - templates may raise anything
        send(sink, msgspec.msgpack.encode(_refusal(error)))
        return
    send(sink, msgspec.msgpack.encode(Rendered("")))
    decoder = msgspec.msgpack.Decoder(Render)
    while True:
        question = frame(source)
        begin_timing(load.seconds)
        try:
            work = decoder.decode(question)
            answer = msgspec.msgpack.encode(Rendered(renderer.render(work.messages, work.options)))
        except Exception as error:  # noqa: BLE001 - templates may raise anything
            answer = msgspec.msgpack.encode(_refusal(error))
        send(sink, answer)


def _refusal(error: Exception) -> TemplateRefused:
    """Return the answer to a frame with which the template fails.

    Raises:
        MemoryError: it fails for lack of memory.
    """
    if isinstance(error, MemoryError):
        raise error
    reason = str(error) or type(error).__name__
    return TemplateRefused(reason.encode(errors="backslashreplace").decode())


if __name__ == "__main__":
    run(main)
