"""One HTTP call at the engine: prompts in, pieces of text out, tokens counted.

A call is a request for each sample of each prompt. They share an inbox, and each is one choice of the answer.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from sluice.http.backend import Service
from sluice.http.errors import RETRY_SECONDS, ApiError, bad_request, unavailable
from sluice.http.generate_call import GenerateCall
from sluice.http.turns import Turns
from sluice.limits import NO_TIER, LimitError, TierDisabled
from sluice.process.client import EngineGone, Inbox
from sluice.text.text_stream import Piece, TextStream
from sluice.types import NO_SAMPLING, CachedTokens, FinishReason, Output, SamplingParams, Submit, TokenLogprobs

T = TypeVar("T")
MAX_OPEN = 1 << 16
"""Requests of all calls together, running and waiting; each takes a few kB here and at the engine."""
AT_ONCE = 64
"""Choices that are prepared, or submitted, in one turn: 2 ms."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call: each prompt once for any `n`; the outputs of all choices together."""

    prompt_tokens: int
    cached: CachedTokens
    completion_tokens: int

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached.total} | by_tier(self.cached),
        }


def by_tier(cached: CachedTokens) -> dict[str, Any]:
    """Return where cached tokens lay, under SGLang's name for it; nothing if all of them lay on the device."""
    if cached.device == cached.total:
        return {}
    return {"cached_tokens_details": {"device": cached.device, "host": cached.host, "disk": cached.disk}}


@dataclass(slots=True)
class Choice:
    """One sample of one prompt, as far as it has been received."""

    request: Submit
    text: TextStream
    """Of the samples of one prompt, only the first receives the log-probabilities of the prompt."""
    embedding: bytes = b""
    """Of a call that embeds, as `Output.embedding`."""

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
        turns: of the event loop.
        came_at: when the call came, in the client's seconds.
        created: when it came, in Unix seconds.
    """

    def __init__(
        self, service: Service, call: GenerateCall[Any], turns: Turns, *, came_at: float, created: int
    ) -> None:
        self.id = secrets.token_hex(12)
        self.service = service
        self.came_at, self.created = came_at, created
        self.choices: list[Choice] = []
        self._client = service.client
        self._call = call
        self._turns = turns
        self._inbox: Inbox | None = None
        self._index: dict[int, int] = {}
        self._num_ended = 0
        self.submitted_at: float | None = None
        """When its first request was given to the engine, in the client's seconds."""
        self.began_at: float | None = None
        """When its first token arrived."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._inbox is not None:
            self._inbox.close()

    async def prepare(self, prompts: Sequence[Sequence[int]]) -> None:
        """Check the prompts, and make their choices.

        Raises:
            ApiError: 400, a prompt or a priority that the limits refuse; 503, the server has too many requests.
        """
        self._check_room(len(prompts) * self._call.sampling.n)
        await self._in_parts(self._prepare, prompts, max(1, AT_ONCE // self._call.sampling.n))

    def _prepare(self, prompts: Sequence[Sequence[int]]) -> None:
        call, tokenizer = self._call, self.service.tokenizer
        for prompt in prompts:
            for request in _samples(self.service, tuple(prompt), call, self.came_at):
                detokenizer = tokenizer.detokenizer(request.prompt, skip_special_tokens=call.text.skip_special_tokens)
                sampling, include_stop = call.sampling, call.text.include_stop
                text = TextStream(detokenizer, sampling.stop, sampling.min_tokens, include_stop=include_stop)
                self.choices.append(Choice(request, text))

    async def submit(self) -> None:
        """Submit the requests of the choices.

        Raises:
            ApiError: 503, no engine, or the server has too many requests.
        """
        self._check_room(len(self.choices))
        self.submitted_at = self._client.now()
        await self._in_parts(self._submit, self.choices, AT_ONCE)

    def _submit(self, choices: Sequence[Choice]) -> None:
        try:
            self._inbox = self._client.submit([choice.request for choice in choices], self._inbox)
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

    async def _in_parts(self, work: Callable[[Sequence[T]], None], items: Sequence[T], size: int) -> None:
        """Call `work` with parts of a list, each after the first in a turn of its own."""
        work(items[:size])
        for start in range(size, len(items), size):
            async with self._turns:
                work(items[start : start + size])

    async def pieces(self) -> AsyncIterator[list[tuple[int, Piece]]]:
        """Yield lists of what has arrived together, as pairs of a choice's index and a piece.

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
                return _no_tier(f"the context of the request cannot be held: {output.error}")
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
        )


def _no_tier(message: str, param: str | None = None) -> ApiError:
    """Return a 503: the tier that a request needs is disabled, or has failed. It may be back later."""
    return ApiError(503, message, param=param, code=NO_TIER, retry_after=RETRY_SECONDS)


def _samples(service: Service, prompt: tuple[int, ...], call: GenerateCall[Any], came_at: float) -> list[Submit]:
    """Return the requests of one prompt: equal but for the sample's number, so they share its pages and its seed."""
    sampling = _embedded(service, prompt, call) if call.request.embeds else _resolved(service, prompt, call)
    queue_time, timeout = call.fields.max_queue_time, call.fields.timeout
    request = replace(
        call.request,
        prompt=prompt,
        start_deadline=None if queue_time is None else came_at + queue_time,
        deadline=None if timeout is None else came_at + timeout,
    )
    return [
        replace(request, sampling=sampling.of_sample(index), sample_index=index) for index in range(call.sampling.n)
    ]


@contextmanager
def _refused(call: GenerateCall[Any]) -> Iterator[None]:
    """Turn what the limits refuse into the error of a call, by the names that its API has."""
    try:
        yield
    except TierDisabled as error:
        raise _no_tier(str(error), call.names.get(error.param, error.param)) from error
    except LimitError as error:
        param = call.names.get(error.param, error.param)
        message = str(error) if error.param == "prompt" else str(error).replace(error.param, param, 1)
        raise bad_request(message, param=param, code=error.code) from error


def _embedded(service: Service, prompt: Sequence[int], call: GenerateCall[Any]) -> SamplingParams:
    with _refused(call):
        service.limits.check_priority(call.request.priority)
        service.limits.check_embedded(prompt)
    return NO_SAMPLING


def _resolved(service: Service, prompt: Sequence[int], call: GenerateCall[Any]) -> SamplingParams:
    with _refused(call):
        service.limits.check_priority(call.request.priority)
        service.limits.check_itl_target(call.request.itl_target)
        room = service.limits.check_sampling(prompt, call.sampling)
    room = service.sampling_defaults.room(call.sampling, room)
    return call.sampling.resolved(eos_ids=service.eos_token_ids, room=room, seed=service.new_seed())
