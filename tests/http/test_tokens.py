"""vLLM's routes of tokens: prompts as the model would get them, and token ids in, token ids out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripted import scripted
from serving import MODEL, expected_text, run, serving
from shadow_engine import MAX_MODEL_LEN, VOCAB
from sluice.types import SamplingDefaults

SAID = [{"role": "user", "content": "hello"}]
RENDERED = "user: hello\n"


def test_a_chat_is_rendered_and_not_computed() -> None:
    """The model's settings for what the body leaves open are there, and the tokens that still fit."""

    async def test() -> None:
        async with serving(sampling_defaults=SamplingDefaults(temperature=0.5)) as server:
            asked = {"messages": SAID, "top_k": 7, "stop": "x", "logit_bias": {"5": 1.5}}
            answer = (await server.post("/v1/chat/completions/render", **asked)).json()
            assert (answer["prompt_text"], answer["token_ids"]) == (RENDERED, [*RENDERED.encode()])
            assert (answer["model"], answer["stream"], answer["cache_salt"]) == (MODEL, False, None)
            sampling = answer["sampling_params"]
            assert (sampling["temperature"], sampling["top_k"], sampling["stop"]) == (0.5, 7, ["x"])
            assert (sampling["logit_bias"], sampling["seed"]) == ({"5": 1.5}, None)
            assert sampling["max_tokens"] == MAX_MODEL_LEN - len(RENDERED)
            assert server.sent == []

    run(test)


def test_tools_are_in_the_prompt() -> None:
    async def test() -> None:
        async with scripted("") as server:
            tools = [{"type": "function", "function": {"name": "look_up"}}]
            answer = (await server.post("/v1/chat/completions/render", messages=SAID, tools=tools)).json()
            assert answer["prompt_text"].startswith('tools: [{"')
            assert server.submitted == []

    run(test)


def test_completions_are_rendered() -> None:
    async def test() -> None:
        async with serving() as server:
            for prompt, texts in (("ab", ["ab"]), (["ab", "c"], ["ab", "c"]), ([*b"ab"], ["ab"])):
                answer = (await server.post("/v1/completions/render", prompt=prompt)).json()
                assert [each["prompt_text"] for each in answer] == texts
                assert [bytes(each["token_ids"]).decode() for each in answer] == texts
                assert len({each["request_id"] for each in answer}) == len(texts)

    run(test)


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/chat/completions/render", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "a" * 999}]}, 400, "messages"),
        ("/v1/chat/completions/render", {"messages": SAID, "top_p": 2}, 400, "top_p"),
        ("/v1/chat/completions/render", {"messages": SAID, "model": "other"}, 404, "model"),
        ("/v1/completions/render", {"prompt": ""}, 400, "prompt"),
        ("/v1/completions/render", {"prompt": [VOCAB]}, 400, "prompt"),
        ("/v1/completions/render", {"prompt": "a", "max_tokens": 999}, 400, "max_tokens"),
        ("/inference/v1/generate", {"token_ids": [], "sampling_params": {}}, 400, "token_ids"),
        ("/inference/v1/generate", {"token_ids": [VOCAB], "sampling_params": {}}, 400, "token_ids"),
        ("/inference/v1/generate", {"token_ids": "ab", "sampling_params": {}}, 400, "token_ids"),
        ("/inference/v1/generate", {"token_ids": [1]}, 400, "sampling_params"),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"top_p": 2}}, 400, "sampling_params.top_p"),
        ("/inference/v1/generate", {"token_ids": [1] * MAX_MODEL_LEN, "sampling_params": {}}, 400, "token_ids"),
        (
            "/inference/v1/generate",
            {"token_ids": [1], "sampling_params": {}, "request_id": "a" * 257},
            400,
            "request_id",
        ),
        (
            "/inference/v1/generate",
            {"token_ids": [1], "sampling_params": {"max_tokens": 999}},
            400,
            "sampling_params.max_tokens",
        ),
    ],
)
def test_what_would_be_refused_is_refused_here(path: str, body: dict[str, Any], status: int, param: str) -> None:
    async def test() -> None:
        async with serving() as server:
            answer = await server.post(path, **body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
            assert server.sent == []

    run(test)


def test_what_was_rendered_is_answered_as_a_chat_is() -> None:
    """One server cuts texts, another computes tokens: the tokens are those of a chat."""

    async def test() -> None:
        async with serving(strict_fields=True) as server:
            asked = {"messages": SAID, "max_tokens": 9, "seed": 3}
            rendered = (await server.post("/v1/chat/completions/render", **asked)).json()
            answer = (await server.post("/inference/v1/generate", **rendered)).json()
            (choice,) = answer["choices"]
            assert bytes(choice["token_ids"]).decode() == expected_text(RENDERED, 9, seed=3)
            assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
            assert answer["request_id"] == rendered["request_id"]
            assert answer["usage"]["completion_tokens"] == 9

    run(test)


def test_a_stream_of_tokens() -> None:
    async def test() -> None:
        async with serving() as server:
            sampling = {"max_tokens": 9, "seed": 3, "logprobs": 1}
            asked = {"token_ids": [*b"ab"], "sampling_params": sampling, "request_id": "mine"}
            options = {"stream_options": {"include_usage": True}}
            *events, last = await server.events("/inference/v1/generate", **asked, **options)
            tokens = [token for event in events for token in event["choices"][0]["token_ids"]]
            assert bytes(tokens).decode() == expected_text("ab", 9, seed=3)
            assert all(len(event["choices"][0]["logprobs"]["content"]) == 1 for event in events)
            assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 8 + ["length"]
            assert last["choices"] == []
            assert last["usage"]["completion_tokens"] == 9
            assert {event["request_id"] for event in (*events, last)} == {"mine"}

    run(test)


def test_constraints_stand_among_the_parameters() -> None:
    async def test() -> None:
        async with scripted("yes") as server:
            sampling = {"structured_outputs": {"choice": ["yes", "no"]}}
            answer = await server.post("/inference/v1/generate", token_ids=[97], sampling_params=sampling)
            assert answer.status_code == 200, answer.text
            (submitted,) = server.submitted
            assert "yes" in json.dumps(submitted.grammar)

    run(test)


def test_completions_take_and_return_tokens() -> None:
    """`return_token_ids` with a prompt of ids is the same on OpenAI's own route; a chat has it, too."""

    async def test() -> None:
        async with serving() as server:
            asked = {"max_tokens": 5, "seed": 3, "return_token_ids": True}
            (choice,) = (await server.complete(prompt=[*b"ab"], **asked))["choices"]
            assert choice["prompt_token_ids"] == [*b"ab"]
            assert bytes(choice["token_ids"]).decode() == expected_text("ab", 5, seed=3)
            answer = (await server.post("/v1/chat/completions", messages=SAID, **asked)).json()
            assert bytes(answer["prompt_token_ids"]).decode() == RENDERED
            assert bytes(answer["choices"][0]["token_ids"]).decode() == expected_text(RENDERED, 5, seed=3)
            first, *rest = await server.events("/v1/chat/completions", messages=SAID, **asked)
            assert bytes(first["prompt_token_ids"]).decode() == RENDERED
            tokens = [token for event in rest for token in event["choices"][0]["token_ids"]]
            assert tokens == answer["choices"][0]["token_ids"]

    run(test)
