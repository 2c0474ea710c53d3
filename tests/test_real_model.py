"""`sluice serve` as people start it: the default model, in a server that most tests here share, and in this process.

Answers are greedy, so they stay as long as the arithmetic does. What a test asks for is what even a small model knows.
"""

from __future__ import annotations

import io
import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import httpx
import pytest
from openai import OpenAI
from playwright.sync_api import Browser, expect

import processes
from browser.conftest import browser  # noqa: F401 - a fixture
from real_model import needs_real_model
from serve_process import announced, server
from sluice import LLM, SamplingParams, cli
from sluice.models.default_model import NAME

pytestmark = needs_real_model
QUESTION, KNOWN = "What does HTTP stand for?", "Hypertext Transfer Protocol"
POOL = 448
PATIENCE_MS = 120_000.0
TRIES = 24
"""Answers in which guesses must come true. While the times of steps differ much, they may not seem to pay."""


class Served:
    """The server's process and its clients."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self.pid = url, pid
        self.openai = OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=300)

    def ask(self, text: str, **fields: Any) -> Any:
        """Return the first choice of a greedy chat, and the usage."""
        messages = [{"role": "user", "content": text}]
        answer = self.openai.chat.completions.create(
            **{"model": NAME, "messages": messages, "temperature": 0, "max_tokens": 64} | fields
        )
        return answer.choices[0], answer.usage


@contextmanager
def serving(*options: str) -> Iterator[Served]:
    port = processes.free_port()
    with server("-m", "sluice", "serve", "--port", str(port), *options) as process:
        announced(process)
        yield Served(f"http://127.0.0.1:{port}", process.pid)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pages = str(tmp_path_factory.mktemp("real") / "pages")
    tiers = ("--max-total-tokens", str(POOL), "--kv-disk", pages, "--kv-disk-bytes", str(200 << 20))
    with serving(*tiers, "--chunked-prefill-size", "256", "--speculative-algorithm", "ngram") as running:
        yield running


def test_it_answers_and_ends(served: Served) -> None:
    choice, _ = served.ask(QUESTION)
    assert KNOWN in choice.message.content
    assert choice.finish_reason == "stop"
    assert [model.id for model in served.openai.models.list()] == [NAME]


def test_it_calls_a_tool(served: Served) -> None:
    """Of two, the one that the question is about, with what the question names; and the call ends by itself."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [
        {"type": "function", "function": {"name": name, "description": text, "parameters": city}}
        for name, text in (("get_time", "Get the time in a city."), ("get_weather", "Get the weather of a city."))
    ]
    asked = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 120}
    choice, _ = served.ask("What is the weather in Paris?", **asked)
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    assert choice.finish_reason == "tool_calls"


def test_it_writes_json(served: Served) -> None:
    fields = {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}}
    schema = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    choice, _ = served.ask("Anna is 34 years old and lives in Oslo. Describe her as JSON.", response_format=form)
    assert json.loads(choice.message.content) == {"name": "Anna", "age": 34, "city": "Oslo"}


def test_it_embeds_texts(served: Served) -> None:
    """Vectors of the layers before the head. The model was not made for them, and tells the plainest apart."""
    texts = ["The cat sleeps on the sofa.", "A cat is sleeping on the couch.", "def f(x): return x + 1"]
    cat, other, code = (each.embedding for each in served.openai.embeddings.create(model=NAME, input=texts).data)
    assert len(cat) == 576

    def likeness(one: list[float], another: list[float]) -> float:
        return sum(a * b for a, b in zip(one, another, strict=True))

    assert likeness(cat, other) > likeness(cat, code)


def test_guesses_come_true_where_a_text_is_repeated(served: Served) -> None:
    text = "Oranges, lemons, melons, grapes, cherries, apples, plums, pears, figs, dates."
    accepted = 0
    for _ in range(TRIES):
        choice, usage = served.ask(f"Repeat this list word by word, and again: {text}", max_tokens=100)
        assert "melons, grapes, cherries" in choice.message.content
        details = usage.completion_tokens_details
        accepted += 0 if details is None else details.accepted_prediction_tokens
        if accepted > 10:
            break
    assert accepted > 10


def test_it_decides(served: Served) -> None:
    """The probabilities are those of the labels as the next token, and the input is computed once."""
    options = [{"name": "refund", "description": "money back"}, {"name": "replacement"}, {"name": "information"}]
    questions = [
        {"id": "topic", "type": "choice", "question": "What does the customer want?", "options": options},
        {"id": "anger", "type": "score", "question": "How angry is the customer?", "levels": ["calm", "furious"]},
        {"id": "broken", "type": "yes_no", "question": "Did it arrive broken?", "yes": "it was broken"},
    ]
    text = "Order 4711 arrived broken. I want my money back now, this is the third time! " * 5
    body = {"input": text, "questions": questions, "return_prompt_token_ids": True}
    answer = httpx.post(f"{served.url}/v1/decisions", json=body, timeout=300).json()
    found = answer["answers"]
    assert found["topic"]["choice"] == "refund"
    assert found["anger"]["score"] == pytest.approx(found["anger"]["probabilities"]["1"])
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 2 * 64
    for decision, said in zip(found.values(), (["A", "B", "C"], ["0", "1"], ["yes", "no"]), strict=True):
        prompt, labels = decision["prompt_token_ids"], decision["label_token_ids"]
        asked = {"prompt": prompt, "max_tokens": 1, "logprobs": 0, "logprob_token_ids": labels}
        scored = httpx.post(f"{served.url}/v1/completions", json=asked, timeout=300).json()
        likely = scored["choices"][0]["logprobs"]["top_logprobs"][0]
        shares = [math.exp(likely[label]) for label in said]
        assert sum(decision["probabilities"].values()) == pytest.approx(1)
        assert decision["label_mass"] == pytest.approx(sum(shares), abs=1e-5)
        expected = [share / sum(shares) for share in shares]
        assert [*decision["probabilities"].values()] == pytest.approx(expected, abs=1e-5)


def test_a_stream_goes_on_when_its_engine_is_killed(served: Served) -> None:
    asked = {"max_tokens": 32, "extra_body": {"ignore_eos": True}}
    expected, _ = served.ask("Tell me about rivers.", **asked)
    messages = [{"role": "user", "content": "Tell me about rivers."}]
    stream = served.openai.chat.completions.create(model=NAME, messages=messages, temperature=0, stream=True, **asked)
    pieces = [chunk.choices[0].delta.content or "" for chunk in islice(stream, 8)]
    (engine,) = processes.children(served.pid)
    os.kill(engine, signal.SIGKILL)
    pieces += [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == expected.message.content
    assert processes.children(served.pid) != [engine]


def test_a_prompt_that_is_longer_than_the_pool(served: Served) -> None:
    """Its pages lie on the disk, and the question behind them is understood."""
    sentence = "The river rises in the night, but the gate stays where it was set in the morning. "
    choice, usage = served.ask(sentence * 30 + QUESTION)
    assert usage.prompt_tokens > 1.3 * POOL
    assert KNOWN in choice.message.content
    page = httpx.get(f"{served.url}/metrics").text
    loaded = [line.split()[-1] for line in page.splitlines() if line.startswith("sluice:ring_loaded_bytes_total")]
    assert sum(map(float, loaded)) > 0


def test_the_page_shows_its_answer(served: Served, browser: Browser) -> None:  # noqa: F811
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(served.url)
    page.get_by_role("textbox", name="Message", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="Answer").last).to_contain_text("Hypertext", timeout=PATIENCE_MS)
    expect(page.get_by_text(NAME).first).to_be_visible()
    page.close()


def test_a_question_from_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`sluice chat` in a script: the answer to its end, and nothing else."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{QUESTION}\n"))
    assert cli.main(["chat", "--temperature", "0", "--max-total-tokens", "512"]) == 0
    out, err = capsys.readouterr()
    assert KNOWN in out
    assert out.rstrip().endswith(".")
    assert err == ""


def test_the_bits_of_a_token_do_not_depend_on_its_batch() -> None:
    """Rounding to 8 bits makes a last bit that differs into another answer, as in llama.cpp (`findings`)."""
    ids = [token * 7919 % 40_000 + 100 for token in range(150)]
    sampling = SamplingParams(temperature=0, max_tokens=12, logprobs=1, ignore_eos=True)
    reading = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    options = {"context_length": 1024, "page_size": 16, "enable_prefix_caching": False}
    seen = set()
    for chunk in (16, 512):
        with LLM(chunked_prefill_size=chunk, **options) as llm:
            alone, *_ = llm.generate([ids], sampling)
            beside, *_ = llm.generate([ids, ids[:20], ids[30:90]], sampling)
            (read,) = llm.generate([[*ids, *alone.token_ids]], reading)
        assert alone.token_ids == beside.token_ids
        written = tuple(each.logprob for each in alone.logprobs)
        assert written == tuple(each.logprob for each in beside.logprobs)
        assert written == tuple(each.logprob for each in read.prompt_logprobs[len(ids) :])
        seen.add((alone.token_ids, tuple(each.logprob for each in read.prompt_logprobs[1:])))
    assert len(seen) == 1
