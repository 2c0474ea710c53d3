"""A completion that repeats its prompt, as evaluations ask for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from serving import expected_text, run, serving
from shadow_engine import VOCAB
from sluice.engine.messages import Submit
from sluice.testing import oracle_logprobs
from sluice.text.tokenizer import Tokenizer
from tokenizer_makers import byte_tokenizer

COMPLETIONS = "/v1/completions"


@pytest.mark.parametrize("prompt", ["ab", [97, 98]])
def test_the_prompt_comes_first(prompt: object) -> None:
    async def test() -> None:
        async with serving() as server:
            text = "ab" + expected_text("ab", 5)
            answer = await server.complete(prompt=prompt, max_tokens=5, seed=0, echo=True)
            assert answer["choices"][0]["text"] == text
            assert answer["usage"]["completion_tokens"] == 5
            events = await server.events(COMPLETIONS, prompt=prompt, max_tokens=5, seed=0, echo=True)
            assert [event["choices"][0]["text"] for event in events] == ["ab", *text[2:]]
            assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 5 + ["length"]

    run(test)


def test_each_choice_repeats_its_own() -> None:
    async def test() -> None:
        async with serving() as server:
            body: dict[str, Any] = {"prompt": ["ab", "c"], "n": 2, "max_tokens": 2, "echo": True}
            starts = [choice["text"] for choice in (await server.complete(**body))["choices"]]
            assert [text[:-2] for text in starts] == ["ab", "ab", "c", "c"]
            openings = (await server.events(COMPLETIONS, **body))[:4]
            assert [event["choices"][0]["text"] for event in openings] == ["ab", "ab", "c", "c"]

    run(test)


def test_no_tokens_are_an_answer() -> None:
    """`max_tokens: 0` scores a prompt: a token that is generated all the same, shown or paid for, spoils the score."""

    async def test() -> None:
        async with serving() as server:
            answer = await server.complete(prompt=["abc", "de"], max_tokens=0, echo=True, logprobs=2, seed=0)
            for choice, prompt in zip(answer["choices"], ("abc", "de"), strict=True):
                scored, _ = oracle_logprobs(list(prompt.encode()), (), 2, vocab_size=VOCAB)
                assert (choice["text"], choice["finish_reason"]) == (prompt, "length")
                logprobs = choice["logprobs"]
                assert logprobs["tokens"] == list(prompt)
                assert logprobs["text_offset"] == list(range(len(prompt)))
                assert logprobs["token_logprobs"] == [None, *(pytest.approx(item.logprob) for item in scored)]
                assert logprobs["top_logprobs"][0] is None
                assert len(logprobs["top_logprobs"][1]) >= 2
                assert "prompt_logprobs" not in choice, "the call does not ask for vLLM's field"
            assert (answer["usage"]["completion_tokens"], answer["usage"]["prompt_tokens"]) == (0, 5)
            events = await server.events(COMPLETIONS, prompt="ab", max_tokens=0, echo=True)
            assert [event["choices"][0]["text"] for event in events] == ["ab", ""]
            assert events[-1]["choices"][0]["finish_reason"] == "length"
            assert {m.sampling.max_tokens for m in server.sent if isinstance(m, Submit)} == {1}

    run(test)


def test_log_probabilities_go_on_behind_the_prompt() -> None:
    """Offsets that begin anew, or those of the output alone, as if the prompt were not in the text."""

    async def test() -> None:
        async with serving() as server:
            answer = await server.complete(prompt="abc", max_tokens=3, seed=0, echo=True, logprobs=0, prompt_logprobs=0)
            (choice,) = answer["choices"]
            outputs = expected_text("abc", 3).encode()
            scored = oracle_logprobs(list(b"abc"), list(outputs), 0, vocab_size=VOCAB)
            numbers = [item.logprob for part in scored for item in part]
            assert choice["logprobs"]["token_logprobs"] == [None, *(pytest.approx(number) for number in numbers)]
            assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4, 5]
            assert len(choice["prompt_logprobs"]) == 3
            plain = await server.complete(prompt="abc", max_tokens=3, seed=0, logprobs=0)
            assert plain["choices"][0]["logprobs"]["text_offset"] == [0, 1, 2]

    run(test)


SPECIAL, BOS = ord("@"), ord("^")


@pytest.mark.parametrize(
    ("prompt", "skips", "text", "offsets"),
    [
        ([97, SPECIAL, 98], False, "a@b", [0, 1, 2]),
        ([97, SPECIAL, 98], True, "ab", [0, 1, 1]),
        ([BOS, SPECIAL, 98], False, "^@b", [0, 1, 2]),
        ("a@b", False, "a@b", [0, 0, 1, 2]),
        ("a@b", True, "a@b", [0, 0, 1, 2]),
        ("@b", True, "@b", [0, 0, 1]),
        ("^b", False, "^b", [0, 0, 1]),
    ],
)
def test_offsets_beside_special_tokens(prompt: Any, skips: bool, text: str, offsets: list[int]) -> None:
    """Offsets that leave out special tokens of the text point at the tokens before, and too many behind its end."""
    backend = byte_tokenizer([])
    backend.add_special_tokens(["@", "^"])
    backend.post_processor = TemplateProcessing(single=["^", "$A"], special_tokens=[("^", BOS)])

    async def test() -> None:
        async with serving() as server:
            service = server.backend.service()
            server.backend.open(replace(service, tokenizer=Tokenizer(backend)))
            body = {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 0, "skip_special_tokens": skips}
            (choice,) = (await server.complete(**body))["choices"]
            assert choice["text"] == text
            assert choice["logprobs"]["text_offset"] == offsets

    run(test)
