"""Answers in the form of OpenAI's Responses API: a response, or a stream of the events that make it up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from sluice.http.apis.responses.fields import ResponseCall, response_head
from sluice.http.apis.responses.store import ResponseStore, StoredResponse
from sluice.http.apis.responses.text_tokens import TextTokens
from sluice.http.base.errors import ApiError
from sluice.http.base.framing import Framing
from sluice.http.base.progress import Progress
from sluice.http.base.routes import EVENT_STREAM
from sluice.http.base.turns import JsonList, Recorded
from sluice.http.call.blocks import Block, Change, Kind, Step
from sluice.http.call.generation import Generation, Usage
from sluice.http.call.logprobs import chat_logprobs
from sluice.http.call.parsed_answer import ParsedAnswer
from sluice.text.text_stream import Piece
from sluice.types import FinishReason

FRAMING = Framing(EVENT_STREAM, b"data: ", b"\n\n", b"", lambda error: [error.body()], names_events=True)
EVENTS: Mapping[Kind, str] = {
    Kind.TEXT: "response.output_text",
    Kind.REASONING: "response.reasoning_text",
    Kind.CALL: "response.function_call_arguments",
}
"""What the types of events begin with that tell of what a block holds."""
PREFIXES: Mapping[Kind, str] = {Kind.TEXT: "msg", Kind.REASONING: "rs", Kind.CALL: "fc"}
"""What the ids of items begin with."""
Event = dict[str, Any]


class ResponseAnswer:
    """The answer to `POST /v1/responses`. Each block of it is an item of its output."""

    def __init__(self, store: ResponseStore, call: ResponseCall, generation: Generation) -> None:
        self.framing = replace(FRAMING, failure=self._failure)
        self._call, self._generation, self._store = call, generation, store
        self._head = response_head(call, generation)
        self._parsed = ParsedAnswer(generation.parser())
        self._items: list[dict[str, Any]] = []
        """Those that are over."""
        self._has_logprobs = call.sampling.logprobs is not None
        self._tokens = TextTokens()
        self._logprobs: list[Any] | JsonList = []
        """Of the tokens of the present text."""
        self._num_events = 0

    def opening(self, index: int) -> Iterator[Event]:
        for status in ("created", "in_progress"):
            yield self._event(f"response.{status}", response=self._head)

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterator[Event]:
        for _, piece in arrived:
            for change, tokens in self._matched(piece):
                yield from self._changed(change, self._logprobs_of(tokens))

    def waiting(self, progress: Progress | None) -> list[Event]:
        return []

    def closing(self, usage: Usage) -> Iterator[Event]:
        yield from self._ending()
        response = self._ended(usage)
        if self._call.input is not None:
            self._stored(msgspec.json.encode(response))
        yield self._event(f"response.{response['status']}", response=response)

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> Any:
        if self._has_logprobs:  # each token must be told from the next
            self._read_scored(choices[0])
        else:
            for change in self._parsed.push_all(choices[0]):
                self._add_item(change, [])
        if not self._items:
            for change in self._parsed.blocks.add_empty_text():
                self._add_item(change, [])
        response = self._ended(usage)
        return response if self._call.input is None else Recorded(response, self._stored)

    def _matched(self, piece: Piece) -> Iterator[tuple[Change, list[Piece]]]:
        """Yield what a piece changes, each change with the scored tokens that a text grew by."""
        changes = self._parsed.push(piece)
        return self._tokens.match(piece, changes) if self._has_logprobs else ((change, []) for change in changes)

    def _read_scored(self, pieces: Sequence[Piece]) -> None:
        """Add the items of an answer, whose log-probabilities are spelled while they are written."""
        scored: list[Piece] = []
        for piece in pieces:
            for change, tokens in self._matched(piece):
                scored = [] if change.step is Step.BEGAN else scored
                scored += tokens
                self._add_item(change, scored)

    def _add_item(self, change: Change, scored: list[Piece]) -> None:
        """Add the item of a block that has ended, with the tokens of its text."""
        if change.step is Step.ENDED:
            made = chat_logprobs(self._generation.service.tokenizer, scored)
            self._logprobs = [] if made is None else made["content"]
            self._items.append(self._ended_item(change.block))

    def _ending(self) -> Iterator[Event]:
        """Yield the events of an empty text, if the answer has nothing else."""
        if not self._items:
            for change in self._parsed.blocks.add_empty_text():
                yield from self._changed(change, [])

    def _ended(self, usage: Usage) -> dict[str, Any]:
        """Return the whole response."""
        is_cut = self._parsed.finish_reason is FinishReason.LENGTH
        return self._head | {
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "completed_at": None if is_cut else self._now(),
            "output": self._items,
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached.total},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": self._parsed.reasoning_tokens},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        }

    def _stored(self, content: bytes) -> None:
        """Store the response, of which `content` is the JSON."""
        assert self._call.input is not None, "only a response that is to be stored is"
        self._store.put(self._head["id"], StoredResponse(self._call.owner, content, self._call.input))

    def _now(self) -> int:
        generation = self._generation
        return int(generation.created + generation.service.client.now() - generation.came_at)

    def _failure(self, error: ApiError) -> Iterator[Event]:
        """Yield the end of a response that failed. OpenAI's clients read no end without a beginning, which a response
        that failed behind a heartbeat has not had yet."""
        if self._num_events == 0:
            yield from self.opening(0)
        failed = {"status": "failed", "error": {"code": error.code or "server_error", "message": error.message}}
        yield self._event("response.failed", response=self._head | failed)

    def _event(self, kind: str, **content: Any) -> Event:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **content}

    def _logprobs_of(self, tokens: Sequence[Piece]) -> list[Any]:
        scored = (chat_logprobs(self._generation.service.tokenizer, [token]) for token in tokens)
        return [item for each in scored if each is not None for item in each["content"]]

    def _changed(self, change: Change, logprobs: list[Any]) -> Iterator[Event]:
        """Yield what a change of a block means, with the log-probabilities of what a text grew by."""
        block = change.block
        place: dict[str, Any] = {"item_id": self._id(block), "output_index": block.index}
        if block.kind is not Kind.CALL and change.step is not Step.BEGAN:
            place["content_index"] = 0
        match change.step:
            case Step.BEGAN:
                self._logprobs = []
                empty: dict[str, Any] = {"arguments": ""} if block.kind is Kind.CALL else {"content": []}
                item = self._item(block, "in_progress") | empty
                yield self._event("response.output_item.added", output_index=block.index, item=item)
                if block.kind is not Kind.CALL:
                    yield self._event("response.content_part.added", **place, content_index=0, part=self._part(block))
            case Step.GREW:
                assert isinstance(self._logprobs, list), "those of a stream are spelled as they come"
                self._logprobs += logprobs
                more = {"logprobs": logprobs} if block.kind is Kind.TEXT else {}
                yield self._event(f"{EVENTS[block.kind]}.delta", **place, delta=change.text, **more)
            case Step.ENDED:
                yield self._event(f"{EVENTS[block.kind]}.done", **place, **self._done(block))
                if block.kind is not Kind.CALL:
                    yield self._event("response.content_part.done", **place, part=self._part(block))
                item = self._ended_item(block)
                self._items.append(item)
                yield self._event("response.output_item.done", output_index=block.index, item=item)

    def _ended_item(self, block: Block) -> dict[str, Any]:
        return self._item(block, "completed" if block.is_complete else "incomplete")

    def _done(self, block: Block) -> dict[str, Any]:
        match block.kind:
            case Kind.CALL:
                return {"name": block.name, "arguments": block.text}
            case Kind.REASONING:
                return {"text": block.text}
        return {"text": block.text, "logprobs": self._logprobs}

    def _part(self, block: Block) -> dict[str, Any]:
        if block.kind is Kind.REASONING:
            return {"type": "reasoning_text", "text": block.text}
        return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": self._logprobs}

    def _id(self, block: Block) -> str:
        return f"{PREFIXES[block.kind]}_{self._generation.id}_{block.index}"

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        item = {"id": self._id(block), "status": status}
        match block.kind:
            case Kind.CALL:
                call = {"call_id": block.call_id, "name": block.name, "arguments": block.text}
                return {"type": "function_call", **item, **call}
            case Kind.REASONING:
                return {"type": "reasoning", **item, "summary": [], "content": [self._part(block)]}
        return {"type": "message", **item, "role": "assistant", "content": [self._part(block)]}
