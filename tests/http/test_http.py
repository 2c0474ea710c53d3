"""The API as its clients see it, over the shadow model."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from serving import MODEL, Server, expected_text, run, serving
from shadow_engine import MAX_MODEL_LEN, PAGE_SIZE
from sluice.engine.messages import Abort, Submit
from sluice.text.chat_template import ChatTemplate
from sluice.text.tokenizer import Tokenizer
from sluice.types import FinishReason
from tokenizer_makers import byte_tokenizer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
HELLO_PROMPT = "user: hello\n"


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["text"] for choice in choices)


def test_a_completion() -> None:
    async def test() -> None:
        async with serving() as server:
            answer = await server.complete(model=MODEL, prompt="ab", max_tokens=9, seed=0)
            Completion.model_validate(answer)
            assert answer["choices"] == [
                {"index": 0, "text": expected_text("ab", 9), "logprobs": None, "finish_reason": "length"}
            ]
            assert answer["usage"] == {
                "prompt_tokens": 2,
                "completion_tokens": 9,
                "total_tokens": 11,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
            assert (answer["object"], answer["model"], answer["created"]) == ("text_completion", MODEL, 1234)

    run(test)


def test_completions_default_to_16_tokens_and_chats_to_the_rest_of_the_context() -> None:
    async def test() -> None:
        async with serving() as server:
            assert (await server.complete(prompt="ab"))["usage"]["completion_tokens"] == 16
            chat = (await server.post(CHAT, messages=HELLO)).json()
            assert chat["usage"]["total_tokens"] == MAX_MODEL_LEN
            assert chat["choices"][0]["finish_reason"] == "length"

    run(test)


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("ab", ["ab"]),
        ([97, 98], ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([[97, 98], [99]], ["ab", "c"]),
        (["ab", [99]], ["ab", "c"]),
        (["same", "same", "same"], ["same"] * 3),
    ],
)
def test_every_form_of_prompt(prompt: object, parts: list[str]) -> None:
    """Choices of several prompts that come back in another order."""

    async def test() -> None:
        async with serving() as server:
            expected = [expected_text(part, 7, seed=3) for part in parts]
            answer = await server.complete(prompt=prompt, max_tokens=7, seed=3)
            assert [choice["text"] for choice in answer["choices"]] == expected
            assert [choice["index"] for choice in answer["choices"]] == list(range(len(parts)))
            assert answer["usage"]["completion_tokens"] == 7 * len(parts)
            assert answer["usage"]["prompt_tokens"] == sum(map(len, parts))
            events = await server.events(COMPLETIONS, prompt=prompt, max_tokens=7, seed=3)
            assert [text_of(events, index) for index in range(len(parts))] == expected

    run(test)


def test_a_completion_stream_has_one_event_per_token() -> None:
    """Benchmark clients count events; one that carries two tokens, or an end of its own, spoils every latency."""

    async def test() -> None:
        async with serving() as server:
            events = await server.events(COMPLETIONS, prompt="ab", max_tokens=9, seed=0)
            for event in events:
                Completion.model_validate({**event, "choices": [{**event["choices"][0], "finish_reason": "stop"}]})
            assert len(events) == 9
            assert text_of(events) == expected_text("ab", 9)
            reasons = [event["choices"][0]["finish_reason"] for event in events]
            assert reasons == [None] * 8 + ["length"]
            assert len({event["id"] for event in events}) == 1
            assert all("usage" not in event for event in events)

    run(test)


def test_a_chat_and_its_stream_say_the_same() -> None:
    async def test() -> None:
        async with serving() as server:
            body: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_completion_tokens": 9, "seed": 0}
            answer = (await server.post(CHAT, **body)).json()
            ChatCompletion.model_validate(answer)
            assert answer["choices"][0]["message"] == {
                "role": "assistant",
                "content": expected_text(HELLO_PROMPT, 9),
            }
            first, *events = await server.events(CHAT, **body)
            for event in (first, *events):
                ChatCompletionChunk.model_validate(event)
            assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            deltas = [event["choices"][0]["delta"] for event in events]
            assert [set(delta) for delta in deltas] == [{"content"}] * 9
            assert "".join(delta["content"] for delta in deltas) == answer["choices"][0]["message"]["content"]
            assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 8 + ["length"]

    run(test)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_usage_of_a_stream_comes_last(path: str) -> None:
    async def test() -> None:
        async with serving() as server:
            said: dict[str, Any] = {"prompt": HELLO_PROMPT} if path == COMPLETIONS else {"messages": HELLO}
            body = said | {"max_tokens": 5, "stream_options": {"include_usage": True}}
            *events, last = await server.events(path, **body)
            assert all(event["usage"] is None and event["choices"] for event in events)
            assert last["choices"] == []
            assert last["usage"]["completion_tokens"] == 5
            assert last["usage"]["prompt_tokens"] == len(HELLO_PROMPT)
            again = (await server.post(path, **said, max_tokens=5)).json()["usage"]
            whole_pages = (len(HELLO_PROMPT) - 1) // PAGE_SIZE * PAGE_SIZE
            assert again["prompt_tokens_details"] == {"cached_tokens": whole_pages}

    run(test)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_usage_may_come_with_every_event(path: str) -> None:
    """What guidellm and vLLM's benchmark count tokens by."""

    async def test() -> None:
        async with serving() as server:
            said: dict[str, Any] = {"prompt": HELLO_PROMPT} if path == COMPLETIONS else {"messages": HELLO}
            options = {"include_usage": True, "continuous_usage_stats": True}
            *events, last = await server.events(path, **said, n=2, max_tokens=3, stream_options=options)
            with_usage = [event for event in events if event["usage"] is not None]
            for index in (0, 1):
                own = [event["usage"] for event in with_usage if event["choices"][0]["index"] == index]
                assert [usage["completion_tokens"] for usage in own] == [1, 2, 3]
                assert {usage["prompt_tokens"] for usage in own} == {len(HELLO_PROMPT)}
            assert last["usage"]["completion_tokens"] == 6
            refused = await server.post(path, **said, stream=True, stream_options={"continuous_usage_stats": True})
            assert refused.json()["error"]["param"] == "stream_options"

    run(test)


def test_text_parts_and_the_developer_role() -> None:
    async def test() -> None:
        async with serving() as server:
            parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
            messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
            answer = (await server.post(CHAT, messages=messages, max_tokens=4, seed=0)).json()
            expected = expected_text("system: be brief\nuser: one\ntwo\n", 4)
            assert answer["choices"][0]["message"]["content"] == expected

    run(test)


def test_sampling_reaches_the_engine() -> None:
    async def test() -> None:
        async with serving() as server:
            texts = {seed: expected_text("ab", 6, seed=seed) for seed in (0, 7, -2)}
            assert len(set(texts.values())) == 3
            for seed, text in texts.items():
                assert (await server.complete(prompt="ab", max_tokens=6, seed=seed))["choices"][0]["text"] == text
            drawn = {(await server.complete(prompt="ab"))["choices"][0]["text"] for _ in range(4)}
            assert len(drawn) > 1, "requests without a seed must not all draw the same one"

    run(test)


def test_what_changes_logits_reaches_the_engine() -> None:
    """The shadow model has no logits to change; `tests/runner/test_penalties.py` says what becomes of them."""
    asked = {"min_tokens": 3, "presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.2}

    async def test() -> None:
        async with serving() as server:
            await server.complete(prompt="ab", max_tokens=4, logit_bias={"7": -2.5, "09": 1}, **asked)
            await server.post(CHAT, messages=HELLO, max_tokens=4, logit_bias={"7": -2.5, "09": 1}, **asked)
            submits = [message for message in server.sent if isinstance(message, Submit)]
            assert len(submits) == 2
            for submit in submits:
                assert {name: getattr(submit.sampling, name) for name in asked} == asked
                assert submit.sampling.logit_bias == ((7, -2.5), (9, 1.0))

    run(test)


def test_a_stop_token_ends_the_text_and_is_not_in_it() -> None:
    async def test() -> None:
        async with serving() as server:
            text = expected_text("ab", 12)
            stop = text[5]
            body = {"prompt": "ab", "max_tokens": 12, "seed": 0, "stop_token_ids": [ord(stop)]}
            answer = await server.complete(**body)
            assert answer["choices"][0]["text"] == text[: text.index(stop)]
            assert answer["choices"][0]["finish_reason"] == "stop"
            assert answer["usage"]["completion_tokens"] == text.index(stop) + 1
            assert len(await server.events(COMPLETIONS, **body)) == text.index(stop) + 1

    run(test)


@pytest.mark.parametrize("as_list", [True, False])
def test_a_stop_string_ends_the_request_at_the_engine_too(as_list: bool) -> None:
    """The engine knows no text: without an abort it would go on to `max_tokens` behind a finished answer."""

    async def test() -> None:
        async with serving() as server:
            text = expected_text("ab", 100)
            stop = text[10:13]
            end = text.index(stop)
            body = {"prompt": "ab", "max_tokens": 100, "seed": 0, "stop": [stop, "\x00\x00\x00"] if as_list else stop}
            answer = await server.complete(**body)
            assert answer["choices"][0] == {
                "index": 0,
                "text": text[:end],
                "logprobs": None,
                "finish_reason": "stop",
            }
            assert answer["usage"]["completion_tokens"] == end + 3
            events = await server.events(COMPLETIONS, **body)
            assert text_of(events) == text[:end]
            assert len(events) == end + 3
            assert events[-1]["choices"][0]["finish_reason"] == "stop"
            # On a busy machine the engine may have made all tokens before the text is looked at: then nothing is left
            # to abort. That does not happen every time.
            for _ in range(8):
                await server.complete(**body)
            assert {abort.reason for abort in server.aborts()} == {FinishReason.STOP}

    run(test)


def test_a_choice_that_found_its_stop_string_does_not_wait_for_the_others() -> None:
    """Else it holds its pages, and runs on, until the slowest choice of the call is done."""

    async def test() -> None:
        async with serving() as server:
            stop = expected_text("ab", 9)[5:9]
            assert stop not in expected_text("c", 150)
            answer = await server.complete(prompt=["ab", "c"], max_tokens=150, seed=0, stop=stop)
            assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "length"]
            assert server.aborts() == [Abort(1, FinishReason.STOP)]

    run(test)


def test_many_calls_at_once_do_not_mix() -> None:
    async def test() -> None:
        async with serving() as server:
            prompts = [f"prompt {number}" for number in range(20)]
            answers = await asyncio.gather(*(server.complete(prompt=p, max_tokens=11, seed=0) for p in prompts))
            for prompt, answer in zip(prompts, answers, strict=True):
                assert answer["choices"][0]["text"] == expected_text(prompt, 11)

    run(test)


async def _says(server: Server, path: str) -> tuple[int, Any]:
    answer = await server.http.get(path)
    return answer.status_code, answer.json()


def test_models_and_version() -> None:
    async def test() -> None:
        async with serving() as server:
            status, models = await _says(server, "/v1/models")
            assert status == 200
            assert [model["id"] for model in models["data"]] == [MODEL]
            assert (await _says(server, f"/v1/models/{MODEL}")) == (200, models["data"][0])
            assert (await _says(server, "/v1/models/other"))[0] == 404
            status, version = await _says(server, "/version")
            assert status == 200
            assert json.dumps(version).count(".") >= 2

    run(test)


def test_messages_of_an_agent_reach_the_template() -> None:
    """A transcript with calls and results, in the forms in which clients send them."""
    call = {"id": "c1", "type": "function", "index": 0, "function": {"name": "f", "arguments": '{"a": [1, "b"]}'}}
    template = (
        "{% for m in messages %}{{ m.role }}|{{ m.content }}|{{ m.reasoning_content }}|{{ m.tool_call_id }}|"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments.a[1] }}{% endfor %};{% endfor %}"
        "{{ enable_thinking }}{{ reasoning_effort }}{{ documents }}{{ add_generation_prompt }}"
    )
    talk = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "r"},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}],
        },
        {"role": "assistant", "tool_calls": [call]},
        {"role": "assistant", "content": "so "},
    ]
    lines = ["user|q|||", "assistant||r||b", "tool|x\ny||c1|", "assistant||||b", "assistant|so |||"]
    options = {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low", "documents": [{"t": 1}]}
    prompt = ";".join([*lines, "Falselow[{'t': 1}]True"])

    async def test() -> None:
        async with serving() as server:
            with closing(ChatTemplate(template, {})) as chat_template:
                tokenizer = Tokenizer(byte_tokenizer(), chat_template=chat_template)
                server.backend.open(replace(server.backend.service(), tokenizer=tokenizer))
                answer = await server.post("/tokenize", messages=talk, **options)
                assert bytes(answer.json()["tokens"]).decode() == prompt
                answer = await server.post("/tokenize", messages=talk, continue_final_message=True)
                assert bytes(answer.json()["tokens"]).decode().endswith(";assistant|so ")
                answer = await server.post("/tokenize", messages=talk, add_generation_prompt=False)
                assert bytes(answer.json()["tokens"]).decode().endswith("NoneFalse")
                (submit,) = await sent_for(server, messages=talk, **options)
                assert bytes(submit.prompt).decode() == prompt

    async def sent_for(server: Server, **body: Any) -> list[Submit]:
        assert (await server.post(CHAT, max_tokens=1, **body)).status_code == 200
        return [message for message in server.sent if isinstance(message, Submit)]

    run(test)
