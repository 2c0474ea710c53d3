"""The generative form of `/score`: the probabilities of labels over the shadow model, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from serving import run, serving
from shadow_engine import MAX_MODEL_LEN, VOCAB
from sluice.testing import oracle_logprobs

QUERY, ITEMS = "Is it a river? ", ["Rhine", "Ruhr"]


def chance(prompt: str, label: str) -> float:
    """How likely the shadow model is to write `label` behind `prompt`."""
    _, of_label = oracle_logprobs([*prompt.encode()], [*label.encode()], 0, vocab_size=VOCAB)
    return math.exp(math.fsum(item.logprob for item in of_label))


def about(values: list[float]) -> Any:
    return pytest.approx(values, rel=1e-6)


def test_the_probabilities_of_label_tokens() -> None:
    """Among all tokens, or among the labels; vLLM's `score` is that of the first, SGLang's `scores` are all."""

    async def test() -> None:
        async with serving() as server:
            labels, whole = [*b"yn?"], [[chance(QUERY + item, label) for label in "yn?"] for item in ITEMS]
            body: dict[str, Any] = {"query": QUERY, "items": ITEMS, "label_token_ids": labels}
            for path in ("/score", "/v1/score", "/generative_scoring"):
                answer = (await server.post(path, **body, apply_softmax=False)).json()
                assert answer["scores"] == [about(row) for row in whole]
                assert [each["score"] for each in answer["data"]] == about([row[0] for row in whole])
                assert [each["index"] for each in answer["data"]] == [0, 1]
            answer = (await server.post("/score", **body)).json()
            assert answer["scores"] == [about([each / sum(row) for each in row]) for row in whole]
            assert answer["usage"]["completion_tokens"] == 0
            assert answer["usage"]["prompt_tokens"] == sum(len(QUERY + item) for item in ITEMS)

    run(test)


def test_labels_of_several_tokens() -> None:
    """Every way through the tree of labels, with one prompt for each beginning that labels share."""

    async def test() -> None:
        async with serving() as server:
            labels = ["yes", "yet", "no", "never"]
            answer = (await server.post("/score", query=QUERY, items=ITEMS, labels=labels, apply_softmax=False)).json()
            assert answer["scores"] == [about([chance(QUERY + item, label) for label in labels]) for item in ITEMS]
            beginnings = {label[:length] for label in labels for length in range(len(label))}
            sizes = [len(QUERY + item + beginning) for item in ITEMS for beginning in beginnings]
            assert answer["usage"]["prompt_tokens"] == sum(sizes)
            answer = (await server.post("/score", query=QUERY, items=ITEMS, labels=labels)).json()
            assert [sum(row) for row in answer["scores"]] == about([1, 1])

    run(test)


def test_every_form_of_query_and_items() -> None:
    async def test() -> None:
        async with serving() as server:
            expected = about([chance("ab", "y")])
            for body in (
                {"query": "a", "items": "b"},
                {"query": "a", "items": ["b"]},
                {"query": [*b"a"], "items": [[*b"b"]]},
                {"query": "b", "items": ["a"], "item_first": True},
            ):
                asked = {"label_token_ids": [*b"y"], "apply_softmax": False} | body
                assert (await server.post("/score", **asked)).json()["scores"] == [expected]

    run(test)


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"label_token_ids": []}, "label_token_ids", "must not be empty"),
        ({"label_token_ids": [5, 6, 5]}, "label_token_ids[2]", "5 is given twice"),
        ({"label_token_ids": [VOCAB]}, "label_token_ids", f"ids are 0 to {VOCAB - 1}"),
        ({"label_token_ids": [-1]}, "label_token_ids[0]", "must be a token id, got -1"),
        ({"label_token_ids": [*range(129)]}, "label_token_ids", "at most 128, got 129"),
        ({"label_token_ids": ["yes"]}, "label_token_ids[0]", "got `str`"),
        ({"label_token_ids": None}, "label_token_ids", "either label_token_ids or labels"),
        ({"labels": ["yes"]}, "label_token_ids", "either label_token_ids or labels"),
        ({"label_token_ids": None, "labels": ["yes", ""]}, "labels[1]", "must not be empty"),
        ({"label_token_ids": None, "labels": ["a", "a"]}, "labels[1]", "'a' is given twice"),
        ({"label_token_ids": None, "labels": ["yes", "no", "yes!"]}, "labels[0]", "begins labels[2]"),
        ({"label_token_ids": None, "labels": ["yes!", "yes"]}, "labels[1]", "begins labels[0]"),
        ({"query": ""}, "query", "non-empty text"),
        ({"query": ["a", "b"]}, "query", "must be one text"),
        ({"items": []}, "items", "non-empty"),
        ({"items": ["a", ""]}, "items[1]", "non-empty"),
        ({"items": None}, "items", "required"),
        ({"query": "a" * MAX_MODEL_LEN}, "query", "needs room for at least 1 more"),
        ({"text_1": "a", "text_2": "b"}, "text_1", "either text_1 and text_2, or query and items"),
        ({"images": ["data:"]}, "images", "not supported"),
        ({"items": ["a" * 9] * 4097}, "items", "at most 4096"),
    ],
)
def test_what_cannot_be_scored_is_refused(body: dict[str, Any], param: str, said: str) -> None:
    async def test() -> None:
        async with serving(max_body_bytes=1 << 20) as server:
            asked = {"query": QUERY, "items": ITEMS, "label_token_ids": [*b"yn"]} | body
            answer = await server.post("/v1/score", **asked)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, param), error
            assert said in error["message"]
            assert server.sent == []

    run(test)
