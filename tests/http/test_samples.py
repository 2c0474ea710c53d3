"""Several samples of a prompt, parts of the prefix cache, priorities: over HTTP, seen in answers and in plans."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from serving import CHAT_TEMPLATE, MEMORY, MODEL, Server, run, serving
from shadow_engine import LIMITS, PAGE_SIZE, VOCAB
from sluice.engine.messages import Message, Submit
from sluice.http.app import create_app
from sluice.http.base.backend import Backend, Service
from sluice.process.client import EngineClient
from sluice.testing import oracle
from sluice.text.tokenizer import Tokenizer
from sluice.types import FinishReason, Output, SamplingParams
from tokenizer_makers import byte_tokenizer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
HELLO_PROMPT = "user: hello\n"
LONG = "the same beginning for everyone, of nearly twenty pages and not one more"


def expected(prompt: str, max_tokens: int, sample_index: int, seed: int = 3) -> str:
    sampling = SamplingParams(max_tokens=max_tokens, seed=seed)
    return bytes(oracle(prompt.encode(), sampling, sample_index=sample_index, vocab_size=VOCAB)).decode()


def texts_of(events: list[dict[str, Any]], count: int) -> list[str]:
    texts = [""] * count
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return texts


def test_samples_are_numbered_prompt_by_prompt() -> None:
    """OpenAI's order: all choices of the first prompt, then those of the second."""

    async def test() -> None:
        async with serving() as server:
            body: dict[str, Any] = {"prompt": ["ab", "xyz"], "n": 3, "max_tokens": 6, "seed": 3}
            answer = await server.complete(**body)
            Completion.model_validate(answer)
            wanted = [expected(prompt, 6, sample) for prompt in ("ab", "xyz") for sample in range(3)]
            assert len(set(wanted)) == 6
            assert [choice["index"] for choice in answer["choices"]] == list(range(6))
            assert [choice["text"] for choice in answer["choices"]] == wanted
            assert texts_of(await server.events(COMPLETIONS, **body), 6) == wanted

    run(test)


def test_choices_are_sent_with_one_prompt_and_one_logit_bias() -> None:
    """What they share travels to the engine once if it is the same object in each of them."""

    async def test() -> None:
        async with serving() as server:
            await server.complete(prompt="ab", n=70, max_tokens=2, logit_bias={"5": 1.0, "6": 2.0})
            submits = [message for message in server.sent if isinstance(message, Submit)]
            assert len(submits) == 70
            assert len({id(submit.prompt) for submit in submits}) == 1
            assert len({id(submit.sampling.logit_bias) for submit in submits}) == 1

    run(test)


def test_samples_of_a_chat() -> None:
    async def test() -> None:
        async with serving() as server:
            body: dict[str, Any] = {"messages": HELLO, "n": 2, "max_tokens": 7, "seed": 3}
            answer = (await server.post(CHAT, **body)).json()
            ChatCompletion.model_validate(answer)
            wanted = [expected(HELLO_PROMPT, 7, sample) for sample in range(2)]
            assert [choice["message"]["content"] for choice in answer["choices"]] == wanted
            events = await server.events(CHAT, **body)
            assert texts_of(events, 2) == wanted
            openings = [event["choices"][0] for event in events if "role" in event["choices"][0]["delta"]]
            assert [choice["index"] for choice in openings] == [0, 1]

    run(test)


def test_usage_counts_the_prompt_once() -> None:
    """As OpenAI does; and pages that the samples share with each other are no cache hit of the caller's."""

    async def test() -> None:
        async with serving() as server:
            body: dict[str, Any] = {"prompt": [LONG, "ab"], "n": 4, "max_tokens": 5}
            usage = (await server.complete(**body))["usage"]
            assert usage["prompt_tokens"] == len(LONG) + 2
            assert usage["completion_tokens"] == 2 * 4 * 5
            assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
            options = {"stream_options": {"include_usage": True}}
            usage = (await server.events(COMPLETIONS, **body, **options))[-1]["usage"]
            assert usage["prompt_tokens"] == len(LONG) + 2
            assert usage["prompt_tokens_details"] == {"cached_tokens": (len(LONG) - 1) // PAGE_SIZE * PAGE_SIZE}

    run(test)


def prefill_tokens(server: Server) -> int:
    plans = server.engine.runner.plans
    return sum(chunk.length for plan in plans for chunk in plan.chunks[plan.num_decodes :])


def test_samples_compute_the_shared_pages_once() -> None:
    async def test() -> None:
        async with serving() as server:
            await server.complete(prompt=LONG, n=4, max_tokens=5)
            shared = (len(LONG) - 1) // PAGE_SIZE * PAGE_SIZE
            assert prefill_tokens(server) == len(LONG) + 3 * (len(LONG) - shared)

    run(test)


def test_a_stop_string_ends_its_sample_alone() -> None:
    async def test() -> None:
        async with serving() as server:
            one, other = (expected("ab", 30, sample) for sample in range(2))
            stop = next(one[at : at + 3] for at in range(5, 20) if one[at : at + 3] not in other)
            answer = await server.complete(prompt="ab", n=2, max_tokens=30, seed=3, stop=stop)
            assert [choice["text"] for choice in answer["choices"]] == [one[: one.index(stop)], other]
            assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "length"]

    run(test)


def rows_of(server: Server) -> dict[int, list[int]]:
    """Each request's pages, in the order of its tokens."""
    rows: dict[int, list[int]] = {}
    for plan in server.engine.runner.plans:
        for chunk in plan.chunks:
            rows.setdefault(chunk.request_id, []).extend(chunk.new_pages)
    return rows


@pytest.mark.parametrize("salts", [("alice", "bob"), ("alice", None), (None, "alice")])
def test_equal_prompts_under_different_salts_share_nothing(salts: tuple[str | None, str | None]) -> None:
    """A tenant must not learn from a fast answer what another one asked: no cached token, no common page. The first
    one's pages stay cached, so the second one's are others only if they are not shared."""

    async def test() -> None:
        async with serving() as server:
            body: dict[str, Any] = {"prompt": LONG, "max_tokens": 4, "seed": 3}
            answers = [await server.complete(**body, cache_salt=salt) for salt in salts]
            assert [a["choices"][0]["text"] for a in answers] == [expected(LONG, 4, 0)] * 2
            assert [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers] == [0, 0]
            full = len(LONG) // PAGE_SIZE
            one, other = (set(row[:full]) for row in rows_of(server).values())
            assert len(one) == len(other) == full
            assert one.isdisjoint(other)
            again = await server.complete(**body, cache_salt=salts[0])
            assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == (len(LONG) - 1) // PAGE_SIZE * PAGE_SIZE

    run(test)


def test_equal_prompts_at_once_under_different_salts_are_no_duplicates() -> None:
    """One that is held back for another tenant's prompt would be slower for it, and that can be measured too."""

    async def test() -> None:
        async with serving() as server:
            body: dict[str, Any] = {"prompt": LONG, "max_tokens": 4}
            await asyncio.gather(*(server.complete(**body, cache_salt=salt) for salt in ("a", "b")))
            assert prefill_tokens(server) == 2 * len(LONG)

    run(test)


async def submits_of(
    path: str, body: dict[str, Any], *, knows_priority: bool = False, itl_target: int = 0
) -> list[Submit]:
    """What a call sends to its engine, here one that answers every request with one token."""
    sent: list[Submit] = []

    def send(message: Message) -> None:
        if isinstance(message, Submit):
            sent.append(message)
            client.dispatch([Output(message.request_id, 0, (65,), 0, FinishReason.LENGTH)])

    client, backend = EngineClient(send), Backend()
    tokenizer = Tokenizer(byte_tokenizer(), chat_template=CHAT_TEMPLATE)
    limits = replace(LIMITS, knows_priority=knows_priority, itl_target=itl_target)
    backend.open(Service((MODEL,), tokenizer, limits, frozenset(), client, (), MEMORY))
    transport = httpx.ASGITransport(create_app(backend))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.post(path, json=body)
        assert answer.status_code == 200, answer.text
    return sent


@pytest.mark.parametrize(("path", "asked"), [(COMPLETIONS, {"prompt": HELLO_PROMPT}), (CHAT, {"messages": HELLO})])
def test_a_request_may_stand_still_for_longer_than_others(path: str, asked: dict[str, Any]) -> None:
    """Seconds in the API, integers in the scheduler; less than the server grants is refused, with what it grants."""

    async def test() -> None:
        (loose,) = await submits_of(path, asked | {"itl_target": 1.5}, itl_target=200_000)
        (plain,) = await submits_of(path, asked, itl_target=200_000)
        assert (loose.itl_target, plain.itl_target) == (1_500_000, 0)
        with pytest.raises(AssertionError, match=r"itl_target 0\.1 is below the engine's target; at least 0\.2"):
            await submits_of(path, asked | {"itl_target": 0.1}, itl_target=200_000)

    run(test)


@pytest.mark.parametrize(("path", "asked"), [(COMPLETIONS, {"prompt": HELLO_PROMPT}), (CHAT, {"messages": HELLO})])
def test_samples_differ_by_their_number_alone(path: str, asked: dict[str, Any]) -> None:
    """One seed for all of them, drawn once if none was sent; the engine never sees `n`."""

    async def test() -> None:
        body = asked | {"n": 3, "cache_salt": "tenant", "priority": -7}
        first, *rest = await submits_of(path, body, knows_priority=True)
        assert [submit.sample_index for submit in (first, *rest)] == [0, 1, 2]
        assert [submit.request_id for submit in rest] == [first.request_id + 1, first.request_id + 2]
        assert (first.extra_key, first.priority, first.sampling.n) == ("tenant", -7, 1)
        for submit in rest:
            assert (submit.prompt, submit.sampling) == (first.prompt, first.sampling)
            assert (submit.extra_key, submit.priority) == (first.extra_key, first.priority)
        (plain,) = await submits_of(path, asked)
        assert (plain.extra_key, plain.priority, plain.sample_index) == ("", 0, 0)

    run(test)


def test_priorities_order_a_full_engine() -> None:
    async def test() -> None:
        async with serving(schedule_policy="priority", max_running_requests=1) as server:
            body: dict[str, Any] = {"prompt": "ab", "max_tokens": 100}
            calls = [asyncio.create_task(server.complete(**body, priority=p)) for p in (0, 1, 5, 3)]
            for call in calls:
                await call
            opened = [new.request_id for plan in server.engine.runner.plans for new in plan.new_slots]
            assert opened[-3:] == sorted(opened[-3:], key=lambda request_id: -[0, 1, 5, 3][request_id - 1])

    run(test)
