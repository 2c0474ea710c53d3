"""`POST /v1/decisions`: what is asked of the model, and what is refused."""

from __future__ import annotations

import math
from itertools import takewhile
from typing import Any

import pytest

from scripted import scripted
from serving import run, serving
from shadow_engine import PAGE_SIZE, VOCAB
from sluice.http.call.logprobs import shares
from sluice.testing import oracle_logprobs

YES_NO = {"id": "q", "type": "yes_no", "question": "Is it so?"}
CHOICE = {"id": "c", "type": "choice", "question": "Which?", "options": [{"name": "a"}, {"name": "b"}]}
SCORE = {"id": "s", "type": "score", "question": "How much?", "levels": ["none", "all"]}


def answer_to(special: tuple[str, ...] = ("<end>",), **body: Any) -> tuple[int, Any, list[str], list[tuple[int, ...]]]:
    """Return the status and the content of an answer, the prompts, and the tokens that are asked for."""
    found: list[Any] = []

    async def test() -> None:
        async with scripted("", special=special) as server:
            answer = await server.post("/v1/decisions", **{"input": "A text.", "questions": [YES_NO]} | body)
            asked = [request.sampling.logprob_token_ids for request in server.submitted]
            found.append((answer.status_code, answer.json(), server.prompts(), asked))

    run(test)
    return found[0]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"questions": []}, "questions", "must not be empty"),
        ({"questions": [YES_NO, YES_NO]}, "questions[1].id", "'q' is given twice"),
        ({"questions": [{**YES_NO, "type": "maybe"}]}, "questions[0].type", ""),
        ({"questions": [{**CHOICE, "options": [{"name": "a"}]}]}, "questions[0].options", "must be 2 to 26, got 1"),
        ({"questions": [{**CHOICE, "options": [{"name": "a"}] * 2}]}, "questions[0].options", "the same name twice"),
        ({"questions": [{**SCORE, "levels": ["x"] * 11}]}, "questions[0].levels", "must be 2 to 10, got 11"),
        ({"questions": [{**SCORE, "levels": ["x", " "]}]}, "questions[0].levels[1]", "not empty"),
        (
            {"questions": [{**SCORE, "levels": ["x", "y", "x"]}]},
            "questions[0].levels[2]",
            "the same as questions[0].le",
        ),
        ({"questions": [{**CHOICE, "options": [{"name": ""}, {"name": "a"}]}]}, "questions[0].options", "not empty"),
        ({"questions": [{**YES_NO, "question": 7}]}, "questions[0].question", "a text, an object or a list"),
        ({"input": "  "}, "input", "not empty"),
        (
            {"input": "a" * 100_000, "questions": [{**YES_NO, "id": str(n)} for n in range(400)]},
            "questions",
            "400 prompts",
        ),
        ({"questions": [{**YES_NO, "id": str(n)} for n in range(4097)]}, "questions", "at most 4096, got 4097"),
        ({"temperature": 0}, "temperature", "above 0"),
        ({"prompt_format_version": 9}, "prompt_format_version", "this server has 1"),
        ({"images": ["data:"]}, "images", "not supported"),
    ],
)
def test_what_cannot_be_decided_is_refused(body: dict[str, Any], param: str, said: str) -> None:
    status, content, prompts, _ = answer_to(**body)
    assert (status, content["error"]["param"], prompts) == (400, param, [])
    assert said in content["error"]["message"]


def test_labels_of_several_tokens_are_refused() -> None:
    """The tokenizer has bytes alone, so "yes" is three tokens."""
    status, content, *_ = answer_to()
    assert (status, content["error"]["code"]) == (400, "unsupported")
    assert "'yes' is not one token of its own" in content["error"]["message"]


def test_a_model_that_reasons_first_is_refused() -> None:
    status, content, *_ = answer_to(questions=[CHOICE], chat_template_kwargs={"enable_thinking": True})
    assert (status, content["error"]["param"]) == (400, "chat_template_kwargs")


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_the_probabilities_are_those_of_the_labels_behind_the_prompt(temperature: float) -> None:
    """Each question is a prompt of its own behind one input, whose pages are computed once."""

    async def test() -> None:
        async with serving() as server:
            asked = {"input": "A text of some length.", "questions": [CHOICE, SCORE], "temperature": temperature}
            answer = (await server.post("/v1/decisions", **asked, return_prompt_token_ids=True)).json()
            choice, score = answer["answers"]["c"], answer["answers"]["s"]
            for found, labels in ((choice, b"AB"), (score, b"01")):
                assert found["label_token_ids"] == [*labels]
                prompt = found["prompt_token_ids"]
                (item,) = oracle_logprobs(prompt, labels[:1], VOCAB, vocab_size=VOCAB)[1]
                logprobs = [dict(item.top)[label] for label in labels]
                assert [*found["probabilities"].values()] == pytest.approx(shares(logprobs, temperature))
                assert found["label_mass"] == pytest.approx(sum(map(math.exp, logprobs)))
            assert choice["choice"] == max(choice["probabilities"], key=choice["probabilities"].get)
            assert score["score"] == pytest.approx(score["probabilities"]["1"])
            pairs = zip(choice["prompt_token_ids"], score["prompt_token_ids"], strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            usage = answer["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == shared // PAGE_SIZE * PAGE_SIZE
            assert usage["completion_tokens"] == 0

    run(test)
