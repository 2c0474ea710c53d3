"""Real answers against `/openapi.json`: what is sent and what is described must not come apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from api_cases import Described
from serving import MODEL, Server, run, serving

SAID = [{"role": "user", "content": "hi"}]
MANY: dict[str, Any] = {"n": 2, "max_tokens": 12, "return_token_ids": True, "store": True, "seed": 1}
TOP: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "ab", "max_tokens": 1}),
    ("/v1/completions", {"prompt": ["ab", "abc"], "logprobs": 2, "prompt_logprobs": 2, "echo": True, **MANY}),
    ("/v1/chat/completions", {"messages": SAID, "max_tokens": 1}),
    ("/v1/chat/completions", {"messages": SAID, "logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1, **MANY}),
    ("/generate", {"text": "ab", "sampling_params": {"max_new_tokens": 1}}),
    ("/generate", {"text": "ab", "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 9, "n": 2}, **TOP}),
    ("/generate", {"text": ["ab", "b"], "return_logprob": True, "sampling_params": {"stop": "a"}}),
    ("/v1/embeddings", {"input": ["ab", "b"], "dimensions": 2}),
    ("/v1/embeddings", {"input": "ab", "encoding_format": "base64"}),
    ("/rerank", {"query": "ab", "documents": ["ab", "b"]}),
    ("/v2/rerank", {"query": "ab", "documents": ["ab"], "return_documents": False}),
    ("/score", {"text_1": "ab", "text_2": ["ab", "b"]}),
    ("/tokenize", {"prompt": "ab", "return_token_strs": True}),
    ("/tokenize", {"messages": SAID}),
    ("/detokenize", {"tokens": [65, 66]}),
    ("/flush_cache", {}),
    ("/api/chat", {"model": MODEL, "messages": SAID, "logprobs": True, "top_logprobs": 1, "stream": False}),
    ("/api/generate", {"model": MODEL, "stream": False}),
    ("/api/show", {"model": MODEL}),
    ("/api/embed", {"model": MODEL, "input": "ab"}),
    ("/api/embeddings", {"model": MODEL, "prompt": "ab"}),
    ("/v1/messages", {"model": MODEL, "messages": SAID, "max_tokens": 9}),
    ("/v1/messages/count_tokens", {"model": MODEL, "messages": SAID}),
    ("/v1/responses", {"input": "ab", "max_output_tokens": 9, "top_logprobs": 2, "metadata": {"a": "b"}}),
]
USAGE = {"stream_options": {"include_usage": True}}
STREAMS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "ab", "max_tokens": 3}),
    ("/v1/completions", {"prompt": ["ab", "abc"], "logprobs": 2, **MANY, **USAGE}),
    ("/v1/completions", {"prompt": "ab", "max_tokens": 3, "echo": True, **USAGE}),
    ("/v1/chat/completions", {"messages": SAID, "max_tokens": 3}),
    ("/v1/chat/completions", {"messages": SAID, "logprobs": True, "top_logprobs": 2, **MANY, **USAGE}),
    ("/generate", {"text": "ab", "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 9, "n": 2}, **TOP}),
    ("/api/chat", {"model": MODEL, "messages": SAID, "logprobs": True}),
    ("/api/generate", {"model": MODEL, "prompt": "ab"}),
    ("/v1/messages", {"model": MODEL, "messages": SAID, "max_tokens": 9}),
    ("/v1/responses", {"input": "ab", "max_output_tokens": 9, "top_logprobs": 2}),
]


@pytest.fixture(scope="module")
def described() -> Described:
    return Described()


async def answers(server: Server, calls: list[tuple[str, dict[str, Any]]], **more: Any) -> list[httpx.Response]:
    return [await server.post(path, **body, **more) for path, body in calls]


def test_every_answer_is_as_described(described: Described) -> None:
    """A client made from the document would refuse an answer with a missing field, and never show an unknown one."""

    async def test() -> None:
        async with serving(max_body_bytes=100_000) as server:
            for (path, _), answer in zip(CALLS, await answers(server, CALLS), strict=True):
                assert answer.status_code == 200, answer.text
                assert described.complaint("POST", path, 200, answer.headers, answer.content) is None
            stored = (await server.post("/v1/responses", input="ab")).json()["id"]
            for method, path in sorted(described.operations, key=lambda operation: operation[0] == "DELETE"):
                if method == "GET" or path == "/v1/responses/{response_id}":
                    named = path.replace("{name}", MODEL).replace("{response_id}", stored)
                    answer = await server.http.request(method, named)
                    assert answer.status_code == 200, path
                    assert described.complaint(method, path, 200, answer.headers, answer.content) is None

    run(test)


def test_the_state_of_an_itl_target_is_as_described(described: Described) -> None:
    """It is in the answer only with an option."""

    async def test() -> None:
        async with serving(itl_target="200ms") as server:
            await server.complete(prompt="ab", max_tokens=3)
            answer = await server.http.get("/server_info")
            assert answer.json()["itl"] is not None
            assert answer.json()["last_step"]["pace"] is not None
            assert described.complaint("GET", "/server_info", 200, answer.headers, answer.content) is None

    run(test)


def test_every_event_is_as_described(described: Described) -> None:
    async def test() -> None:
        async with serving(max_body_bytes=100_000) as server:
            for (path, _), answer in zip(STREAMS, await answers(server, STREAMS, stream=True), strict=True):
                assert answer.status_code == 200, answer.text
                assert answer.content.count(b"\n") > 1
                assert described.complaint("POST", path, 200, answer.headers, answer.content) is None

    run(test)


def test_every_refusal_is_as_described(described: Described) -> None:
    async def test() -> None:
        async with serving() as server:
            server.backend.close("it ended")
            for method, path in described.operations:
                answer = await server.http.request(method, path, content=b"[")
                if answer.status_code != 200:
                    found = described.complaint(method, path, answer.status_code, answer.headers, answer.content)
                    assert found is None
            assert (await server.http.get("/health")).status_code == 503

    run(test)


@pytest.mark.parametrize(
    "body",
    [
        {"id": "x"},
        {"count": 1, "max_model_len": 1, "tokens": [1], "token_strs": None, "more": 1},
        {"count": "1", "max_model_len": 1, "tokens": [1], "token_strs": None},
    ],
)
def test_other_answers_are_noticed(described: Described, body: Mapping[str, Any]) -> None:
    """The tests above would be worth nothing if the document allowed any answer."""
    answer = httpx.Response(200, json=body)
    assert described.complaint("POST", "/tokenize", 200, answer.headers, answer.content) is not None
