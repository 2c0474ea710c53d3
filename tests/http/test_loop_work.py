"""No body makes the event loop do much at once, so a health check waits for little. Calls are counted, not seconds.

The front is the real one; the engine at the other end answers at once with as many tokens and log-probabilities as a
request asks for, as real messages.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.events import Handle
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import httpx
import pytest

from serving import CHAT_TEMPLATE, MEMORY, run
from sluice.engine.messages import Message
from sluice.http.app import create_app
from sluice.http.base.backend import Backend, Service
from sluice.http.base.body import BodyLimits
from sluice.http.observe.http_metrics import Metrics
from sluice.process.client import EngineClient
from sluice.process.engine_state import EngineState
from sluice.process.wire import Outputs, decode, encode_outputs, portions
from sluice.text.tokenizer import Tokenizer
from sluice.types import FinishReason, Output, Submit, TokenLogprobs
from sluice.types.request_limits import Limits
from tokenizer_makers import byte_tokenizer

MOST_CALLS = 40_000
"""Calls of functions in one callback of the loop: about 10 ms."""
TOP = 20
PROMPT = [97] * 1000
ENTRIES = {str(token): 1 for token in range(100)}


class FrontWork:
    """The most function calls in one callback of the loop, and in which one."""

    def __init__(self) -> None:
        self.most = 0
        self.where = ""
        self._calls = 0

    def count(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            self._calls += 1

    @contextmanager
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        plain = Handle._run

        def run_and_count(handle: Handle) -> None:
            self._calls = 0
            plain(handle)
            if self._calls > self.most:
                self.most, self.where = self._calls, repr(handle)

        monkeypatch.setattr(Handle, "_run", run_and_count)
        sys.setprofile(self.count)
        try:
            yield
        finally:
            sys.setprofile(None)


class Engine:
    """Answers every request at once, a message for each step and choice."""

    def __init__(self) -> None:
        self.client = EngineClient(self._receive, Metrics())
        self._submitted: deque[Submit] = deque()
        self._arrived = asyncio.Event()

    def _receive(self, message: Message) -> None:
        if isinstance(message, Submit):
            self._submitted.append(message)
            self._arrived.set()

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._submitted:
                for data in messages(self._submitted.popleft()):
                    frame = decode(data)
                    assert isinstance(frame, Outputs)
                    self.client.deliver(frame)
                    await asyncio.sleep(0)


def messages(request: Submit) -> list[bytes]:
    """Make what the engine would send, outside of what is counted."""
    profile = sys.getprofile()
    sys.setprofile(None)
    try:
        sampling = request.sampling
        assert sampling.max_tokens is not None
        of_prompt = (
            () if sampling.prompt_logprobs is None else scored(sampling.prompt_logprobs) * (len(request.prompt) - 1)
        )
        of_token = () if sampling.logprobs is None else scored(sampling.logprobs)
        found = []
        for number in range(sampling.max_tokens):
            reason = FinishReason.LENGTH if number == sampling.max_tokens - 1 else None
            output = Output(
                request.request_id, number, (98,), 0, reason, None, of_token, of_prompt if number == 0 else ()
            )
            found += [encode_outputs(portion) for portion in portions([output])]
        return found
    finally:
        sys.setprofile(profile)


def scored(top: int) -> tuple[TokenLogprobs, ...]:
    return (TokenLogprobs(98, -1.25, tuple((98 + number, -1.25) for number in range(top))),)


WORST: dict[str, tuple[str, dict[str, Any]]] = {
    "prompt_logprobs": (
        "/v1/completions",
        {"prompt": [PROMPT] * 2, "max_tokens": 2, "prompt_logprobs": TOP, "echo": True, "logprobs": TOP},
    ),
    "chat": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "a"}],
            "max_tokens": 400,
            "logprobs": True,
            "top_logprobs": TOP,
            "n": 4,
        },
    ),
    "responses": ("/v1/responses", {"input": "a", "max_output_tokens": 1000, "top_logprobs": TOP}),
    "generate": (
        "/generate",
        {
            "input_ids": [PROMPT] * 4,
            "sampling_params": {"max_new_tokens": 150},
            "stream": True,
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": TOP,
        },
    ),
    "choices": ("/v1/completions", {"prompt": [[97]] * 500, "max_tokens": 1}),
    "samples": ("/v1/completions", {"prompt": [PROMPT] * 8, "n": 128, "max_tokens": 1, "seed": 1}),
    "biases": ("/v1/completions", {"prompt": [[97]] * 500, "logit_bias": ENTRIES, "max_tokens": 1}),
    "ids": ("/v1/completions", {"prompt": [97] * 500_000, "max_tokens": 1}),
    "lists": ("/v1/completions", {"prompt": [[97]] * 100_000, "max_tokens": 1}),
    "messages": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}] * 15_000}),
    "stops": ("/v1/completions", {"prompt": "a", "stop": ["b" * 900 + str(number) for number in range(16)], "n": 64}),
}


@pytest.mark.parametrize("name", WORST)
def test_no_body_does_much_in_one_callback(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, body = WORST[name]

    async def test() -> None:
        engine, work = Engine(), FrontWork()
        backend = Backend(EngineState())
        backend.engine.serving(1, {})
        limits = Limits(vocab_size=127, max_model_len=10_000, max_total_tokens=10_000)
        tokenizer = Tokenizer(byte_tokenizer(), chat_template=CHAT_TEMPLATE)
        backend.open(Service("m", tokenizer, limits, frozenset(), engine.client, [], MEMORY))
        app = create_app(backend, body_limits=BodyLimits(1 << 25))
        running = asyncio.create_task(engine.run())
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        content = json.dumps(body).encode()
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            with work.counted(monkeypatch):
                answer = await http.post(path, content=content)
        running.cancel()
        assert answer.status_code in (200, 400, 413), answer.text[:500]

        assert work.most <= MOST_CALLS, work.where

    run(test)
