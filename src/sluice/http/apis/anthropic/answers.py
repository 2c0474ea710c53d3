"""Answers in Anthropic's form: a message, or a stream of the events that make it up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sluice.http.apis.anthropic.fields import MessagesFields
from sluice.http.base.framing import Framing
from sluice.http.base.progress import Progress
from sluice.http.base.routes import EVENT_STREAM
from sluice.http.call.blocks import Block, Change, Kind, Step
from sluice.http.call.generate_call import GenerateCall
from sluice.http.call.generation import Generation, Usage
from sluice.http.call.parsed_answer import ParsedAnswer
from sluice.text.parsers.json_text import object_of
from sluice.text.text_stream import Piece
from sluice.types import FinishReason

FRAMING = Framing(EVENT_STREAM, b"data: ", b"\n\n", b"", lambda error: [error.anthropic_body()], names_events=True)
DELTAS: Mapping[Kind, tuple[str, str]] = {
    Kind.TEXT: ("text_delta", "text"),
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.CALL: ("input_json_delta", "partial_json"),
}
"""The type of a delta of each kind of block, and the field with what it adds."""


class AnthropicAnswer:
    """The answer to `POST /v1/messages`."""

    framing = FRAMING

    def __init__(self, call: GenerateCall[MessagesFields], generation: Generation) -> None:
        self._call = call
        self._generation = generation
        self._parsed = ParsedAnswer(generation.parser())

    def opening(self, index: int) -> Iterator[dict[str, Any]]:
        yield {"type": "message_start", "message": self._message([], None, self._generation.usage())}
        yield {"type": "ping"}

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterator[dict[str, Any]]:
        for _, piece in arrived:
            yield from map(_event, self._parsed.push(piece))

    def waiting(self, progress: Progress | None) -> Iterator[dict[str, Any]]:
        yield {"type": "ping"}

    def closing(self, usage: Usage) -> Iterator[dict[str, Any]]:
        reason, stop = self._end()
        delta = {"stop_reason": reason, "stop_sequence": stop}
        yield {"type": "message_delta", "delta": delta, "usage": usage_of(usage)}
        yield {"type": "message_stop"}

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> dict[str, Any]:
        for _ in self._parsed.push_all(choices[0]):
            pass
        content = [content_of(block) for block in self._parsed.blocks.all]
        return self._message(content, self._end(), usage)

    def _message(self, content: list[Any], end: tuple[str, str | None] | None, usage: Usage) -> dict[str, Any]:
        reason, stop = end or (None, None)
        return {
            "id": f"msg_{self._generation.id}",
            "type": "message",
            "role": "assistant",
            "model": self._generation.service.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage_of(usage),
        }

    def _end(self) -> tuple[str, str | None]:
        """Return why the answer ended, and the stop string that ended it."""
        (choice,) = self._generation.choices
        asked, given = self._call.sampling.max_tokens, choice.request.sampling.max_tokens
        if self._parsed.finish_reason is FinishReason.LENGTH:
            return ("max_tokens" if given == asked else "model_context_window_exceeded"), None
        if choice.text.stop_string is not None:
            return "stop_sequence", choice.text.stop_string
        # A call that went wrong is not to be made.
        calls = [block for block in self._parsed.blocks.all if block.kind is Kind.CALL]
        return ("tool_use" if calls and all(call.is_complete for call in calls) else "end_turn"), None


def usage_of(usage: Usage) -> dict[str, int]:
    """Return the tokens of a call as Anthropic counts them: those of the prompt without the cached ones."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached.total,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached.total,
        "output_tokens": usage.completion_tokens,
    }


def _event(change: Change) -> dict[str, Any]:
    block = change.block
    match change.step:
        case Step.BEGAN:
            return {"type": "content_block_start", "index": block.index, "content_block": _empty(block)}
        case Step.GREW:
            kind, field = DELTAS[block.kind]
            return {"type": "content_block_delta", "index": block.index, "delta": {"type": kind, field: change.text}}
    return {"type": "content_block_stop", "index": block.index}


def _empty(block: Block) -> dict[str, Any]:
    """Return a block without what its deltas add."""
    match block.kind:
        case Kind.TEXT:
            return {"type": "text", "text": ""}
        case Kind.REASONING:
            return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}


def content_of(block: Block) -> dict[str, Any]:
    """Return a whole block. The input of a call that was cut off or went wrong is empty: its JSON is no object."""
    match block.kind:
        case Kind.TEXT:
            return _empty(block) | {"text": block.text}
        case Kind.REASONING:
            return _empty(block) | {"thinking": block.text}
    return _empty(block) | {"input": (object_of(block.text) if block.is_complete else None) or {}}
