"""Text to token ids and back over HTTP."""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving import MODEL, run, serving
from shadow_engine import MAX_MODEL_LEN, VOCAB
from sluice.http.base.tokenizer_threads import THREADED_TEXT
from sluice.text.chat_template import ChatTemplate
from sluice.text.tokenizer import Tokenizer
from tokenizer_makers import byte_tokenizer


def test_a_text_and_back() -> None:
    async def test() -> None:
        async with serving() as server:
            answer = (await server.post("/tokenize", model=MODEL, prompt="a b", return_token_strs=True)).json()
            assert answer == {
                "count": 3,
                "max_model_len": MAX_MODEL_LEN,
                "tokens": list(b"a b"),
                "token_strs": ["a", " ", "b"],
            }
            assert (await server.post("/tokenize", prompt="a")).json()["token_strs"] is None
            back = await server.post("/detokenize", tokens=answer["tokens"])
            assert back.json() == {"prompt": "a b"}
            assert (await server.post("/detokenize", tokens=[])).json() == {"prompt": ""}
            assert (await server.post("/tokenize", prompt="")).json()["tokens"] == []

    run(test)


def test_tokens_are_those_of_a_completion_and_of_a_chat() -> None:
    """Counts by which clients cut their prompts: one off is a refused request."""
    said = [{"role": "user", "content": "hello"}]

    async def test() -> None:
        async with serving() as server:
            for path, body in (
                ("/v1/completions", {"prompt": "hello " * 300}),
                ("/v1/chat/completions", {"messages": said * 40}),
            ):
                counted = (await server.post("/tokenize", **body)).json()["count"]
                refused = await server.post(path, **body)
                assert f"the prompt has {counted} tokens" in refused.json()["error"]["message"]

    run(test)


BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("/tokenize", {}, 400, "either prompt or messages"),
    ("/tokenize", {"prompt": "a", "messages": []}, 400, "either"),
    ("/tokenize", {"messages": []}, 400, "at least one message"),
    ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True}, 400, "template"),
    ("/tokenize", {"prompt": ["a"]}, 400, "got `array`"),
    ("/tokenize", {"prompt": "a", "continue_final_message": True}, 400, "only be sent with messages"),
    ("/tokenize", {"prompt": "a", "tools": [{}]}, 400, "tools can only be sent with messages"),
    ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, 400, "function is required"),
    ("/tokenize", {"prompt": "a", "model": "other"}, 404, "does not exist"),
    ("/detokenize", {}, 400, "required"),
    ("/detokenize", {"tokens": "abc"}, 400, "got `str`"),
    ("/detokenize", {"tokens": [VOCAB]}, 400, f"token id {VOCAB} is outside"),
    ("/detokenize", {"tokens": [-1]}, 400, "token id -1"),
    ("/detokenize", {"tokens": [1.5]}, 400, "got `float`"),
    ("/detokenize", {"tokens": [1], "skip_special_tokens": 1}, 400, "got `int`"),
    ("/detokenize", {"tokens": [1], "model": "other"}, 404, "does not exist"),
]


def test_bad_requests() -> None:
    async def test() -> None:
        async with serving() as server:
            for path, body, status, said in BAD:
                answer = await server.post(path, **body)
                assert answer.status_code == status, (path, body)
                assert said in answer.json()["error"]["message"], answer.text

    run(test)


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def test_a_template_that_does_not_end_delays_only_chats() -> None:
    """Neither the event loop nor the threads that tokenize wait for it."""

    async def test() -> None:
        async with serving() as server:
            with closing(ChatTemplate(LOOP, {}, seconds=600, timeout=600)) as template:
                tokenizer = Tokenizer(byte_tokenizer(), chat_template=template)
                server.backend.open(replace(server.backend.service(), tokenizer=tokenizer))
                body = {"messages": [{"role": "user", "content": "a" * THREADED_TEXT}]}
                chats = [asyncio.create_task(server.post("/tokenize", **body)) for _ in range(40)]
                for _ in range(3):
                    await server.complete(prompt="ab", max_tokens=2)
                    assert (await server.post("/tokenize", prompt="a" * THREADED_TEXT)).json()["count"] == THREADED_TEXT
                assert not any(chat.done() for chat in chats)
            for chat in chats:
                answer = await chat
                assert (answer.status_code, answer.json()["error"]["param"]) == (503, None), "killed with the server"
                assert int(answer.headers["retry-after"]) > 0

    run(test)


def test_a_template_whose_process_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The client did nothing wrong, and may try again."""

    async def test() -> None:
        async with serving() as server:
            with closing(ChatTemplate("a", {})) as template:
                tokenizer = Tokenizer(byte_tokenizer(), chat_template=template)
                server.backend.open(replace(server.backend.service(), tokenizer=tokenizer))
                body = {"messages": [{"role": "user", "content": "a"}]}
                with monkeypatch.context() as patch:
                    patch.setattr(sys, "executable", str(tmp_path / "gone"))
                    answer = await server.post("/v1/chat/completions", **body)
                    error = answer.json()["error"]
                    assert (answer.status_code, error["param"], error["code"]) == (503, None, "service_unavailable")
                    assert "cannot be started" in error["message"]
                    assert int(answer.headers["retry-after"]) > 0
                assert (await server.post("/tokenize", **body)).json()["count"] == 1

    run(test)


def test_a_long_text_of_a_template_is_not_tokenized() -> None:
    """The template may make megabytes of a short conversation."""

    async def test() -> None:
        async with serving() as server:
            with closing(ChatTemplate("{{ 'a' * 1000000 }}", {})) as template:
                tokenizer = Tokenizer(byte_tokenizer(), chat_template=template)
                server.backend.open(replace(server.backend.service(), tokenizer=tokenizer))
                answer = await server.post("/v1/chat/completions", messages=[{"role": "user", "content": "a"}])
                assert answer.json()["error"]["code"] == "context_length_exceeded"
                assert "1000000 characters" in answer.json()["error"]["message"]

    run(test)
