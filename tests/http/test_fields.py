"""Fields that Sluice does not know, and fields of the text that an answer holds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from serving import CHAT_TEMPLATE, expected_text, run, serving
from sluice.http.base.body import LONG_BODY
from sluice.http.base.calls import Call
from sluice.http.base.unknown_fields import LOG_NAMES, LOG_SECONDS, IgnoredFieldsLog, misspelt
from sluice.http.base.unsupported_fields import (
    IN_PARTS,
    OF_EMBEDDINGS,
    OF_MESSAGES,
    OF_RESPONSES,
    OF_TEXTS,
    UNSUPPORTED,
    Accepted,
)
from sluice.text.tokenizer import Tokenizer
from tokenizer_makers import byte_tokenizer

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
HEADER = "x-sluice-ignored-fields"
HI = [{"role": "user", "content": "hi"}]


def test_unknown_fields_are_ignored_and_named() -> None:
    async def test() -> None:
        async with serving(max_body_bytes=4 * LONG_BODY) as server:
            answer = await server.post(COMPLETIONS, prompt="ab", seed=0, owl=1, store=True)
            assert answer.headers[HEADER] == "owl"
            assert answer.json()["choices"][0]["text"] == expected_text("ab", 16)
            assert answer.json()["store"] is False
            evil = await server.post(COMPLETIONS, prompt="ab", max_tokens=1, **{"a\r\nb: ü": 1, "x" * 5000: 1})
            assert evil.headers[HEADER] == "a%0D%0Ab%3A%20%C3%BC, " + "x" * 64
            nameless = await server.post(COMPLETIONS, prompt="ab", max_tokens=1, owl=1, **{"": 1})
            assert nameless.headers[HEADER] == 'owl, ""', "a space at the end is no header, and ends the connection"
            body = {"messages": [{**HI[0], "mood": 1}] * 3, "max_tokens": 1, "owl": {}}
            assert (await server.post(CHAT, **body)).headers[HEADER] == "owl, messages[].mood"
            body = {"text": "ab", "sampling_params": {"max_new_tokens": 1, "owl": 2}}
            assert (await server.post(GENERATE, **body)).headers[HEADER] == "sampling_params.owl"
            assert (await server.post("/tokenize", prompt="a" * LONG_BODY, owl=1)).headers[HEADER] == "owl"
            many = {f"zz{index}": 1 for index in range(20)}
            assert (await server.post(COMPLETIONS, prompt="a", **many)).headers[HEADER].endswith("zz15, and 4 more")
            assert HEADER not in (await server.post(COMPLETIONS, prompt="a", user="me", stop="")).headers
            assert "store" not in await server.complete(prompt="a")

    run(test)


def test_strict_fields() -> None:
    async def test() -> None:
        async with serving(strict_fields=True) as server:
            for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": HI}), (GENERATE, {"text": "a"})):
                answer = await server.post(path, owl=1, **body)
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, "owl")
                assert "--strict-fields" in answer.json()["error"]["message"]
                assert (await server.post(path, **body)).status_code == 200

    run(test)


def test_misspelt_names() -> None:
    known = {"max_tokens", "temperature", "n", "seed"}
    names = {"max_token": "max_tokens", "MaxTokens": "max_tokens", "temprature": "temperature", "N": "n"}
    assert {name: misspelt(name, known) for name in names} == names
    assert [misspelt(name, known) for name in ("owl", "max", "seat", "m", "max_tokens" * 9)] == [None] * 5


def test_ignored_fields_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    log = IgnoredFieldsLog(lambda: now)

    def call(*names: str) -> Call:
        return Call("id", "POST", "/", {}, 0.0, ignored_fields=[*names])

    with caplog.at_level(logging.INFO, "sluice.server"):
        log.answered(call())
        log.answered(call("owl"))
        for index in range(1000):
            log.answered(call(f"zz{index}", "b"))
        assert len(caplog.messages) == 1
        now += LOG_SECONDS
        log.answered(call("owl"))
    assert {record.levelname for record in caplog.records} == {"INFO"}, "a client that sends them always"
    first, second = caplog.messages
    assert "ignored: 1; fields: 'owl'" in first
    assert "ignored: 1001;" in second
    assert second.count("'") == 2 * LOG_NAMES


def harmless(table: Mapping[str, Accepted]) -> str:
    """The harmless fields of a table as docs/api.md lists them."""
    return ", ".join(f"`{name}`" for name, accepted in sorted(table.items()) if isinstance(accepted, type))


def refused(table: Mapping[str, Accepted], but: Mapping[str, Accepted] = {}) -> str:
    """The others, each with the values that ask for nothing here alone."""
    values = {
        f"`{name}`": " or ".join(f"`{value!r}`" for value in accepted)
        for name, accepted in sorted(table.items())
        if isinstance(accepted, tuple) and name not in but
    }
    return ", ".join(name + (f" (accepted: {values})" if values else "") for name, values in values.items())


def test_the_docs_list_every_field() -> None:
    """The tables of docs/api.md are those by which fields are refused."""
    lines = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8").splitlines()
    expected = [
        f"| bodies, `options`, `sampling_params` | {harmless(UNSUPPORTED)} |",
        f"| messages, items, blocks, tools | {harmless(IN_PARTS)} |",
        f"| all that generate | {refused(UNSUPPORTED)} |",
        f"| Responses, besides | {refused(OF_RESPONSES, UNSUPPORTED)} |",
        f"| Anthropic's messages, besides | {refused(OF_MESSAGES, UNSUPPORTED)} |",
        f"| embeddings, rerank, score | {refused(OF_EMBEDDINGS)} |",
        f"| `/tokenize`, `/detokenize` | {refused(OF_TEXTS)} |",
        f"| messages, items, blocks, tools of all | {refused(IN_PARTS)} |",
    ]
    missing = [line for line in expected if line not in lines]
    assert not missing, "\n".join(missing)


def test_special_tokens_and_stops_are_part_of_the_text_on_request() -> None:
    """In whole answers and streams; a special token can end a text as a stop string."""
    backend = byte_tokenizer()
    text = expected_text("ab", 16)
    special = text[5]
    backend.add_special_tokens([special])
    hidden = text.replace(special, "")

    async def test() -> None:
        async with serving() as server:
            service = server.backend.service()
            server.backend.open(replace(service, tokenizer=Tokenizer(backend, chat_template=CHAT_TEMPLATE)))

            async def texts(**fields: Any) -> set[str]:
                body = {"prompt": "ab", "seed": 0, **fields}
                whole = await server.complete(**body)
                events = await server.events(COMPLETIONS, **body)
                names = {"skip_special_tokens": "skip_special_tokens", "include_stop_str_in_output": "no_stop_trim"}
                params = {names.get(name, name): value for name, value in fields.items()}
                params |= {"max_new_tokens": 16, "sampling_seed": 0}
                native = await server.post(GENERATE, text="ab", sampling_params=params)
                return {
                    whole["choices"][0]["text"],
                    "".join(choice["text"] for event in events for choice in event["choices"]),
                    native.json()["text"],
                }

            cut, stops = text.index(special), {"stop": special, "skip_special_tokens": False}
            assert await texts() == {hidden}
            assert await texts(skip_special_tokens=False) == {text}
            assert await texts(stop=special) == {hidden}
            assert await texts(**stops) == {text[:cut]}
            assert await texts(**stops, include_stop_str_in_output=True) == {text[: cut + 1]}
            ids = {"stop_token_ids": [ord(special)]}
            assert await texts(**ids) == {text[:cut]}
            assert await texts(**ids, include_stop_str_in_output=True) == {text[:cut]}
            shown = {"skip_special_tokens": False, "include_stop_str_in_output": True}
            assert await texts(**ids, **shown) == {text[: cut + 1]}

    run(test)


def test_a_completion_without_the_tokenizers_own_tokens() -> None:
    backend = byte_tokenizer(["<s>"])
    bos = backend.token_to_id("<s>")
    backend.post_processor = TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", bos)])

    async def test() -> None:
        async with serving() as server:
            service = server.backend.service()
            limits = replace(service.limits, vocab_size=bos + 1)
            tokenizer = Tokenizer(backend, chat_template=CHAT_TEMPLATE)
            server.backend.open(replace(service, tokenizer=tokenizer, limits=limits))
            body = {"prompt": "ab", "max_tokens": 1}
            assert (await server.complete(**body))["usage"]["prompt_tokens"] == 3
            assert (await server.complete(**body, add_special_tokens=False))["usage"]["prompt_tokens"] == 2

    run(test)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_token_ids_on_request(path: str) -> None:
    body: dict[str, Any] = {"prompt": "ab"} if path == COMPLETIONS else {"messages": HI}
    body |= {"max_tokens": 12, "seed": 0, "return_token_ids": True}

    async def test() -> None:
        async with serving() as server:
            answer = (await server.post(path, **body)).json()
            choice = answer["choices"][0]
            text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
            prompt = (choice if path == COMPLETIONS else answer)["prompt_token_ids"]
            assert bytes(choice["token_ids"]).decode() == text
            assert bytes(prompt).decode() == ("ab" if path == COMPLETIONS else "user: hi\n")
            first, *rest = await server.events(path, **body)
            assert (first["choices"][0] if path == COMPLETIONS else first)["prompt_token_ids"] == prompt
            streamed = [token for event in rest for token in event["choices"][0]["token_ids"]]
            assert streamed == choice["token_ids"]

    run(test)
