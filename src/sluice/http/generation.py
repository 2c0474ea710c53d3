"""One HTTP call at the engine: prompts in, pieces of text out, tokens counted.

A call is a request for each sample of each prompt; they share an inbox, and each is one choice of the answer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from sluice.http.backend import Service
from sluice.http.errors import ApiError, bad_request, unavailable
from sluice.http.generate_call import ChatCall, CompletionCall, GenerateCall
from sluice.limits import LimitError
from sluice.process.client import EngineGone, Inbox, NewRequest
from sluice.text.text_stream import Piece, TextStream
from sluice.text.tokenizer import TokenizerError
from sluice.types import CachedTokens, FinishReason, Output, SamplingParams, TokenLogprobs

SLACK = 4
"""Characters may become one before they are cut into tokens (Unicode's composed forms)."""
LONG_TEXT = 512
"""Characters from which tokenizing leaves the event loop: below, it takes some 0.2 ms, a few changes of threads."""


async def completion_prompts(service: Service, call: CompletionCall) -> list[list[int]]:
    """The token ids of each prompt of a completion.

    Raises:
        ApiError: 400, a text that is no valid Unicode, or far too long.
    """
    for text in call.prompts:
        if isinstance(text, str):
            _check_length(service, len(text), call.names.get("prompt", "prompt"))
    return [await encode(service, prompt) if isinstance(prompt, str) else prompt for prompt in call.prompts]


def _check_length(service: Service, length: int, param: str) -> None:
    """Refuse what cannot fit however it is cut into tokens: to count those of 30 MB takes many seconds.

    Raises:
        ApiError: 400.
    """
    tokens = service.limits.max_request_tokens
    most = SLACK * tokens * service.tokenizer.longest_token
    if length > most:
        raise bad_request(
            f"the prompt has {length} characters; {tokens} tokens, the most of a request, are fewer than {most}",
            param=param,
            code="context_length_exceeded",
        )


async def encode(service: Service, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """The token ids of a text.

    Raises:
        ApiError: 400, a text that is no valid Unicode.
    """
    work = partial(service.tokenizer.encode, text, add_special_tokens=add_special_tokens)
    try:
        return work() if len(text) < LONG_TEXT else await asyncio.to_thread(work)
    except TokenizerError as error:
        raise bad_request(str(error), param="prompt") from error


async def chat_prompt(service: Service, call: ChatCall) -> list[int]:
    """The token ids of a conversation.

    Raises:
        ApiError: 400, no chat template, or one that refuses the messages, or these are far too long.
    """
    length = sum(len(message["content"]) for message in call.messages)
    _check_length(service, length, "messages")
    try:
        if length < LONG_TEXT:
            return service.tokenizer.encode_chat(call.messages)
        return await asyncio.to_thread(service.tokenizer.encode_chat, call.messages)
    except TokenizerError as error:
        raise bad_request(str(error), param="messages") from error


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call: each prompt once, whatever `n`; the outputs of all choices together."""

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
    """Where cached tokens lay, by SGLang's name for it; nothing if all of them lay on the device."""
    if cached.device == cached.total:
        return {}
    return {"cached_tokens_details": {"device": cached.device, "host": cached.host, "disk": cached.disk}}


class Generation:
    """One call. Entering the `with` submits its requests, leaving it ends them, at the engine too.

    Choices are numbered prompt by prompt, the samples of one next to each other.
    """

    def __init__(
        self,
        service: Service,
        prompts: Sequence[Sequence[int]],
        call: GenerateCall,
        *,
        came_at: float | None = None,
        is_empty: bool = False,
    ) -> None:
        """
        Args:
            came_at: when the call came, in the client's seconds; None is now.
            is_empty: the one token that the call asks for is not shown.

        Raises:
            ApiError: 400, a prompt or a priority that the limits refuse.
        """
        self._client = service.client
        self._call = call
        self._is_empty = is_empty
        came_at = self._client.now() if came_at is None else came_at
        self._requests = [request for prompt in prompts for request in _samples(service, prompt, call, came_at)]
        self._texts = [
            TextStream(service.tokenizer.detokenizer(request.prompt), call.sampling.stop, call.sampling.min_tokens)
            for request in self._requests
        ]
        self._cached = [CachedTokens()] * len(self._requests)
        self._prompt_logprobs: list[list[TokenLogprobs | None]] = [[None] for _ in self._requests]
        self._inbox: Inbox | None = None
        self._index: dict[int, int] = {}

    @property
    def num_choices(self) -> int:
        return len(self._texts)

    def cached_of(self, index: int) -> CachedTokens:
        """Tokens of that prompt that were found in the cache."""
        return self._cached[index]

    def prompt_of(self, index: int) -> tuple[int, ...]:
        """The prompt of a choice."""
        return self._requests[index].prompt

    def __enter__(self) -> Self:
        """
        Raises:
            ApiError: 503, no engine.
        """
        try:
            self._inbox = self._client.submit(self._requests)
        except EngineGone as error:
            raise unavailable(str(error)) from error
        self._index = {request_id: index for index, request_id in enumerate(self._inbox.request_ids)}
        return self

    def __exit__(self, *error: object) -> None:
        assert self._inbox is not None
        self._inbox.close()

    async def pieces(self) -> AsyncIterator[list[tuple[int, Piece]]]:
        """(index of the choice, piece) pairs as they come, in lists of what has arrived together.

        Raises:
            ApiError: 503, the queue is full, or a request did not begin in time; 408, it did not end in time; 500, it
                failed at the engine, or the engine ended.
        """
        assert self._inbox is not None, "pieces come inside the `with`"
        while any(text.finish_reason is None for text in self._texts):
            try:
                outputs = await self._inbox.get()
            except EngineGone as error:
                raise ApiError(500, f"the request was lost: {error}", code="engine_gone") from error
            arrived: list[tuple[int, Piece]] = []
            for output in outputs:
                if output.finish_reason is not None and output.finish_reason.is_failure:
                    if arrived:
                        yield arrived  # what came before it is said, however late anybody looked
                    raise self._failure(output, output.finish_reason)
                arrived += self._fold(output)
            yield arrived

    def _fold(self, output: Output) -> list[tuple[int, Piece]]:
        index = self._index[output.request_id]
        text = self._texts[index]
        if text.finish_reason is not None:
            return []
        self._cached[index] = output.cached
        self._prompt_logprobs[index] += output.prompt_logprobs
        if self._is_empty:
            return [(index, text.end(FinishReason.LENGTH))] if output.token_ids else []
        pieces = list(text.push(output))
        if text.finish_reason is not None:
            self._client.abort(output.request_id, FinishReason.STOP)  # if a stop string did it
        return [(index, piece) for piece in pieces]

    def _failure(self, output: Output, reason: FinishReason) -> ApiError:
        match reason:
            case FinishReason.OVERLOAD:
                return ApiError(
                    503,
                    f"the server is overloaded: {output.error}",
                    code="overloaded",
                    retry_after=self._client.retry_after(),
                )
            case FinishReason.EXPIRED:
                return ApiError(
                    503,
                    f"the request did not begin within its max_queue_time of {self._call.max_queue_time:g} seconds",
                    param="max_queue_time",
                    code="queue_timeout",
                    retry_after=self._client.retry_after(),
                )
            case FinishReason.TIMEOUT:
                return ApiError(
                    408,
                    f"the request did not end within its timeout of {self._call.timeout:g} seconds; {output.start}"
                    " tokens were generated",
                    param="timeout",
                    code="timeout",
                )
        return ApiError(500, output.error or "the request was aborted", code="request_failed")

    def prompt_logprobs(self, index: int) -> Sequence[TokenLogprobs | None] | None:
        """Of the prompt of a choice, None in place of its first token; None if nobody asked. Complete at the end."""
        first = index - self._requests[index].sample_index
        return None if self._requests[first].sampling.prompt_logprobs is None else self._prompt_logprobs[first]

    def usage(self) -> Usage:
        firsts = [index for index, request in enumerate(self._requests) if request.sample_index == 0]
        return Usage(
            sum(len(self._requests[index].prompt) for index in firsts),
            CachedTokens(*map(sum, zip(*(self._cached[index] for index in firsts), strict=True))),
            sum(text.num_tokens for text in self._texts),
        )


def _samples(service: Service, prompt: Sequence[int], call: GenerateCall, came_at: float) -> list[NewRequest]:
    """The requests of one prompt: equal but for the number of the sample, so they share its pages and its seed."""
    tokens = tuple(prompt)
    sampling = _resolved(service, tokens, call)
    return [
        NewRequest(
            tokens,
            sampling.of_sample(sample_index),
            sample_index,
            call.extra_key,
            call.priority,
            None if call.max_queue_time is None else came_at + call.max_queue_time,
            None if call.timeout is None else came_at + call.timeout,
        )
        for sample_index in range(call.sampling.n)
    ]


def _resolved(service: Service, prompt: Sequence[int], call: GenerateCall) -> SamplingParams:
    try:
        service.limits.check_priority(call.priority)
        room = service.limits.check_sampling(prompt, call.sampling)
    except LimitError as error:
        raise bad_request(str(error), param=call.names.get(error.param, error.param), code=error.code) from error
    return call.sampling.resolved(eos_ids=service.eos_token_ids, room=room, seed=secrets.randbits(63))
