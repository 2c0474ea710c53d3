"""Requests that are refused, with which message, and without harm to other requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from serving import MODEL, expected_text, run, serving
from shadow_engine import MAX_MODEL_LEN, VOCAB
from sluice.engine.messages import Abort
from sluice.http.apis.anthropic.fields import parse_messages
from sluice.http.apis.responses.fields import parse_response
from sluice.http.apis.responses.store import ResponseStore
from sluice.http.base.backend import Backend
from sluice.http.base.body import LONG_BODY, parsed
from sluice.http.base.errors import ApiError
from sluice.http.call.openai import parse_chat, parse_completion
from sluice.testing import Faults
from sluice.text.chat_template import ChatTemplate
from sluice.text.tokenizer import Tokenizer
from tokenizer_makers import byte_tokenizer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def assert_error(answer: Any, status: int, param: str | None, *said: str) -> None:
    """OpenAI's error shape, and a message that names what is wrong."""
    assert answer.status_code == status, (param, said, answer.text)
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert all(words in error["message"] for words in said), error


BAD_COMPLETIONS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "required"),
    ({"prompt": None}, "prompt", "required"),
    ({"prompt": ""}, "prompt", "an empty text"),
    ({"prompt": []}, "prompt", "an empty list"),
    ({"prompt": ["a", ""]}, "prompt[1]", "an empty text"),
    ({"prompt": [[]]}, "prompt", "an empty list"),
    ({"prompt": [1, "a"]}, "prompt[0]", "the number 1"),
    ({"prompt": [1.5]}, "prompt", "the number 1.5"),
    ({"prompt": [True]}, "prompt", "true"),
    ({"prompt": {"text": "a"}}, "prompt", "an object"),
    ({"prompt": 5}, "prompt", "the number 5"),
    ({"prompt": [VOCAB]}, "prompt", f"token id {VOCAB}"),
    ({"prompt": [-1]}, "prompt", "token id -1"),
    ({"prompt": [10**15]}, "prompt", "token id"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens", "at least 1, got 0; 0 is only allowed with echo: true"),
    ({"prompt": "a", "max_tokens": -3}, "max_tokens", "got -3"),
    ({"prompt": "a", "max_tokens": "5"}, "max_tokens", 'got `str`: "5"'),
    ({"prompt": "a", "max_tokens": "5" * 100}, "max_tokens", "got `str`"),
    ({"prompt": "a", "max_completion_tokens": 0}, "max_completion_tokens", "got 0; 0 is only allowed with echo: true"),
    ({"prompt": "a", "max_completion_tokens": 3, "max_tokens": 4}, "max_completion_tokens", "contradict"),
    ({"prompt": "a", "tools": [{"type": "function"}]}, "tools", "not supported; leave it out"),
    ({"prompt": "a", "format": "json"}, "format", "not supported; leave it out, or send response_format"),
    ({"prompt": "a", "max_tokens": 5.5}, "max_tokens", "got `float`"),
    ({"prompt": "a", "max_tokens": True}, "max_tokens", "got `bool`"),
    ({"prompt": "a", "max_tokens": MAX_MODEL_LEN}, "max_tokens", f"context is {MAX_MODEL_LEN}"),
    ({"prompt": "a" * MAX_MODEL_LEN}, "prompt", f"context is {MAX_MODEL_LEN}"),
    ({"prompt": "a" * 5000}, "prompt", "5000 tokens"),
    ({"prompt": "a", "temperature": -0.1}, "temperature", "got -0.1"),
    ({"prompt": "a", "temperature": "1"}, "temperature", "got `str`"),
    ({"prompt": "a", "top_p": 0}, "top_p", "(0, 1]"),
    ({"prompt": "a", "top_p": 1.1}, "top_p", "got 1.1"),
    ({"prompt": "a", "top_k": -2}, "top_k", "got -2"),
    ({"prompt": "a", "min_p": 2}, "min_p", "[0, 1]"),
    ({"prompt": "a", "seed": 2**70}, "seed", ""),
    ({"prompt": "a", "seed": "x"}, "seed", "got `str`"),
    ({"prompt": "a", "stop": [1]}, "stop[0]", "got `int`"),
    ({"prompt": "a", "stop": ["x"] * 17}, "stop", "at most 16"),
    ({"prompt": "a", "stop": "x" * 1001}, "stop", "1000 characters"),
    ({"prompt": "a", "stop_token_ids": [-1]}, "stop_token_ids", "token ids"),
    ({"prompt": "a", "stop_token_ids": "a"}, "stop_token_ids", "got `str`"),
    ({"prompt": "a", "ignore_eos": 1}, "ignore_eos", "got `int`"),
    ({"prompt": "a", "stream": "true"}, "stream", "got `str`"),
    ({"prompt": "", "stream": True}, "prompt", "an empty text"),
    ({"prompt": "a", "max_tokens": MAX_MODEL_LEN, "stream": True}, "max_tokens", f"context is {MAX_MODEL_LEN}"),
    ({"prompt": "a", "model": 5}, "model", "got `int`"),
    ({"prompt": "a", "n": 0}, "n", "an integer from 1 to 128, got 0"),
    ({"prompt": "a", "n": 129}, "n", "an integer from 1 to 128, got 129"),
    ({"prompt": "a", "n": True}, "n", "got `bool`"),
    ({"prompt": "a", "n": 1.5}, "n", "got `float`"),
    ({"prompt": "a", "n": 2, "best_of": 1}, "best_of", "send as many as n, 2"),
    ({"prompt": "a", "cache_salt": ""}, "cache_salt", "1 to 256 characters, got 0 characters"),
    ({"prompt": "a", "cache_salt": "x" * 257}, "cache_salt", "1 to 256 characters, got 257 characters"),
    ({"prompt": "a", "cache_salt": 5}, "cache_salt", "got `int`"),
    ({"prompt": "a", "priority": 1}, "priority", "(--schedule-policy priority)"),
    ({"prompt": "a", "priority": "high"}, "priority", "or one of interactive, standard, batch, got 'high'"),
    ({"prompt": "a", "priority": ""}, "priority", "or one of interactive, standard, batch, got ''"),
    ({"prompt": "a", "priority": "batch"}, "priority", "(--schedule-policy deadline)"),
    ({"prompt": "a", "service_tier": 3}, "service_tier", "got `int`"),
    ({"prompt": "a", "priority": 2**63}, "priority", "at most 64 bits"),
    ({"prompt": "a", "best_of": 3}, "best_of", "not supported"),
    ({"prompt": "a", "logprobs": -1}, "logprobs", "an integer from 0 to 20, got -1"),
    ({"prompt": "a", "logprobs": 21}, "logprobs", "an integer from 0 to 20, got 21"),
    ({"prompt": "a", "logprobs": True}, "logprobs", "got `bool`"),
    ({"prompt": "a", "top_logprobs": 2}, "top_logprobs", "not supported"),
    ({"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs", "an integer from 0 to 20, got 21"),
    ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs", "an integer from 0 to 20, got -1"),
    ({"prompt": "a", "prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "send stream: false"),
    ({"prompt": "a", "echo": 1}, "echo", "got `int`"),
    ({"prompt": "a", "echo": True, "stream": True, "logprobs": 1}, "logprobs", "send stream: false"),
    ({"prompt": "a", "echo": True, "logprobs": 1, "prompt_logprobs": 2}, "prompt_logprobs", "as many as logprobs, 1"),
    ({"prompt": "a", "echo": True, "max_tokens": -2}, "max_tokens", "at least 1, got -2"),
    ({"prompt": ["a"] * 40, "n": 128}, "prompt", "5120 choices; at most 4096"),
    ({"prompt": "a", "timeout": 0}, "timeout", "above 0"),
    ({"prompt": "a", "timeout": -1}, "timeout", "got -1"),
    ({"prompt": "a", "timeout": "5"}, "timeout", "got `str`"),
    ({"prompt": "a", "timeout": 1e8}, "timeout", "at most 1e+07"),
    ({"prompt": "a", "max_queue_time": 0}, "max_queue_time", "above 0"),
    ({"prompt": "a", "itl_target": -1}, "itl_target", "above 0"),
    ({"prompt": "a", "itl_target": 1.5}, "itl_target", "needs an engine with a target (--itl-target)"),
    ({"prompt": "a", "suffix": "b"}, "suffix", "not supported"),
    ({"prompt": "a", "logit_bias": {str(VOCAB): 1}}, "logit_bias", f"token id {VOCAB} in logit_bias is outside"),
    ({"prompt": "a", "logit_bias": {str(10**9): 1}}, "logit_bias", "outside the vocabulary"),
    ({"prompt": "a", "logit_bias": {str(10**20): 1}}, "logit_bias", "by token id"),
    ({"prompt": "a", "logit_bias": {"-1": 1}}, "logit_bias", "by token id, got '-1'"),
    ({"prompt": "a", "logit_bias": {"one": 1}}, "logit_bias", "by token id, got 'one'"),
    ({"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias", "from -100 to 100"),
    ({"prompt": "a", "logit_bias": {"05": 1, "5": 1}}, "logit_bias", "one number for each token"),
    ({"prompt": "a", "logit_bias": {"5": "much"}}, "logit_bias[...]", "got `str`"),
    (
        {"prompt": ["a"] * 50, "n": 80, "logit_bias": {str(token): 1 for token in range(VOCAB + 200)}},
        "logit_bias",
        "4000 choices with 327 entries of logit_bias each are 1308000 biases; at most 1048576",
    ),
    ({"prompt": "a", "logit_bias": [5]}, "logit_bias", "got `array`"),
    ({"prompt": "a", "presence_penalty": 2.5}, "presence_penalty", "from -2 to 2, got 2.5"),
    ({"prompt": "a", "frequency_penalty": -3}, "frequency_penalty", "from -2 to 2, got -3"),
    ({"prompt": "a", "frequency_penalty": "0"}, "frequency_penalty", "got `str`"),
    ({"prompt": "a", "repetition_penalty": 0.001}, "repetition_penalty", "in [0.01, 100], got 0.001"),
    ({"prompt": "a", "min_tokens": -1}, "min_tokens", "at least 0 and at most 16, got -1"),
    ({"prompt": "a", "min_tokens": 17}, "min_tokens", "at least 0 and at most 16, got 17"),
    ({"prompt": "a", "min_tokens": 1.0}, "min_tokens", "got `float`"),
    ({"prompt": "a", "stop_token_ids": [VOCAB]}, "stop_token_ids", f"token id {VOCAB} in stop_token_ids is outside"),
    ({"prompt": "a", "stop_token_ids": [10**30]}, "stop_token_ids", ""),
    ({"prompt": "a", "chat_template": "x"}, "chat_template", "not supported"),
    ({"prompt": "a", "max_token": 5}, "max_token", "did you mean max_tokens?"),
    ({"prompt": "a", "temprature": 0}, "temprature", "did you mean temperature?"),
    ({"prompt": "a", "maxTokens": 5}, "maxTokens", "did you mean max_tokens?"),
    ({"prompt": "a", "top-p": 0.5}, "top-p", "did you mean top_p?"),
    ({"prompt": "a", "guided_jsons": {}}, "guided_jsons", "did you mean guided_json?"),
    ({"prompt": "a", "max_new_tokens": 5}, "max_new_tokens", "send max_tokens"),
    ({"prompt": "a", "enable_thinking": True}, "enable_thinking", "leave it out, or send null"),
    ({"prompt": "a", "typical_p": 0.9}, "typical_p", "send null or 1"),
    ({"prompt": "a", "num_ctx": -2}, "num_ctx", "at least 1, or 0 or -1"),
    ({"prompt": "a", "add_special_tokens": 1}, "add_special_tokens", "got `int`"),
]


def test_bad_completions() -> None:
    """Each in turn at one server, which must be as good as new after all of them."""

    async def test() -> None:
        async with serving() as server:
            for body, param, said in BAD_COMPLETIONS:
                assert_error(await server.post(COMPLETIONS, **body), 400, param, said)
            assert (await server.complete(prompt="ab", seed=0))["choices"][0]["text"] == expected_text("ab", 16)

    run(test)


NUMBERS = [
    *("max_tokens", "min_tokens", "n", "top_k", "seed", "logprobs", "prompt_logprobs", "priority"),
    *("temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty", "timeout", "max_queue_time"),
    "itl_target",
]


@pytest.mark.parametrize("digits", [20, 4300, 4301])
def test_numbers_of_thousands_of_digits(digits: int) -> None:
    """Python writes none of more than 4,300 digits, so neither they nor a sum with them may be put into a message."""
    number = "9" * digits

    async def test() -> None:
        async with serving() as server:
            for name in NUMBERS:
                if name == "temperature" and digits == 20:
                    continue
                body = f'{{"prompt": "a", "{name}": {number}, "max_completion_tokens": null}}'
                answer = await server.http.post(COMPLETIONS, content=body)
                said = answer.json()["error"]["message"]
                assert answer.status_code == 400, (name, said)
                assert name in said or "JSON" in said, (name, said)

    run(test)


HI = [{"role": "user", "content": "hi"}]
ARGUMENTS = "messages[0].tool_calls[0].function.arguments"
CONTINUED = "chat_template_kwargs.continue_final_message"


def call_with(arguments: str | dict[str, Any]) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


CALL = call_with("{}")
BAD_CHATS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "messages", "required"),
    ({"messages": []}, "messages", "at least one"),
    ({"messages": "hi"}, "messages", "got `str`"),
    ({"messages": ["hi"]}, "messages[0]", "got `str`"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role", "required"),
    (
        {"messages": [{"role": "owl", "content": "hi"}]},
        "messages[0].role",
        "'owl'; accepted: system, developer, user, assistant, tool, function",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].type",
        "'image_url' is not supported; accepted: text",
    ),
    ({"messages": [{"role": "user", "content": "hi", "contnet": "x"}]}, "messages[0].contnet", "did you mean content?"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
        "messages[0].tool_calls[0].function",
        "required",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [CALL | {"type": "code"}]}]},
        "messages[0].tool_calls[0].type",
        "must be function or custom, got 'code'",
    ),
    *(
        ({"messages": [{"role": "assistant", "tool_calls": [call_with(arguments)]}]}, ARGUMENTS, said)
        for arguments, said in (
            ({"a": 2**63 * 2}, "integers of at most 64 bits"),
            ({"a": nested(40)}, "nested at most 32 levels"),
        )
    ),
    *(
        ({"messages": HI, "chat_template_kwargs": {name: 1}}, f"chat_template_kwargs.{name}", "is reserved")
        for name in (
            "messages",
            "tokenize",
            "chat_template",
            "tools",
            "documents",
            "add_generation_prompt",
            "bos_token",
        )
    ),
    ({"messages": HI, "chat_template_kwargs": {"continue_final_message": 1}}, CONTINUED, "is reserved"),
    ({"messages": HI, "chat_template_kwargs": {"_x": 1}}, "chat_template_kwargs._x", "names of variables"),
    ({"messages": HI, "chat_template_kwargs": {"x" * 65: 1}}, "chat_template_kwargs." + "x" * 65, "names of variables"),
    ({"messages": HI, "chat_template_kwargs": {f"a{i}": 1 for i in range(65)}}, "chat_template_kwargs", "at most 64"),
    ({"messages": HI, "chat_template_kwargs": {"a": nested(33)}}, "chat_template_kwargs", "at most 32 levels"),
    ({"messages": HI, "chat_template_kwargs": {"a": 1 << 64}}, "chat_template_kwargs", "at most 64 bits"),
    ({"messages": HI, "chat_template_kwargs": []}, "chat_template_kwargs", "got `array`"),
    ({"messages": HI, "documents": [nested(40)]}, "documents[0]", "got `array`"),
    ({"messages": HI, "documents": [{"a": nested(40)}]}, "documents[0]", "at most 32 levels"),
    ({"messages": HI, "reasoning_effort": "Very high"}, "reasoning_effort", "a word of lower-case letters"),
    (
        {"messages": HI, "reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
        "reasoning_effort",
        "contradict",
    ),
    (
        {"messages": HI, "continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
        "excludes",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [CALL]}], "continue_final_message": True},
        "continue_final_message",
        "needs a last message with content",
    ),
    ({"messages": [{"role": "user", "content": "refuse me"}]}, "messages", "no such talk"),
    ({"messages": [{"role": "user", "content": "a" * 5000}]}, "messages", "5007 tokens"),
    ({"messages": HI, "max_tokens": 4, "max_completion_tokens": 5}, "max_completion_tokens", "contradict"),
    ({"messages": HI, "max_completion_tokens": 0}, "max_completion_tokens", "at least 1, got 0"),
    ({"messages": HI, "echo": True}, "echo", "not supported"),
    ({"messages": HI, "timeout": 0}, "timeout", "above 0"),
    ({"messages": HI, "logit_bias": {str(VOCAB): 1}}, "logit_bias", "outside the vocabulary"),
    ({"messages": HI, "tools": [{"type": "function"}]}, "tools[0].function", "is required"),
    ({"messages": HI, "tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"messages": HI, "response_format": {"type": "json"}}, "response_format.type", "must be one of text, json_object"),
    ({"messages": HI, "logprobs": 1}, "logprobs", "got `int`"),
    ({"messages": HI, "top_logprobs": 1}, "top_logprobs", "logprobs: true"),
    ({"messages": HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "an integer from 0 to 20, got 21"),
    ({"messages": HI, "logprobs": True, "top_logprobs": -1}, "top_logprobs", "an integer from 0 to 20, got -1"),
    ({"messages": HI, "prompt": "a"}, "prompt", "not supported"),
    ({"messages": HI, "add_special_tokens": True}, "add_special_tokens", "not supported"),
    ({"messages": HI, "n": 0}, "n", "an integer from 1 to 128, got 0"),
    ({"messages": HI, "cache_salt": ""}, "cache_salt", "1 to 256 characters"),
    ({"messages": HI, "priority": -1}, "priority", "(--schedule-policy priority)"),
    ({"messages": HI, "best_of": 2}, "best_of", "send as many as n, 1"),
    ({"messages": HI, "min_tokens": MAX_MODEL_LEN}, "min_tokens", f"min_tokens {MAX_MODEL_LEN}"),
]


def test_bad_chats() -> None:
    async def test() -> None:
        async with serving() as server:
            for body, param, said in BAD_CHATS:
                assert_error(await server.post(CHAT, **body), 400, param, said)

    run(test)


def test_fields_that_ask_for_nothing_are_fine() -> None:
    """Client libraries send their defaults along."""
    common = {"n": 1, "user": "me", "metadata": {"a": "b"}, "presence_penalty": 0.0, "logit_bias": {}, "made_up": None}
    common |= {"tools": [], "response_format": {"type": "text"}, "best_of": 1, "store": True, "num_ctx": 8}
    common |= {"typical_p": 1, "cache_prompt": True, "chat_id": "c", "keep_alive": "5m", "repeat_penalty": 1.0}
    chat = {"tool_choice": "auto", "logprobs": False}
    nulls = dict.fromkeys(["max_tokens", "temperature", "seed", "stop", "stream", "stream_options", "top_p", "model"])

    async def test() -> None:
        async with serving() as server:
            asked = {"prompt": "ab", **nulls, **common, "echo": False}
            assert (await server.complete(**asked))["usage"]["completion_tokens"] == 16
            said = {"role": "assistant", "content": "yes", "tool_calls": [], "refusal": None}
            answer = await server.post(CHAT, messages=[*HI, said], **nulls, **common, **chat)
            assert answer.status_code == 200, answer.text

    run(test)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not valid JSON"),
        (b'{"prompt": "a"', "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b'{"prompt": "a", "temperature": NaN}', "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'{"prompt": "\\ud83d"}', ""),
        (b'{"prompt": ' + b"[" * 4000, "not valid JSON"),
        (b'{"prompt": "a", "seed": 1e999}', ""),
        (b'{"prompt": "a", "max_tokens": 1' + b"0" * 400 + b"}", ""),
    ],
)
def test_broken_json(body: bytes, said: str) -> None:
    async def test() -> None:
        async with serving() as server:
            for path in (COMPLETIONS, CHAT):
                answer = await server.http.post(path, content=body)
                assert answer.status_code == 400
                assert said in answer.json()["error"]["message"]

    run(test)


def test_other_refusals() -> None:
    async def test() -> None:
        async with serving(max_body_bytes=100) as server:
            wrong = await server.post(COMPLETIONS, model="other", prompt="a")
            assert_error(wrong, 404, "model", "'other'", repr(MODEL))
            assert wrong.json()["error"]["code"] == "model_not_found"
            assert_error(await server.post(COMPLETIONS, prompt="a" * 100), 413, None, "100 bytes")
            assert_error(await server.http.get("/v2/nothing"), 404, None, "GET /v2/nothing")
            wrong = await server.http.get(COMPLETIONS)
            assert_error(wrong, 405, None, "GET", COMPLETIONS)
            assert wrong.headers["allow"] == "POST"

    run(test)


def test_every_refusal_is_short() -> None:
    """A message that names what it refuses would give megabytes back."""

    async def test() -> None:
        async with serving(max_body_bytes=10**7) as server:
            for body, param in (
                ({"logit_bias": {"x" * 10**6: 1}, "prompt": "a"}, "logit_bias"),
                ({"prompt": "a", "stop_token_ids": [-1] * 10**6}, "stop_token_ids"),
                ({"prompt": "a", "stop": "y", "best_of": "z" * 10**6}, "best_of"),
            ):
                answer = await server.post(COMPLETIONS, **body)
                assert answer.status_code == 400
                assert len(answer.content) < 4000
                assert answer.json()["error"]["param"] == param

    run(test)


LONG = "y" * (4 << 20)
LONG_VALUES: list[tuple[Callable[[bytes], object], dict[str, Any]]] = [
    *((parse_chat, {"messages": [{"role": LONG}], "max_tokens": 1} | fields) for fields in ({}, {LONG: 1})),
    *(
        (parse_chat, {"messages": [{"role": "user", "content": "a"}], **fields})
        for fields in (
            {"tool_choice": LONG},
            {"reasoning_effort": LONG},
            {"chat_template_kwargs": {LONG: 1}},
            {"response_format": {"type": LONG}},
            {"tools": [{"type": LONG}]},
            {"messages": [{"role": "user", "content": [{"type": LONG}]}]},
        )
    ),
    *(
        (parse_completion, {"prompt": "a", **fields})
        for fields in (
            {"priority": LONG},
            {"logit_bias": {LONG: 1}},
            {"stream_options": {LONG: 1}},
            {"stop": [LONG]},
            {"stop_token_ids": [-1] * 10**6},
            {"logit_bias": {f"{token}": 101 for token in range(10**5)}},
        )
    ),
    (partial(parse_response, ResponseStore(1, 1), b""), {"input": "a", "previous_response_id": LONG}),
    (partial(parse_response, ResponseStore(1, 1), b""), {"input": "a", "tool_choice": LONG}),
    (parse_messages, {"model": "a", "max_tokens": 1, "messages": [{"role": LONG, "content": "a"}]}),
]


@pytest.mark.parametrize(("parse", "body"), LONG_VALUES)
def test_a_refusal_takes_no_longer_than_to_read_the_body(
    parse: Callable[[bytes], object], body: dict[str, Any]
) -> None:
    """To quote a text of 30 MB in a message kept the event loop waiting for 0.7 s, though it ran in a thread: nothing
    else runs meanwhile. Processor time, of which a busy machine takes little more."""
    content = json.dumps(body).encode()

    def seconds(work: Callable[[bytes], object]) -> float:
        began = time.thread_time()
        with contextlib.suppress(ApiError):
            work(content)
        return time.thread_time() - began

    plain = min(seconds(msgspec.json.decode) for _ in range(3))
    assert min(seconds(parse) for _ in range(5)) < 10 * plain + 0.012


class NoEncoder(Tokenizer):
    """Must not be asked."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        raise AssertionError("tokenized")


def test_what_cannot_fit_is_not_tokenized() -> None:
    """Thirty megabytes of text take a processor many seconds, only to be refused."""

    async def test() -> None:
        async with serving(max_body_bytes=10**6) as server:
            tokenizer = NoEncoder(byte_tokenizer(), chat_template=ChatTemplate("{{ messages }}", {}))
            server.backend.open(replace(server.backend.service(), tokenizer=tokenizer))
            text = "a" * 50_000
            message = {"role": "user", "content": text}
            for path, param, body in (
                (COMPLETIONS, "prompt", {"prompt": ["b", text]}),
                (CHAT, "messages", {"messages": [message]}),
                ("/generate", "prompt", {"text": text}),
                ("/tokenize", "prompt", {"prompt": text}),
                ("/tokenize", "messages", {"messages": [message]}),
            ):
                answer = await server.post(path, **body)
                assert_error(answer, 400, param, "50000 characters", f"{MAX_MODEL_LEN} tokens")
                assert answer.json()["error"]["code"] == "context_length_exceeded"

    run(test)


TEXT = "a" * 50_000


@pytest.mark.parametrize(
    "chat",
    [
        {"documents": [{"text": "a"}, {"text": TEXT}]},
        {"chat_template_kwargs": {"owls": [{"barn": TEXT}]}},
        {"messages": [{"role": "user", "content": "a", "name": TEXT}]},
        {"messages": [{"role": "assistant", "tool_calls": [call_with(json.dumps({"a": [TEXT]}))]}]},
    ],
)
def test_every_text_of_a_chat_counts_before_it_is_rendered(chat: dict[str, Any]) -> None:
    async def test() -> None:
        async with serving(max_body_bytes=10**6) as server:
            tokenizer = Tokenizer(byte_tokenizer(), chat_template=ChatTemplate("{{ raise_exception('rendered') }}", {}))
            server.backend.open(replace(server.backend.service(), tokenizer=tokenizer))
            for path in (CHAT, "/tokenize"):
                answer = await server.post(path, **{"messages": HI} | chat)
                assert_error(answer, 400, "messages", "characters", f"{MAX_MODEL_LEN} tokens")
                assert answer.json()["error"]["code"] == "context_length_exceeded"

    run(test)


def test_a_long_body_leaves_the_event_loop() -> None:
    """Millions of token ids take a second to be looked at, in which no stream went on."""

    async def where(length: int) -> int:
        with ThreadPoolExecutor(1) as parsers:
            return await parsed(lambda body: threading.get_ident(), [b"x" * length], parsers)

    assert asyncio.run(where(100)) == threading.get_ident() != asyncio.run(where(LONG_BODY))


def test_without_a_chat_template_only_chat_is_refused() -> None:
    async def test() -> None:
        async with serving(chat=False) as server:
            assert_error(await server.post(CHAT, messages=HI), 400, "messages", "no chat template")
            assert (await server.complete(prompt="ab"))["choices"]

    run(test)


def test_one_of_several_prompts_that_is_too_long_starts_none() -> None:
    async def test() -> None:
        async with serving() as server:
            answer = await server.post(COMPLETIONS, prompt=["ok", "a" * MAX_MODEL_LEN])
            assert_error(answer, 400, "prompt", "200 tokens")

    run(test)


def test_before_and_after_the_engine() -> None:
    """A load balancer must neither send to a server that still loads nor keep sending to one whose engine died."""

    async def test() -> None:
        async with serving() as server:
            running = asyncio.create_task(server.post(COMPLETIONS, prompt="a", max_tokens=150))
            while not server.client.num_open:
                await asyncio.sleep(0)
            server.backend.close("the engine was killed by signal 9")
            assert_error(await running, 500, None, "killed by signal 9")
            assert (await server.http.get("/health")).status_code == 503
            for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": HI})):
                assert_error(await server.post(path, **body), 503, None, "killed by signal 9")
            assert_error(await server.http.get("/v1/models"), 503, None, "killed")
            server.channel.send(Abort(1))  # this engine lives

    run(test)
    assert Backend().status == "the model is loading"
    assert not Backend().is_ready


def test_a_failed_step_ends_its_request_and_no_other() -> None:
    async def test() -> None:
        async with serving(faults=Faults(wait_raises=frozenset({2}))) as server:
            assert_error(await server.post(COMPLETIONS, prompt="a", max_tokens=9), 500, None, "wait 2")
            assert (await server.complete(prompt="ab", seed=0))["choices"][0]["text"] == expected_text("ab", 16)

    run(test)


def test_a_failure_within_a_stream_is_an_event() -> None:
    """The status was sent long ago; a stream that just ends would look complete."""

    async def test() -> None:
        async with serving(faults=Faults(wait_raises=frozenset({2}))) as server:
            answer = await server.post(COMPLETIONS, prompt="a", max_tokens=9, stream=True)
            assert answer.status_code == 200
            assert "[DONE]" not in answer.text
            assert '"error":{"message":"the step failed: InjectedFault: wait 2"' in answer.text.split("\n\n")[-2]

    run(test)
