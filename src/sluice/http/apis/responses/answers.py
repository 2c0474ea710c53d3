"""Answers in the form of OpenAI's Responses API: a response, or a stream of the events that make it up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from sluice.http.apis.responses import types
from sluice.http.apis.responses.fields import ResponseCall
from sluice.http.apis.responses.store import ResponseStore, StoredResponse
from sluice.http.apis.responses.text_tokens import TextTokens
from sluice.http.apis.responses.tools import INPUT, flat_name, tools_json
from sluice.http.apis.responses.types import OutputItem, OutputText, ReasoningText, ResponseEvent, ResponseObject
from sluice.http.base.errors import ApiError
from sluice.http.base.framing import Framing
from sluice.http.base.progress import Progress
from sluice.http.base.routes import EVENT_STREAM
from sluice.http.base.turns import Recorded
from sluice.http.call.blocks import Block, BlockReader, Change, Kind, Step
from sluice.http.call.generation import Generation, Usage
from sluice.http.call.logprobs import ChatToken, chat_logprobs
from sluice.text.parsers.argument_types import object_of
from sluice.text.parsers.tools import Tool
from sluice.text.text_stream import Piece
from sluice.types import FinishReason

FRAMING = Framing(EVENT_STREAM, b"data: ", b"\n\n", b"", lambda error: [error.body()], names_events=True)
E = TypeVar("E", bound=ResponseEvent)
PREFIXES: Mapping[Kind, str] = {Kind.TEXT: "msg", Kind.REASONING: "rs", Kind.CALL: "fc"}
"""What the ids of items begin with."""
PREFIX_OF_CUSTOM = "ctc"


class ResponseAnswer:
    """The answer to `POST /v1/responses`. Each block of it is an item of its output."""

    def __init__(self, store: ResponseStore, call: ResponseCall, generation: Generation) -> None:
        self.framing = replace(FRAMING, failure=self._failure)
        self._call, self._generation, self._store = call, generation, store
        self._head = response_head(call, generation)
        self._reader = BlockReader(generation.parser())
        self._items: list[OutputItem] = []
        """Items that have ended."""
        self._has_logprobs = call.sampling.logprobs is not None
        self._tokens = TextTokens()
        self._logprobs: list[ChatToken] = []
        """Log-probabilities of the tokens of the current text."""
        self._num_events = 0

    def opening(self, index: int) -> Iterator[ResponseEvent]:
        for kind in (types.Created, types.InProgress):
            yield self._event(kind, response=self._head)

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterator[ResponseEvent]:
        for _, piece in arrived:
            for change, tokens in self._matched(piece):
                yield from self._changed(change, self._logprobs_of(tokens))

    def waiting(self, progress: Progress | None) -> list[ResponseEvent]:
        return []

    def closing(self, usage: Usage) -> Iterator[ResponseEvent]:
        yield from self._ending()
        response = self._ended(usage)
        if self._call.input is not None:
            self._stored(msgspec.json.encode(response))
        kind = types.Completed if response.status == "completed" else types.Incomplete
        yield self._event(kind, response=response)

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> Any:
        if self._has_logprobs:  # each token must be told from the next
            self._read_scored(choices[0])
        else:
            for change in self._reader.push_all(choices[0]):
                self._add_item(change, [])
        if not self._items:
            for change in self._reader.blocks.add_empty_text():
                self._add_item(change, [])
        response = self._ended(usage)
        return response if self._call.input is None else Recorded(response, self._stored)

    def _matched(self, piece: Piece) -> Iterator[tuple[Change, list[Piece]]]:
        """Yield what a piece changes, each change with the scored tokens that a text grew by."""
        changes = self._reader.push(piece)
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
            self._logprobs = [] if made is None else made.content
            self._items.append(self._ended_item(change.block))

    def _ending(self) -> Iterator[ResponseEvent]:
        """Yield the events of an empty text, if the answer has nothing else."""
        if not self._items:
            for change in self._reader.blocks.add_empty_text():
                yield from self._changed(change, [])

    def _ended(self, usage: Usage) -> ResponseObject:
        """Return the whole response."""
        is_cut = self._reader.finish_reason is FinishReason.LENGTH
        is_whole = not (is_cut or self._reader.has_half_call)
        return msgspec.structs.replace(
            self._head,
            status="completed" if is_whole else "incomplete",
            incomplete_details=types.IncompleteDetails("max_output_tokens") if is_cut else None,
            completed_at=self._now() if is_whole else None,
            output=self._items,
            usage=types.ResponseUsage(
                input_tokens=usage.prompt_tokens,
                input_tokens_details=types.InputTokensDetails(usage.cached.total),
                output_tokens=usage.completion_tokens,
                output_tokens_details=types.OutputTokensDetails(usage.reasoning_tokens),
                total_tokens=usage.prompt_tokens + usage.completion_tokens,
            ),
        )

    def _stored(self, content: bytes) -> None:
        """Store the response, of which `content` is the JSON."""
        assert self._call.input is not None, "only a response that is to be stored is"
        self._store.put(self._head.id, StoredResponse(self._call.owner, content, self._call.input))

    def _now(self) -> int:
        generation = self._generation
        return int(generation.created + generation.service.client.now() - generation.came_at)

    def _failure(self, error: ApiError) -> Iterator[ResponseEvent]:
        """Yield the end of a response that failed. OpenAI's clients read no end without a beginning, which a response
        that failed behind a heartbeat has not had yet, unless its client has it from the stream that it continues."""
        last = self._generation.settled.last_event
        if last is not None:
            self._num_events = max(self._num_events, last.number)
        if self._num_events == 0:
            yield from self.opening(0)
        failed = types.ResponseError(error.code or "server_error", error.message)
        yield self._event(types.Failed, response=msgspec.structs.replace(self._head, status="failed", error=failed))

    def _event(self, kind: type[E], **content: Any) -> E:
        self._num_events += 1
        return kind(sequence_number=self._num_events - 1, **content)

    def _logprobs_of(self, tokens: Sequence[Piece]) -> list[ChatToken]:
        scored = (chat_logprobs(self._generation.service.tokenizer, [token]) for token in tokens)
        return [item for each in scored if each is not None for item in each.content]

    def _changed(self, change: Change, logprobs: list[ChatToken]) -> Iterator[ResponseEvent]:
        """Yield what a change of a block means, with the log-probabilities of what a text grew by."""
        block = change.block
        index, in_item = block.index, {"item_id": self._id(block), "output_index": block.index}
        match change.step:
            case Step.BEGAN:
                self._logprobs = []
                yield self._event(types.ItemAdded, output_index=index, item=self._begun_item(block))
                if block.kind is not Kind.CALL:
                    yield self._event(types.PartAdded, **in_item, content_index=0, part=self._part(block))
            case Step.GREW if self._is_custom(block):
                pass  # its input is known when its JSON is whole
            case Step.GREW:
                self._logprobs += logprobs
                yield self._grown(block.kind, in_item, change.text, logprobs)
            case Step.ENDED:
                item = self._ended_item(block)
                self._items.append(item)
                if isinstance(item, types.CustomCallItem):
                    yield self._event(types.InputDelta, **in_item, delta=item.input)
                yield self._done(block, in_item)
                if block.kind is not Kind.CALL:
                    yield self._event(types.PartDone, **in_item, content_index=0, part=self._part(block))
                yield self._event(types.ItemDone, output_index=index, item=item)

    def _grown(self, kind: Kind, in_item: dict[str, Any], text: str, logprobs: list[ChatToken]) -> ResponseEvent:
        match kind:
            case Kind.CALL:
                return self._event(types.ArgumentsDelta, **in_item, delta=text)
            case Kind.REASONING:
                return self._event(types.ReasoningDelta, **in_item, content_index=0, delta=text)
        return self._event(types.TextDelta, **in_item, content_index=0, delta=text, logprobs=logprobs)

    def _done(self, block: Block, in_item: dict[str, Any]) -> ResponseEvent:
        match block.kind:
            case Kind.CALL if self._is_custom(block):
                return self._event(types.InputDone, **in_item, input=_input_of(block))
            case Kind.CALL:
                name = self._tool(block).name.removeprefix(self._prefix(block))
                return self._event(types.ArgumentsDone, **in_item, name=name, arguments=block.text)
            case Kind.REASONING:
                return self._event(types.ReasoningDone, **in_item, content_index=0, text=block.text)
        logprobs = self._logprobs
        return self._event(types.TextDone, **in_item, content_index=0, text=block.text, logprobs=logprobs)

    def _part(self, block: Block) -> OutputText | ReasoningText:
        if block.kind is Kind.REASONING:
            return ReasoningText(block.text)
        return OutputText(block.text, [], self._logprobs)

    def _id(self, block: Block) -> str:
        prefix = PREFIX_OF_CUSTOM if self._is_custom(block) else PREFIXES[block.kind]
        return f"{prefix}_{self._generation.id}_{block.index}"

    def _tool(self, block: Block) -> Tool:
        """Return the tool that a call names: the parser calls no other."""
        assert self._call.tools is not None, "there are calls of tools"
        return next(tool for tool in self._call.tools.tools if tool.name == block.name)

    def _is_custom(self, block: Block) -> bool:
        return block.kind is Kind.CALL and self._tool(block).is_custom

    def _prefix(self, block: Block) -> str:
        return flat_name(self._tool(block).namespace, "")

    def _begun_item(self, block: Block) -> OutputItem:
        """Return an item without what it holds, which the next events bring."""
        item = self._item(block, "in_progress")
        if isinstance(item, types.CustomCallItem):
            item.input = ""
        elif not isinstance(item, types.FunctionCallItem):
            item.content = []
        return item

    def _ended_item(self, block: Block) -> OutputItem:
        return self._item(block, "completed" if block.is_complete else "incomplete")

    def _item(self, block: Block, status: types.Status) -> OutputItem:
        id = self._id(block)
        match block.kind:
            case Kind.CALL:
                tool = self._tool(block)
                name, namespace = tool.name.removeprefix(self._prefix(block)), tool.namespace or UNSET
                if tool.is_custom:
                    return types.CustomCallItem(id, status, block.call_id, name, _input_of(block), namespace)
                return types.FunctionCallItem(id, status, block.call_id, name, block.text, namespace)
            case Kind.REASONING:
                return types.ReasoningItem(id, status, [], [ReasoningText(block.text)])
        return types.OutputMessage(id, status, "assistant", [OutputText(block.text, [], self._logprobs)])


def _input_of(block: Block) -> str:
    """Return the text that a custom tool gets; what is no such call, as the model wrote it."""
    found = object_of(block.text)
    return str(found[INPUT]) if found is not None and INPUT in found else block.text


def response_head(call: ResponseCall, generation: Generation) -> ResponseObject:
    """Return a response that has just begun: what it repeats of the call, and nothing generated."""
    fields, sampling = call.fields, generation.settled.sampling
    return ResponseObject(
        id=f"resp_{generation.id}",
        object="response",
        created_at=generation.created,
        completed_at=None,
        status="in_progress",
        background=False,
        error=None,
        incomplete_details=None,
        instructions=fields.instructions,
        max_output_tokens=sampling.max_tokens,
        metadata=fields.metadata,
        model=generation.model,
        output=[],
        parallel_tool_calls=fields.parallel_tool_calls,
        previous_response_id=fields.previous_response_id,
        reasoning=types.ReasoningSettings(fields.reasoning.effort, fields.reasoning.summary),
        store=call.input is not None,
        temperature=sampling.temperature,
        text=types.TextSettings(fields.text.format or {"type": "text"}, fields.text.verbosity),
        tool_choice=fields.tool_choice,
        tools=tools_json(fields.tools),
        top_logprobs=fields.top_logprobs,
        top_p=sampling.top_p,
        truncation="disabled",
        usage=None,
        user=fields.user,
    )
