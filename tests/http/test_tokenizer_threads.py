"""Where texts are tokenized: beside the event loop, in bounded memory, and only while the client is there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from serving import Caller, Server, run, serving
from shadow_engine import MAX_MODEL_LEN
from sluice.http.base.errors import CLIENT_LEFT
from sluice.http.base.tokenizer_threads import PIECE, THREADED_TEXT, UNCOUNTED, TooManyTokens, bounded_ids
from sluice.http.call import tokenize
from sluice.text.tokenizer import Tokenizer
from tokenizer_makers import byte_tokenizer

LONG = "a" * THREADED_TEXT


class WatchedTokenizer(Tokenizer):
    """Notes each text that it encodes, and keeps back those that begin with a capital."""

    def __init__(self) -> None:
        super().__init__(byte_tokenizer())
        self.texts: list[str] = []
        self.go_on = threading.Event()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.texts.append(text)
        if text[:1].isupper():
            self.go_on.wait()
        return super().encode(text, add_special_tokens=add_special_tokens)


@contextmanager
def watched(server: Server) -> Iterator[WatchedTokenizer]:
    tokenizer = WatchedTokenizer()
    server.backend.open(replace(server.backend.service(), tokenizer=tokenizer))
    try:
        yield tokenizer
    finally:
        tokenizer.go_on.set()


async def seen(tokenizer: WatchedTokenizer, text: str) -> None:
    while text not in tokenizer.texts:
        await asyncio.sleep(0)


def never() -> None:
    """The client does not leave."""


def test_a_text_of_far_too_many_tokens_is_never_encoded_as_a_whole() -> None:
    """The tokenizer takes 450 bytes for a byte: 6 MB of digits took the server to 2.5 GB."""
    tokenizer = WatchedTokenizer()
    with pytest.raises(TooManyTokens):
        bounded_ids(tokenizer, "0123456789" * 600_000, 100_000, never)
    assert max(map(len, tokenizer.texts)) <= PIECE
    assert sum(map(len, tokenizer.texts)) < 200_000, "it went on when the number was certain"


def test_a_long_text_that_fits_is_encoded_exactly() -> None:
    tokenizer = WatchedTokenizer()
    text = "ab " * UNCOUNTED
    assert bounded_ids(tokenizer, text, len(text), never) == list(text.encode())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/v1/completions", {}),
        ("/v1/completions", {"stream": True}),
    ],
)
def test_leaving_drops_a_text_that_waits(path: str, body: dict[str, Any]) -> None:
    """24 clients that left made a small completion wait for a minute."""

    async def test() -> None:
        async with serving() as server:
            with watched(server) as tokenizer:
                # As many as there are threads for either kind of call, and one more.
                callers = [Caller(server, path, body | {"prompt": f"{letter}{LONG}"}) for letter in "ABC"]
                await seen(tokenizer, f"A{LONG}")
                for caller in callers:
                    caller.leave()
                for caller in callers:
                    await caller.call
                    assert (await caller.sent.get())["status"] == CLIENT_LEFT
                assert f"C{LONG}" not in tokenizer.texts
                tokenizer.go_on.set()
                assert (await server.post("/tokenize", prompt=LONG)).json()["count"] == len(LONG)
                await server.complete(prompt="a" * 100, max_tokens=1)
                assert f"C{LONG}" not in tokenizer.texts
                assert server.metrics.http[path, "POST", CLIENT_LEFT] == 3

    run(test)


def test_leaving_ends_the_count_of_a_long_text() -> None:
    """What runs already must not go on for megabytes."""

    async def test() -> None:
        async with serving(max_body_bytes=10**7) as server:
            with watched(server) as tokenizer:
                limits = replace(server.backend.service().limits, max_model_len=10**6, max_total_tokens=10**6)
                server.backend.open(replace(server.backend.service(), limits=limits))
                text = "A" + "a" * (PIECE - 1)
                caller = Caller(server, "/tokenize", {"prompt": text * (UNCOUNTED // PIECE + 2)})
                await seen(tokenizer, text)
                caller.leave()
                await caller.call
                tokenizer.go_on.set()
                await server.post("/tokenize", prompt=LONG)  # by the same thread, so the first is over
                assert tokenizer.texts == [text, LONG]

    run(test)


def test_counting_does_not_delay_completions() -> None:
    async def test() -> None:
        async with serving(max_body_bytes=10**6) as server:
            limits = replace(server.backend.service().limits, max_model_len=10**6, max_total_tokens=10**6)
            with watched(server) as tokenizer:
                server.backend.open(replace(server.backend.service(), limits=limits))
                counting = [Caller(server, "/tokenize", {"prompt": f"A{LONG}"}) for _ in range(8)]
                long = Caller(server, "/v1/completions", {"prompt": "B" + "b" * 10**5})
                await seen(tokenizer, f"A{LONG}")
                answer = await server.post("/v1/completions", prompt=[LONG, "a"])
                assert answer.status_code in (200, 500), answer.text  # the engine has no room for it
                assert LONG in tokenizer.texts
                for caller in (*counting, long):
                    assert not caller.call.done()
                    caller.leave()
                    await caller.call

    run(test)


def test_the_prompts_of_a_call_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of prompts, each of which fits, take the memory of one that does not."""
    monkeypatch.setattr(tokenize, "MAX_CALL_TOKENS", 300)

    async def test() -> None:
        async with serving() as server:
            for prompts in (["a" * 160, "b" * 160], [[1] * 160, [2] * 160]):
                answer = await server.post("/v1/completions", prompt=prompts)
                assert answer.status_code == 400
                assert "more than 300 tokens together; send them in several calls" in answer.json()["error"]["message"]

    run(test)


def test_no_more_ids_are_turned_to_text_than_a_request_has() -> None:
    async def test() -> None:
        async with serving() as server:
            assert (await server.post("/detokenize", tokens=[97] * MAX_MODEL_LEN)).status_code == 200
            answer = await server.post("/detokenize", tokens=[97] * (MAX_MODEL_LEN + 1))
            assert answer.status_code == 400
            assert f"{MAX_MODEL_LEN + 1} ids; at most {MAX_MODEL_LEN}" in answer.json()["error"]["message"]

    run(test)
