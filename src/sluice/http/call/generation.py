"""One HTTP call at the engine: prompts in, pieces of text out, tokens counted.

A call is a request for each sample of each prompt. They share an inbox, and each is one choice of the answer.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from sluice.http.base.backend import Service
from sluice.http.base.errors import ApiError, bad_request, no_tier, unavailable
from sluice.http.base.progress import Progress, together
from sluice.http.base.turns import Turns
from sluice.http.call.event_ids import EventId, EventIds
from sluice.http.call.generate_call import Conversation, GenerateCall, Settled
from sluice.http.call.samples import samples
from sluice.process.client import EngineGone, Inbox
from sluice.text.constraints.shapes import Shape
from sluice.text.detokenizer import Detokenizer
from sluice.text.parsers.parsing import AnswerParser, TextOnly
from sluice.text.parsers.tools import NO_TOOLS
from sluice.text.text_stream import Piece, TextStream
from sluice.types import CachedTokens, Drafted, FinishReason, Output, Submit, TokenLogprobs

MAX_OPEN = 1 << 16
"""Requests of all calls together, running and waiting; each takes a few kB here and at the engine."""
PROMPT_END = 256
"""Tokens at the end of a prompt within which the last message is looked for: what the template wrote behind it shows
whether it begins the reasoning of the answer."""
LAST_TOKENS = 16
"""Tokens at the end of a prompt that are looked at where the last message is not found."""
MESSAGE_END = 64
"""Characters at the end of the last message that are looked for."""
BEFORE_MESSAGE = 32
"""Characters before a message that is continued, in which the template may begin its reasoning."""
AT_ONCE = 16
"""Choices that are prepared, or submitted, in one turn: 3 ms. So many tokens of a prompt count as one more:"""
TOKENS_AS_ONE = 4096

NO_DRAFTS = Drafted()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call: each prompt once for any `n`; the outputs of all choices together."""

    prompt_tokens: int
    cached: CachedTokens
    completion_tokens: int
    reasoning_tokens: int = 0
    """Tokens of the outputs that precede the answers."""
    drafted: Drafted = NO_DRAFTS
    """Tokens that were guessed; those that were right are among them."""


@dataclass(slots=True)
class Choice:
    """One sample of one prompt, as far as it has been received."""

    request: Submit
    text: TextStream
    """Decodes the tokens. Of the samples of one prompt, only the first receives the prompt's log-probabilities."""
    parser: AnswerParser
    """Makes events of the text."""
    embedding: bytes = b""
    """Embedding of a call that embeds (`Output.embedding`)."""

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.request.prompt

    @property
    def cached(self) -> CachedTokens:
        return self.text.cached


class Generation:
    """One call. Inside the `with` its requests may be submitted; leaving it ends them, at the engine too.

    Choices are numbered prompt by prompt, the samples of one next to each other. A call of many choices is prepared and
    submitted in parts, each in a turn of its own.

    Args:
        settled: what the server adds to the call.
        turns: of the event loop.
        came_at: when the call came, in the client's seconds.
        created: when it came, in Unix seconds.
    """

    def __init__(
        self, service: Service, call: GenerateCall[Any], settled: Settled, turns: Turns, *, came_at: float, created: int
    ) -> None:
        last = settled.last_event
        self.id = secrets.token_hex(12) if last is None else last.call
        self.service = service
        self.settled = settled
        self.came_at, self.created = came_at, created if last is None else last.created
        self.choices: list[Choice] = []
        self._client = service.client
        self._call = call
        self._turns = turns
        self.shows_progress = call.include_progress
        """The client asks how far its prompts are read."""
        self._inbox: Inbox | None = None
        self._index: dict[int, int] = {}
        self._num_ended = 0
        self.submitted_at: float | None = None
        """When its first request was given to the engine, in the client's seconds."""
        self.began_at: float | None = None
        """When its first token arrived."""

    @property
    def model(self) -> str:
        """The name that answers have: of the adapter, or of the model."""
        return self.service.model if self.settled.adapter is None else self.settled.adapter.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._inbox is not None:
            self._inbox.close()

    async def prepare(self, prompts: Sequence[Sequence[int]]) -> None:
        """Check the prompts, and make their choices.

        Raises:
            ApiError: 400, a prompt or a priority that the limits refuse, or progress that is not known here; 503, the
                server has too many requests.
        """
        if self.shows_progress and self.service.prompts is None:
            raise bad_request(
                "stream_options.include_progress is not supported by a fleet, which does not know how far its replicas"
                " are with one prompt; leave it out",
                param="stream_options",
            )
        self._check_room(len(prompts) * self._call.sampling.n)
        made = (request for prompt in prompts for request in self._added(tuple(prompt)))
        _, is_last = _part(made)  # the first part needs no turn
        while not is_last:
            async with self._turns:
                _, is_last = _part(made)

    def _added(self, prompt: tuple[int, ...]) -> Iterator[Submit]:
        """Check a prompt, and yield its requests as their choices are made."""
        call, tokenizer = self._call, self.service.tokenizer
        shown = frozenset[str]() if call.tools is None else self.service.replies.markers(call.tools)
        skips_special = call.text.skip_special_tokens
        end = "" if call.tools is None else prompt_end(self.service, prompt, call)
        for request in samples(self.service, prompt, call, self.settled, self.came_at):
            detokenizer = tokenizer.detokenizer(prompt, skip_special_tokens=skips_special, shown=shown)
            self.choices.append(self._choice(request, detokenizer, end))
            yield request

    def _choice(self, request: Submit, detokenizer: Detokenizer, end: str) -> Choice:
        """Return a choice, given the end of its prompt. Its own stop ids count in its answer, and not in thoughts."""
        call, replies, sampling = self._call, self.service.replies, self._call.sampling
        continues = _continued(call) is not None
        thoughts = None if call.tools is None else replies.thoughts(call.tools, end, continues=continues)
        skips = thoughts is not None and thoughts.may_come and not call.stops_in_thoughts
        own = frozenset(sampling.stop_token_ids if skips else ()) - self.service.eos_token_ids
        if own:
            left = tuple(id for id in request.sampling.stop_token_ids if id not in own)
            request = replace(request, sampling=replace(request.sampling, stop_token_ids=left))
        if self.choices:
            request = replace(request, call=self.choices[0].request.request_id)
        text = TextStream(
            detokenizer,
            sampling.stop,
            sampling.min_tokens,
            include_stop=call.text.include_stop,
            thoughts=thoughts,
            skip_thoughts=skips,
            stop_ids=own,
        )
        parser: AnswerParser = TextOnly()
        if call.tools is not None:
            name = f"{self.id}.{len(self.choices)}"  # a stream that goes on elsewhere names its calls by the same ids
            parser = replies.parser(call.tools, end, continues=continues, name=name)
        return Choice(request, text, parser)

    async def submit(self) -> None:
        """Submit the requests of the choices.

        Raises:
            ApiError: 503, no engine, or the server has too many requests.
        """
        self._check_room(len(self.choices))
        self.submitted_at = self._client.now()
        left = (choice.request for choice in self.choices)
        part, is_last = _part(left)
        self._submit(part)  # a call without choices has an inbox, too
        while not is_last:
            async with self._turns:
                part, is_last = _part(left)
                self._submit(part)

    def event_ids(self) -> EventIds | None:
        """Return what numbers the events of the stream; None: they have no ids."""
        if not self._call.include_event_ids:
            return None
        seed = self.choices[0].request.sampling.seed
        assert seed is not None, "it is resolved"
        return EventIds(EventId(self.id, self.created, seed, 0, 0), self.settled.last_event)

    def _submit(self, requests: Sequence[Submit]) -> None:
        try:
            self._inbox = self._client.submit(requests, self._inbox)
        except EngineGone as error:
            raise unavailable(str(error)) from error
        for index in range(len(self._index), len(self._inbox.request_ids)):
            self._index[self._inbox.request_ids[index]] = index

    def _check_room(self, count: int) -> None:
        """Refuse more requests than the server can hold."""
        if self._client.num_open + count > MAX_OPEN:
            raise ApiError(
                503,
                f"the server is overloaded: it has {self._client.num_open} requests, and accepts {MAX_OPEN}",
                code="overloaded",
                retry_after=self._client.retry_after(),
            )

    def parser(self) -> AnswerParser:
        """Return what tells text, reasoning and calls of the first choice apart."""
        return self.choices[0].parser

    def wake(self) -> None:
        """Let `pieces` yield, even if nothing has arrived."""
        if self._inbox is not None:
            self._inbox.nudge()

    async def progress(self) -> Progress:
        """Return how far the prompts of the call are read."""
        assert self.service.prompts is not None, "`prepare` refuses the call"
        known = await self.service.prompts.prompts(self._client)
        firsts = (
            (request_id, len(choice.prompt), choice.text.num_tokens > 0)
            for request_id, index in self._index.items()
            if (choice := self.choices[index]).request.sample_index == 0
        )
        return together(firsts, known)

    async def pieces(self) -> AsyncIterator[list[tuple[int, Piece]]]:
        """Yield lists of what has arrived together, as pairs of a choice's index and a piece; none after `wake`.

        Raises:
            ApiError: 503, the queue is full, a request did not begin in time, or its tier cannot be used; 408, it did
                not end in time; 500, it failed at the engine, or the engine ended.
        """
        assert self._inbox is not None, "pieces come after `submit`"
        while self._num_ended < len(self.choices):
            try:
                outputs = await self._inbox.get()
            except EngineGone as error:
                raise ApiError(500, f"the request was lost: {error}", code="engine_gone") from error
            arrived: list[tuple[int, Piece]] = []
            for output in outputs:
                if output.finish_reason is not None and output.finish_reason.is_failure:
                    if arrived:
                        yield arrived  # the tokens that came before the failure are sent before it
                    raise self._failure(output, output.finish_reason)
                arrived += self._receive(output)
            if arrived and self.began_at is None:
                self.began_at = self._client.now()
            yield arrived

    def _receive(self, output: Output) -> list[tuple[int, Piece]]:
        index = self._index[output.request_id]
        text = self.choices[index].text
        if text.finish_reason is not None:
            return []
        if self._call.is_empty:
            text.add_prompt_facts(output)
            if not output.token_ids:
                return []
            self._num_ended += 1
            return [(index, text.end(FinishReason.LENGTH))]
        self.choices[index].embedding = output.embedding
        pieces = text.push(output)
        if text.finish_reason is not None:
            self._num_ended += 1
            self._client.abort(output.request_id, FinishReason.STOP)  # needed if a stop string ended it
        return [(index, piece) for piece in pieces]

    def _failure(self, output: Output, reason: FinishReason) -> ApiError:
        fields = self._call.fields
        match reason:
            case FinishReason.OVERLOAD:
                wait = self._client.retry_after()
                return ApiError(503, f"the server is overloaded: {output.error}", code="overloaded", retry_after=wait)
            case FinishReason.EXPIRED:
                limit = f"max_queue_time of {fields.max_queue_time:g} seconds"
                return ApiError(
                    503,
                    f"the request did not begin within its {limit}",
                    param="max_queue_time",
                    code="queue_timeout",
                    retry_after=self._client.retry_after(),
                )
            case FinishReason.TIMEOUT:
                limit = f"timeout of {fields.timeout:g} seconds"
                message = f"the request did not end within its {limit}; {output.start} tokens were generated"
                return ApiError(408, message, param="timeout", code="timeout")
            case FinishReason.TIER_UNAVAILABLE:
                return no_tier(f"the context of the request cannot be held: {output.error}")
        return ApiError(500, output.error or "the request was aborted", code="request_failed")

    def prompt_logprobs(self, index: int) -> Sequence[TokenLogprobs | None] | None:
        """Return those of a choice's prompt, None for its first token. They are complete with the first output token.

        The result is None if the call does not ask for them.
        """
        first = self.choices[index - self.choices[index].request.sample_index]
        return None if first.request.sampling.prompt_logprobs is None else first.text.prompt_logprobs

    def usage(self) -> Usage:
        firsts = [choice for choice in self.choices if choice.request.sample_index == 0]
        return Usage(
            sum(len(choice.prompt) for choice in firsts),
            CachedTokens(*map(sum, zip(*(choice.cached for choice in firsts), strict=True))),
            sum(choice.text.num_tokens for choice in self.choices),
            sum(choice.text.reasoning_tokens for choice in self.choices),
            drafted=Drafted(*map(sum, zip(*(choice.text.drafted for choice in self.choices), strict=True))),
        )


def _part(requests: Iterator[Submit]) -> tuple[list[Submit], bool]:
    """Take the requests that are prepared, or submitted, in one turn, and return whether they are the last ones."""
    taken: list[Submit] = []
    count = 0
    for request in requests:
        taken.append(request)
        is_first = request.sample_index == 0  # the prompt of the others is the same
        count += 1 + (len(request.prompt) // TOKENS_AS_ONE if is_first else 0)
        if count >= AT_ONCE:
            return taken, False
    return taken, True


def shape_of_answer(service: Service, call: GenerateCall[Any], prompts: Sequence[Sequence[int]]) -> Shape | None:
    """Return the shape of a call's answers, which its tools decide, too. The reasoning may come before it."""
    if call.tools is None:
        return call.shape
    end = prompt_end(service, prompts[0], call) if prompts else ""
    token_id, continues, budget = service.tokenizer.token_id, _continued(call) is not None, call.thinking_budget
    if budget is not None and budget > service.limits.max_model_len and not call.fills_context:
        name = call.names.get("thinking_budget", "thinking_token_budget")
        message = f"{name} {budget} is more than the context of {service.limits.max_model_len} tokens"
        raise bad_request(message, param=name)
    return service.replies.shape(call.tools, end, call.shape, token_id, continues=continues, budget=budget)


def _continued(call: GenerateCall[Any]) -> str | None:
    """Return the text of the final message that the answer continues; None if it begins a message."""
    prompt = call.prompts[0] if call.prompts else ""
    if not isinstance(prompt, Conversation) or not prompt.options.continue_final_message:
        return None
    return str(prompt.messages[-1]["content"])


def prompt_end(service: Service, prompt: Sequence[int], call: GenerateCall[Any]) -> str:
    """Return what the template wrote behind the last message as text, special tokens included.

    Of a message that is continued, all of it is returned too.
    """
    continued = _continued(call)
    num_tokens = PROMPT_END + len((continued or "").encode(errors="replace"))  # a token is a byte at least
    end = service.tokenizer.decode(prompt[-num_tokens:], skip_special_tokens=False)
    if continued is not None:
        return end[-len(continued) - BEFORE_MESSAGE :]
    conversation = call.prompts[0]
    said = str(conversation.messages[-1]["content"]) if isinstance(conversation, Conversation) else ""
    masked, last = end, said.strip()[-MESSAGE_END:]
    for marker in service.replies.markers(call.tools or NO_TOOLS):
        # A short message, such as "i", is not to be found in a tag of the template.
        masked, last = (text.replace(marker, "\0" * len(marker)) for text in (masked, last))
    at = masked.rfind(last) if last else -1
    if at >= 0:
        return end[at + len(last) :]
    return service.tokenizer.decode(prompt[-LAST_TOKENS:], skip_special_tokens=False)
