"""Runs the calls of all routes that generate or embed, whichever API they belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from sluice.http.base.auth import SENT_KEY, client_of
from sluice.http.base.backend import Backend, Service
from sluice.http.base.body import BodyReader
from sluice.http.base.errors import CLIENT_LEFT, require
from sluice.http.base.heartbeats import Heartbeats
from sluice.http.base.isolation import CacheIsolation
from sluice.http.base.tokenizer_threads import Check, TokenizerThreads
from sluice.http.base.turns import Turns
from sluice.http.call.answers import Answer, WholeAnswer, event_stream, json_response, unless_disconnected, whole
from sluice.http.call.constraint_fields import grammar_of
from sluice.http.call.embeddings import EmbedAnswer, embedded
from sluice.http.call.event_ids import HEADER, EventId
from sluice.http.call.generate_call import GenerateCall, Settled
from sluice.http.call.generation import Generation, shape_of_answer
from sluice.http.call.samples import samples
from sluice.http.call.tokenize import prompt_ids
from sluice.http.call.tools import check_readable
from sluice.text.constraints.checker import ConstraintChecker
from sluice.types import AdapterInfo, SamplingParams, Submit

C = TypeVar("C", bound=GenerateCall[Any])
L = TypeVar("L")


class Asked(NamedTuple, Generic[L]):
    """What is asked of the engine by a call that wants the probabilities of some tokens."""

    sampling: SamplingParams
    prompts: Sequence[Sequence[int]]
    needed: L
    """What the answer needs besides."""


class Accepted(NamedTuple, Generic[C]):
    """A call whose body was read."""

    call: C
    extra_key: str
    """The namespace of its cached prefixes."""
    service: Service
    """Which will run it."""
    adapter: AdapterInfo | None = None
    """The adapter of the service's model that it is for."""


@dataclass(frozen=True, slots=True)
class CallHandler:
    """Answers the calls of all routes that generate or embed. The fields are those of `create_app`.

    `generate` and `embed` make the checks of a request in the order in which they stand there; the first one that
    refuses it is its answer.
    """

    backend: Backend
    bodies: BodyReader
    threads: TokenizerThreads
    isolation: CacheIsolation
    turns: Turns
    checker: ConstraintChecker
    clock: Callable[[], float]
    heartbeats: Heartbeats

    async def generate(
        self,
        request: Request,
        parse: Callable[[bytes], C],
        make_answer: Callable[[C, Generation], Answer],
        *,
        marker: bytes | None = None,
    ) -> Response:
        """Check a call, run it for as long as its client is there, and answer it.

        Args:
            parse: checks the fields of the body, in the order of its API.
            marker: as in `BodyReader.read`.
        """
        call, extra_key, service, adapter = await self.accepted(request, parse, marker)
        last_event = _last_event(request, call)
        sampling = service.sampling_defaults.fill(call.sampling, call.given)
        if last_event is not None and sampling.seed is None:
            sampling = replace(sampling, seed=last_event.seed)
        check_readable(call.tools, service.replies)
        came_at = service.client.now()

        async def answered() -> Response:
            prompts = await prompt_ids(service, self.threads, call)
            shape, grammar = shape_of_answer(service, call, prompts), ""
            if shape is not None and not call.is_empty:
                grammar = await grammar_of(self.checker, shape, client_of(request.scope))
            self.bodies.check_ignored()
            settled = Settled(sampling, extra_key, shape, grammar, last_event, adapter)
            generation = await self._prepared(service, call, settled, prompts, came_at)
            answer = make_answer(call, generation)
            if call.fields.stream:
                return await event_stream(generation, answer, self.turns, self.heartbeats)
            return await json_response(await whole(generation, answer), self.turns)

        return await while_client_is_there(request, answered())

    async def embed(
        self, request: Request, parse: Callable[[bytes], C], make_answer: Callable[[C, Generation], EmbedAnswer]
    ) -> Response:
        """Check a call, embed its prompts for as long as its client is there, and answer it."""
        return await self.embed_accepted(request, await self.accepted(request, parse), make_answer)

    async def embed_accepted(
        self, request: Request, accepted: Accepted[C], make_answer: Callable[[C, Generation], EmbedAnswer]
    ) -> Response:
        """Do what `embed` does, for a call that was accepted."""
        call, extra_key, service, adapter = accepted
        came_at = service.client.now()

        async def answered() -> Response:
            prompts = await prompt_ids(service, self.threads, call)
            settled = Settled(call.sampling, extra_key, adapter=adapter)
            generation = await self._prepared(service, call, settled, prompts, came_at)
            answer = make_answer(call, generation)
            return await json_response(await embedded(generation, answer), self.turns)

        return await while_client_is_there(request, answered())

    async def score(
        self,
        request: Request,
        accepted: Accepted[C],
        settle: Callable[[Service, TokenizerThreads, C, list[list[int]]], Awaitable[Asked[L]]],
        make_answer: Callable[[C, Generation, L], WholeAnswer],
    ) -> Response:
        """Run an accepted call that asks how likely some tokens are, for as long as its client is there, and answer it.

        Args:
            settle: returns what the engine is asked, given the prompts of the call.
        """
        call, extra_key, service, adapter = accepted
        came_at = service.client.now()

        async def answered() -> Response:
            prompts = await prompt_ids(service, self.threads, call)
            scored = await settle(service, self.threads, call, prompts)
            settled = Settled(scored.sampling, extra_key, adapter=adapter)
            generation = await self._prepared(service, call, settled, scored.prompts, came_at)
            answer = make_answer(call, generation, scored.needed)
            return await json_response(await whole(generation, answer), self.turns)

        return await while_client_is_there(request, answered())

    async def render(
        self,
        request: Request,
        parse: Callable[[bytes], C],
        make_answer: Callable[[C, Service, SamplingParams, Sequence[Submit]], Any],
    ) -> Response:
        """Check a call as `generate` does, and answer what would be submitted; nothing is.

        Args:
            make_answer: returns the answer, given the sampling parameters of the call and a request for each prompt.
        """
        call, extra_key, service, adapter = await self.accepted(request, parse)
        sampling = service.sampling_defaults.fill(call.sampling, call.given)
        check_readable(call.tools, service.replies)
        settled, came_at = Settled(sampling, extra_key, adapter=adapter), service.client.now()

        async def answered() -> Response:
            prompts = await prompt_ids(service, self.threads, call)

            def made(check: Check) -> Any:
                requests = []
                for prompt in prompts:
                    check()
                    requests.append(samples(service, tuple(prompt), call, settled, came_at)[0])
                return make_answer(call, service, sampling, requests)

            return await json_response(await self.threads.apart(made), self.turns)

        return await while_client_is_there(request, answered())

    async def accepted(self, request: Request, parse: Callable[[bytes], C], marker: bytes | None = None) -> Accepted[C]:
        """Return the call of a body, checked as far as that needs no tokens.

        Raises:
            ApiError: as `parse` and `BodyReader.read`; 404, another model; 503, no engine.
        """
        call = await self.bodies.read(request, parse, marker=marker)
        extra_key = self._extra_key(request, call)
        service = self.backend.service(for_new=True)
        adapter = service.adapter_of(call.model)
        if call.fields.lora_path:
            adapter = service.adapter_of(call.fields.lora_path, param="lora_path")
        return Accepted(call, extra_key, service, adapter)

    async def _prepared(
        self,
        service: Service,
        call: GenerateCall[Any],
        settled: Settled,
        prompts: Sequence[Sequence[int]],
        came_at: float,
    ) -> Generation:
        """Return a call's generation, whose prompts are checked."""
        generation = Generation(service, call, settled, self.turns, came_at=came_at, created=int(self.clock()))
        await generation.prepare(prompts)
        return generation

    def _extra_key(self, request: Request, call: GenerateCall[Any]) -> str:
        """Return the namespace that keeps the cached prefixes of a call apart from those of others.

        Raises:
            ApiError: 400, a salt is required and the body has none.
        """
        api_key, param = request.scope.get(SENT_KEY, b""), call.names.get("cache_salt", "cache_salt")
        return self.isolation.salt(call.terms.cache_salt, api_key, param=param)


def _last_event(request: Request, call: GenerateCall[Any]) -> EventId | None:
    """Return the last event that the client has of a stream; None: it asks for all of it.

    Raises:
        ApiError: 400, the header is no such id, or the call has none.
    """
    text = request.headers.get(HEADER, "")
    if not text:
        return None
    message = (
        "Last-Event-ID continues a stream whose events have ids: send the body that it began with, with stream: true"
        " and stream_options.include_event_ids: true"
    )
    require(call.include_event_ids, message, param=HEADER)
    return EventId.of(text)


async def while_client_is_there(request: Request, work: Awaitable[Response]) -> Response:
    """Return the response that `work` makes, unless the client leaves before: then the work is cancelled."""
    response = await unless_disconnected(request.receive, work)
    return Response(status_code=CLIENT_LEFT) if response is None else response
