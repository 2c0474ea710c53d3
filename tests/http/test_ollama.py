"""Ollama's API: what its clients send, and what they read."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from serving import MODEL, Server, expected_text, run, serving
from sluice.engine.messages import Submit
from sluice.testing import Faults, shadow_embedding
from sluice.text.vectors import unit_vector
from sluice.types import FinishReason, SamplingDefaults
from sluice.types.stored_weights import StoredWeights

CHAT, GENERATE = "/api/chat", "/api/generate"
HI = [{"role": "user", "content": "hi"}]
PROMPT = "user: hi\n"
"""What the test's chat template makes of `HI`."""
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def served(test: Callable[[Server], Awaitable[None]], **options: Any) -> None:
    """Run a test with a server."""

    async def whole() -> None:
        async with serving(**options) as server:
            await test(server)

    run(whole)


async def answered(server: Server, path: str, **body: Any) -> dict[str, Any]:
    """The answer in one piece to a call that must succeed."""
    answer = await server.post(path, model=MODEL, stream=False, **body)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


async def refused(server: Server, path: str, **body: Any) -> str:
    """The message by which a body is refused."""
    answer = await server.post(path, **{"model": MODEL, "stream": False, **body})
    assert answer.status_code == 400, answer.text
    content = answer.json()
    assert list(content) == ["error"]
    assert isinstance(content["error"], str), "Ollama's clients show it as it is"
    return str(content["error"])


def vector_of(text: str, dimensions: int | None = None) -> list[float]:
    """The shadow model's embedding of a text."""
    return [*map(float, unit_vector(shadow_embedding([*text.encode()]), dimensions))]


def sampling_of(server: Server) -> Any:
    """The sampling parameters of the last request at the engine."""
    return [message for message in server.sent if isinstance(message, Submit)][-1].sampling


def test_a_chat() -> None:
    async def test(server: Server) -> None:
        answer = await answered(server, CHAT, messages=HI, options={"seed": 0, "num_predict": 12})
        text = expected_text(PROMPT, 12)
        assert answer["message"] == {"role": "assistant", "content": text}
        assert (answer["model"], answer["done"], answer["done_reason"]) == (MODEL, True, "length")
        assert (answer["prompt_eval_count"], answer["eval_count"]) == (len(PROMPT), 12)
        assert datetime.fromisoformat(answer["created_at"]).tzinfo is not None

    served(test)


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": HI}), (GENERATE, {"prompt": "hi"})])
def test_streams_are_the_default_and_have_a_line_for_each_token(path: str, body: dict[str, Any]) -> None:
    async def test(server: Server) -> None:
        answer = await server.post(path, model=MODEL, options={"seed": 0, "num_predict": 12}, **body)
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.text.endswith("}\n")
        *parts, last = [json.loads(line) for line in answer.text.splitlines()]
        texts = [part["message"]["content"] if path == CHAT else part["response"] for part in parts]
        assert len(texts) == 12
        assert "".join(texts) == expected_text(PROMPT, 12)
        assert {part["done"] for part in parts} == {False}
        assert (last["message"]["content"] if path == CHAT else last["response"]) == ""
        assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "length", 12)
        assert all(part["model"] == MODEL and part["created_at"] for part in (*parts, last))

    served(test)


def test_the_times_are_parts_of_the_whole() -> None:
    """Clients divide counts by them: tokens a second."""

    async def test(server: Server) -> None:
        answer = await answered(server, GENERATE, prompt="hi", options={"num_predict": 9})
        total, *parts = [answer[name] for name in TIMES]
        assert all(type(part) is int and part > 0 for part in parts)
        assert abs(total - sum(parts)) <= 3

    served(test)


def test_a_prompt_is_a_message_unless_it_is_raw() -> None:
    async def test(server: Server) -> None:
        options = {"seed": 0, "num_predict": 4}
        for body, prompt in (
            ({}, PROMPT),
            ({"system": "be"}, f"system: be\n{PROMPT}"),
            ({"raw": True}, "hi"),
        ):
            answer = await answered(server, GENERATE, prompt="hi", options=options, **body)
            assert answer["response"] == expected_text(prompt, 4), body
        assert "raw" in await refused(server, GENERATE, prompt="hi", raw=True, system="be")

    served(test)


def test_a_model_without_a_template_continues_the_prompt() -> None:
    """As Ollama does, whose default template is the prompt."""

    async def test(server: Server) -> None:
        answer = await answered(server, GENERATE, prompt="hi", options={"seed": 0, "num_predict": 4})
        assert answer["response"] == expected_text("hi", 4)
        assert "no chat template" in await refused(server, GENERATE, prompt="hi", system="be")
        assert "no chat template" in await refused(server, CHAT, messages=HI)

    served(test, chat=False)


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": []}), (CHAT, {}), (GENERATE, {"prompt": ""})])
def test_nothing_to_answer_loads_the_model(path: str, body: dict[str, Any]) -> None:
    """Clients send it before the first message, and to keep the model loaded."""

    async def test(server: Server) -> None:
        whole = await answered(server, path, keep_alive="5m", **body)
        (line,) = (await server.post(path, model=MODEL, **body)).text.splitlines()
        for answer in (whole, json.loads(line)):
            assert (answer["done"], answer["done_reason"], answer["model"]) == (True, "load", MODEL)
            assert (answer["message"]["content"] if path == CHAT else answer["response"]) == ""
        assert server.sent == []
        assert (await server.post(path, model="other", **body)).status_code == 404

    served(test)


def test_options_are_sampling_parameters() -> None:
    """A parameter that is lost on the way changes answers without a word."""
    options = {
        "num_predict": 3,
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 5,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.25,
        "frequency_penalty": 0.5,
    }
    ours = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}

    async def test(server: Server) -> None:
        await answered(server, CHAT, messages=HI, options=options)
        sampling = sampling_of(server)
        for name, value in options.items():
            assert getattr(sampling, ours.get(name, name)) == value, name

    served(test)


def test_values_that_stand_for_none() -> None:
    async def test(server: Server) -> None:
        for unlimited in (-1, -2):
            answer = await answered(server, GENERATE, prompt="hi", options={"num_predict": unlimited})
            assert answer["eval_count"] == server.backend.service().limits.max_request_tokens - len(PROMPT)
        seeds = set()
        for _ in range(2):
            await answered(server, GENERATE, prompt="hi", options={"num_predict": 1, "seed": -1})
            seeds.add(sampling_of(server).seed)
        assert len(seeds) == 2

    served(test)


def test_the_models_own_settings_fill_what_is_open() -> None:
    async def test(server: Server) -> None:
        await answered(server, CHAT, messages=HI, options={"num_predict": 1, "repeat_penalty": 1.0})
        sampling = sampling_of(server)
        assert (sampling.temperature, sampling.repetition_penalty) == (0.25, 1.0)
        message = await refused(server, CHAT, messages=HI, options={"repeat_last_n": 64})
        assert "options.repeat_last_n 64" in message, "the model's penalty would count all tokens"
        await answered(server, CHAT, messages=HI, options={"num_predict": 1, "repeat_last_n": 64, "repeat_penalty": 1})

    served(test, sampling_defaults=SamplingDefaults(temperature=0.25, repetition_penalty=1.5))


BAD: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": HI, "options": {"num_ctx": -2}}, "options.num_ctx must be at least 1, or 0 or -1"),
    (CHAT, {"messages": HI, "options": {"num_predict": -3}}, "options.num_predict must be at least 1, or 0 or -1"),
    (CHAT, {"messages": HI, "options": {"num_predict": 1000}}, "options.num_predict 1000"),
    (CHAT, {"messages": HI, "options": {"temperature": -1}}, "options.temperature must be a finite number"),
    (CHAT, {"messages": HI, "options": {"temprature": 1}}, "did you mean temperature"),
    (CHAT, {"messages": HI, "options": {"mirostat": 2}}, "options.mirostat is not supported"),
    (CHAT, {"messages": HI, "options": {"repeat_last_n": 64, "repeat_penalty": 1.1}}, "options.repeat_last_n 64"),
    (CHAT, {"messages": HI, "options": {"max_tokens": 5}}, "options.max_tokens is not supported"),
    (CHAT, {"messages": HI, "options": {"n": 2}}, "options.n: invalid enum value 2; accepted: 1"),
    (CHAT, {"messages": HI, "temperature": 0}, "send options.temperature"),
    (CHAT, {"messages": HI, "format": "yaml"}, 'format must be "json" or a JSON schema, got a text'),
    (CHAT, {"messages": HI, "format": {"type": "objekt"}}, 'format: type cannot be "objekt"'),
    (CHAT, {"messages": HI, "response_format": {"type": "json_object"}}, "response_format is not supported; leave it"),
    (CHAT, {"messages": HI, "tools": [{"type": "function"}]}, "tools[0].function is required"),
    (CHAT, {"messages": HI, "think": True}, "think is only supported with false"),
    (CHAT, {"messages": HI, "think": 0}, "think must be true, false, low, medium, high or max, got the number 0"),
    (CHAT, {"messages": [{**HI[0], "images": ["aa"]}]}, "messages[0].images is not supported"),
    (CHAT, {"messages": [{"role": "owl", "content": "hi"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"content": "hi"}]}, "messages[0].role is required"),
    (CHAT, {"messages": HI, "stream": "no"}, "stream"),
    (GENERATE, {"prompt": "hi", "images": ["aa"]}, "images is not supported"),
    (GENERATE, {"prompt": "hi", "template": "{{ .Prompt }}"}, "template is not supported"),
    (GENERATE, {"prompt": "hi", "context": [1, 2]}, "context is not supported"),
    (GENERATE, {"prompt": "hi", "suffix": "ho"}, "leave suffix out"),
    (GENERATE, {"prompt": "hi", "messages": HI}, "messages is not supported"),
    (GENERATE, {"prompt": "hi", "top_logprobs": 3}, "top_logprobs is only allowed with logprobs"),
    (GENERATE, {"prompt": "hi", "model": ""}, "model"),
    (GENERATE, {"prompt": "h" * 300}, "the prompt has"),
]


def test_bad_requests_are_refused_by_name() -> None:
    async def test(server: Server) -> None:
        for path, body, message in BAD:
            assert message in await refused(server, path, **body), body
        assert "not valid JSON" in (await server.http.post(CHAT, content=b"{")).json()["error"]
        missing = await server.http.post(CHAT, json={"messages": HI})
        assert (missing.status_code, missing.json()) == (400, {"error": "model is required"})

    served(test)


def test_harmless_fields() -> None:
    """What Ollama's clients send by themselves."""
    fields = {
        "keep_alive": -1,
        "format": "",
        "tools": [],
        "think": False,
        "truncate": True,
        "shift": True,
        "options": {"seed": 0, "num_predict": 4, "num_ctx": 100, "num_gpu": 1, "repeat_last_n": 64, "mirostat": 0},
    }

    async def test(server: Server) -> None:
        plain = await answered(server, CHAT, messages=HI, options={"seed": 0, "num_predict": 4})
        answer = await server.post(CHAT, model=MODEL, stream=False, messages=HI, owl=1, **fields)
        assert answer.json()["message"] == plain["message"]
        assert answer.headers["x-sluice-ignored-fields"] == "owl"
        with_images = [{**HI[0], "images": []}]
        assert (await answered(server, CHAT, messages=with_images, **fields))["message"] == plain["message"]
        other = {"context": [], "template": "", "suffix": "", "images": [], "system": "", "raw": False}
        body = {**fields, **other}
        del body["tools"]
        assert (await answered(server, GENERATE, prompt="hi", **body))["response"] == plain["message"]["content"]

    served(test)


def test_messages_reach_the_template() -> None:
    """Calls of tools and what they returned, as Ollama's clients spell them."""
    seen: list[Any] = []

    async def test(server: Server) -> None:
        service = server.backend.service()
        render = service.tokenizer.render_chat

        async def watched(messages: Any, options: Any) -> str:
            seen.append((messages, options))
            return await render(messages, options)

        service.tokenizer.render_chat = watched  # type: ignore[method-assign]
        call = {"function": {"name": "weather", "arguments": {"city": "Ulm"}, "index": 0}}
        messages = [
            *HI,
            {"role": "Assistant", "thinking": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_name": "weather", "content": "rain"},
        ]
        await answered(server, CHAT, messages=messages, think=False, options={"num_predict": 1})

    served(test)
    ((messages, options),) = seen
    called = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}
    assert list(messages) == [
        HI[0],
        {"role": "assistant", "content": "", "tool_calls": [called], "reasoning_content": "hm", "thinking": "hm"},
        {"role": "tool", "content": "rain", "name": "weather"},
    ]
    assert options.variables == {"enable_thinking": False, "thinking": False}


def test_names_with_a_tag() -> None:
    async def test(server: Server) -> None:
        service = server.backend.service()
        server.backend.open(replace(service, models=("own/shadow", "other:8b", "late:latest")))
        body = {"messages": HI, "options": {"num_predict": 1}, "stream": False}
        for name in ("own/shadow", "own/shadow:latest", "other:8b", "late", "late:latest"):
            answer = await server.post(CHAT, model=name, **body)
            assert (answer.status_code, answer.json()["model"]) == (200, name)
            assert (await server.post("/api/show", model=name)).status_code == 200
            assert (await server.post("/api/show", name=name)).status_code == 200
        for name in ("shadow", "own/shadow:8b", "other", "other:latest", "late:8b", ":latest"):
            for path in (CHAT, "/api/show"):
                answer = await server.post(path, **({"model": name} | (body if path == CHAT else {})))
                assert answer.status_code == 404, name
                assert repr(name) in answer.json()["error"]
        listed = (await server.http.get("/api/tags")).json()["models"]
        assert [model["name"] for model in listed] == ["own/shadow:latest", "other:8b", "late:latest"]

    served(test)


def test_what_is_said_about_the_model() -> None:
    async def test(server: Server) -> None:
        service = server.backend.service()
        defaults = SamplingDefaults(temperature=0.25, repetition_penalty=1.5)
        server.backend.open(replace(service, architecture="Qwen3ForCausalLM", sampling_defaults=defaults))
        (listed,) = (await server.http.get("/api/tags")).json()["models"]
        (loaded,) = (await server.http.get("/api/ps")).json()["models"]
        shown = (await server.post("/api/show", model=MODEL)).json()
        assert listed["name"] == listed["model"] == loaded["name"] == f"{MODEL}:latest"
        assert len(listed["digest"]) == 64
        assert listed["digest"] == loaded["digest"]
        assert listed["details"] == loaded["details"] == shown["details"]
        assert listed["details"]["family"] == "qwen3"
        assert (listed["size"], loaded["size"], loaded["size_vram"], loaded["context_length"]) == (5, 12, 0, 200)
        architecture = shown["model_info"]["general.architecture"]
        assert shown["model_info"][f"{architecture}.context_length"] == 200
        assert shown["parameters"].splitlines() == ["temperature 0.25", "repeat_penalty 1.5"]
        assert "message.role" in shown["template"]
        assert shown["capabilities"] == ["completion"]
        stored = StoredWeights("gguf", "Q4_1", 134_515_008, 98_362_432)
        server.backend.open(replace(service, stored=stored))
        (listed,) = (await server.http.get("/api/tags")).json()["models"]
        details = {name: listed["details"][name] for name in ("format", "quantization_level", "parameter_size")}
        assert details == {"format": "gguf", "quantization_level": "Q4_1", "parameter_size": "134.52M"}
        assert listed["size"] == 98_362_432
        for moment in (listed["modified_at"], loaded["expires_at"], shown["modified_at"]):
            assert datetime.fromisoformat(moment)
        assert (await server.post("/api/show")).json() == {"error": "model is required"}

    served(test)


def test_log_probabilities() -> None:
    async def test(server: Server) -> None:
        body = {"prompt": "hi", "logprobs": True, "top_logprobs": 2, "options": {"seed": 0, "num_predict": 5}}
        answer = await answered(server, GENERATE, **body)
        assert "".join(item["token"] for item in answer["logprobs"]) == answer["response"]
        assert {len(item["top_logprobs"]) for item in answer["logprobs"]} == {2}
        *parts, _ = (await server.post(GENERATE, model=MODEL, **body)).text.splitlines()
        streamed = [item for part in parts for item in json.loads(part)["logprobs"]]
        assert streamed == answer["logprobs"]
        assert "logprobs" not in await answered(server, GENERATE, prompt="hi", options={"num_predict": 1})

    served(test)


def test_a_stop_string_ends_the_answer() -> None:
    async def test(server: Server) -> None:
        text = expected_text(PROMPT, 16)
        answer = await answered(server, CHAT, messages=HI, options={"seed": 0, "stop": ["zz", text[6:8]]})
        cut = text.index(text[6:8])
        assert (answer["message"]["content"], answer["done_reason"]) == (text[:cut], FinishReason.STOP.value)

    served(test)


def test_a_stream_that_fails_ends_with_the_error() -> None:
    """Ollama's clients raise a line with `error`; a last line without it would pass for the end of the answer."""

    async def test(server: Server) -> None:
        answer = await server.post(GENERATE, model=MODEL, prompt="hi", options={"num_predict": 20})
        *_, last = [json.loads(line) for line in answer.text.splitlines()]
        assert answer.status_code == 200
        assert list(last) == ["error"]

    served(test, faults=Faults(wait_raises=frozenset({5})))


def test_what_is_not_there_says_what_to_do() -> None:
    async def test(server: Server) -> None:
        for path, word in (
            ("/api/push", "hub"),
            ("/api/create", "--chat-template"),
            ("/api/copy", "--served-model-name"),
        ):
            assert word in await refused(server, path)
        deleted = await server.http.request("DELETE", "/api/delete", json={"model": MODEL})
        assert deleted.status_code == 400
        assert "/api/delete is not supported" in deleted.json()["error"]
        unknown = await server.http.get("/api/owl")
        assert (unknown.status_code, unknown.json()) == (404, {"error": "GET /api/owl: there is no such path"})
        slip = await server.http.post("/v1/chat/completion", json={})
        assert slip.json()["error"]["message"].endswith("no such path; did you mean /v1/chat/completions?")

    served(test)


def test_embeddings() -> None:
    """They are those of /v1/embeddings, in the form that Ollama's clients read."""

    async def test(server: Server) -> None:
        for given, texts in (("owl", ["owl"]), (["owl", "river"], ["owl", "river"])):
            answer = (await server.post("/api/embed", model=f"{MODEL}:latest", input=given, truncate=True)).json()
            assert answer["embeddings"] == [*map(vector_of, texts)]
            assert answer["prompt_eval_count"] == sum(map(len, texts))
            assert 0 <= answer["load_duration"] <= answer["total_duration"]
        cut = (await server.post("/api/embed", model=MODEL, input="owl", dimensions=2)).json()
        assert cut["embeddings"] == [vector_of("owl", 2)]
        older = (await server.post("/api/embeddings", model=MODEL, prompt="owl", options={"temperature": 0})).json()
        assert older == {"embedding": vector_of("owl")}

    served(test)


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/api/embed", {"input": ["owl", ""]}, "none is empty"),
        ("/api/embed", {"input": [1, 2]}, "input"),
        ("/api/embed", {"prompt": "owl"}, "prompt"),
        ("/api/embed", {"input": "owl", "dimensions": 4096}, "dimensions"),
        ("/api/embed", {"input": "owl" * 100}, "the prompt has 300 tokens"),
        ("/api/embed", {"input": "owl", "options": {"num_ctx": -3}}, "options.num_ctx must be at least 1"),
        ("/api/embed", {"input": "owl", "options": {"num_owls": 0}}, "num_owls"),
        (CHAT, {"messages": HI, "options": {"num_ctx": -3}}, "options.num_ctx must be at least 1"),
    ],
)
def test_what_cannot_be_embedded_is_named(path: str, body: dict[str, Any], word: str) -> None:
    async def test(server: Server) -> None:
        assert word in await refused(server, path, **({"stream": False} if path == CHAT else {}), **body)

    async def refused(server: Server, path: str, **body: Any) -> str:
        answer = await server.post(path, model=MODEL, **body)
        assert answer.status_code == 400, answer.text
        return str(answer.json()["error"])

    served(test, strict_fields=True)


def test_errors_before_the_routes_have_the_same_shape() -> None:
    async def test(server: Server) -> None:
        assert isinstance((await server.http.get("/api/tags")).json()["error"], str)
        assert isinstance((await server.http.get("/v1/models")).json()["error"], dict)
        server.backend.close("the end")
        headers = {"Authorization": "Bearer key"}
        answer = await server.http.post(CHAT, json={"model": MODEL}, headers=headers)
        assert (answer.status_code, answer.json()) == (503, {"error": "cannot serve requests: the end"})

    served(test, api_keys={"key"})


def test_clients_ask_whether_it_is_there() -> None:
    async def test(server: Server) -> None:
        assert (await server.http.head("/")).status_code == 200
        assert (await server.http.get("/")).text == "Sluice is running"
        version = (await server.http.get("/api/version")).json()["version"]
        assert tuple(map(int, version.split("."))) >= (0, 6, 4)
        server.backend.close("the end")
        assert (await server.http.head("/")).status_code == 200

    served(test)
