"""`/v1/embeddings`, `/rerank` and `/score` over the shadow model, whose embeddings hash the whole prompt."""

from __future__ import annotations

import asyncio
import base64
import math
from typing import Any

import numpy as np
import openai
import pytest

from serving import MODEL, expected_text, run, serving
from shadow_engine import MAX_MODEL_LEN, VOCAB
from sluice.http.observe.engine_metrics import Page
from sluice.testing import SHADOW_EMBEDDING_SIZE, shadow_embedding
from sluice.text.vectors import cosine, unit_vector


def vector_of(text: str, dimensions: int | None = None) -> list[float]:
    """What the shadow model must answer."""
    return [*map(float, unit_vector(shadow_embedding([*text.encode()]), dimensions))]


def test_every_form_of_input_and_encoding() -> None:
    """One vector for each input, in order, of length 1; base64 holds the same numbers."""

    async def test() -> None:
        async with serving() as server:
            for given in ("owl", ["owl"], [*b"owl"], [[*b"owl"]]):
                answer = (await server.post("/v1/embeddings", input=given, model=MODEL)).json()
                assert [each["embedding"] for each in answer["data"]] == [vector_of("owl")]
            texts = [f"text {number}" for number in range(20)]
            answer = (await server.post("/v1/embeddings", input=texts)).json()
            assert [each["embedding"] for each in answer["data"]] == [*map(vector_of, texts)]
            assert [each["index"] for each in answer["data"]] == [*range(20)]
            length = sum(map(len, texts))
            assert (answer["usage"]["prompt_tokens"], answer["usage"]["total_tokens"]) == (length, length)
            coded = (await server.post("/v1/embeddings", input=texts, encoding_format="base64")).json()
            for one, other in zip(answer["data"], coded["data"], strict=True):
                assert np.frombuffer(base64.b64decode(other["embedding"]), "<f4").tolist() == one["embedding"]
            cut = (await server.post("/v1/embeddings", input="owl", dimensions=2)).json()["data"][0]["embedding"]
            assert cut == vector_of("owl", 2)
            assert math.isclose(math.hypot(*cut), 1, abs_tol=1e-6)

    run(test)


def test_the_official_client() -> None:
    """It asks for base64 unless told otherwise, and decodes it itself."""

    async def test() -> None:
        async with serving() as server:
            client = openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=server.http)
            answer = await client.embeddings.create(model=MODEL, input=["owl", "river"])
            assert [each.embedding for each in answer.data] == [vector_of("owl"), vector_of("river")]
            assert answer.usage.prompt_tokens == 8

    run(test)


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        ({"input": []}, 400, "input", "non-empty"),
        ({"input": ""}, 400, "input", "non-empty"),
        ({"input": ["a", ""]}, 400, "input[1]", "non-empty"),
        ({}, 400, "input", "input"),
        ({"input": [VOCAB]}, 400, "input", f"ids are 0 to {VOCAB - 1}"),
        ({"input": "a" * (MAX_MODEL_LEN + 1)}, 400, "input", f"{MAX_MODEL_LEN + 1} tokens"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions", f"from 1 to {SHADOW_EMBEDDING_SIZE}"),
        ({"input": "a", "dimensions": 5}, 400, "dimensions", f"from 1 to {SHADOW_EMBEDDING_SIZE}"),
        ({"input": "a", "encoding_format": "hex"}, 400, "encoding_format", "hex"),
        ({"input": "a", "model": "owl"}, 404, "model", "'owl' does not exist"),
        ({"input": "a", "messages": [1]}, 400, "messages", "not supported"),
        ({"input": "a", "priority": 3}, 400, "priority", "--schedule-policy priority"),
    ],
)
def test_bad_input_is_refused_by_name(body: dict[str, Any], status: int, param: str, message: str) -> None:
    async def test() -> None:
        async with serving() as server:
            answer = await server.post("/v1/embeddings", **body)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (status, param), error
            assert message in error["message"]

    run(test)


def test_a_prompt_may_fill_the_context() -> None:
    """No token is generated, so no room for one is needed."""

    async def test() -> None:
        async with serving() as server:
            text = "a" * MAX_MODEL_LEN
            answer = (await server.post("/v1/embeddings", input=text)).json()
            assert answer["data"][0]["embedding"] == vector_of(text)

    run(test)


def test_streams_go_on_beside_them_and_prefixes_are_shared() -> None:
    """An embedding among completions takes their cached prefix, and changes no token of theirs."""

    async def test() -> None:
        async with serving() as server:
            prompt = "a common beginning of forty characters, "
            before = await server.complete(prompt=prompt, max_tokens=4, seed=0)
            calls = [server.complete(prompt=f"{prompt}{number}", max_tokens=40, seed=0) for number in range(4)]
            calls += [server.post("/v1/embeddings", input=[prompt + "x", prompt + "y"])]
            *texts, answer = await asyncio.gather(*calls)
            for number, text in enumerate(texts):
                assert text["choices"][0]["text"] == expected_text(f"{prompt}{number}", 40)
            assert [each["embedding"] for each in answer.json()["data"]] == [vector_of(prompt + end) for end in "xy"]
            assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 80
            assert before["usage"]["completion_tokens"] == 4
            assert server.metrics.prompt_tokens == len(prompt) + 6 * (len(prompt) + 1)
            Page(MODEL).add_requests(server.metrics)

    run(test)


def test_documents_come_in_the_order_of_their_likeness() -> None:
    """Under the paths and in the forms that vLLM's, Jina's and Cohere's clients use."""

    async def test() -> None:
        texts = ["the north gate", "a song", "water", "the mill"]
        query = unit_vector(shadow_embedding([*b"Which gate?"]))
        scores = {text: cosine(query, unit_vector(shadow_embedding([*text.encode()]))) for text in texts}
        best = sorted(texts, key=lambda text: -scores[text])
        async with serving() as server:
            for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
                answer = (await server.post(path, query="Which gate?", documents=texts, model=MODEL)).json()
                assert [each["document"]["text"] for each in answer["results"]] == best
                assert [each["relevance_score"] for each in answer["results"]] == [scores[text] for text in best]
                assert [texts[each["index"]] for each in answer["results"]] == best
            documents = [{"text": text} for text in texts]
            body = {"query": "Which gate?", "documents": documents, "top_n": 2, "return_documents": False}
            answer = (await server.post("/rerank", **body)).json()
            assert [each.keys() for each in answer["results"]] == [{"index", "relevance_score"}] * 2
            for wrong, param in (({"documents": []}, "documents"), ({"top_n": -1}, "top_n"), ({"query": ""}, "query")):
                refused = await server.post("/rerank", **body | wrong)
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)

    run(test)


def test_scores_are_of_pairs_or_of_one_text_with_each() -> None:
    async def test() -> None:
        def score(one: str, other: str) -> float:
            vectors = [unit_vector(shadow_embedding([*text.encode()])) for text in (one, other)]
            return cosine(*vectors)

        async with serving() as server:
            for one, other, pairs in (
                ("owl", "river", [("owl", "river")]),
                ("owl", ["river", "owl"], [("owl", "river"), ("owl", "owl")]),
                (["owl", "mill"], ["river", "owl"], [("owl", "river"), ("mill", "owl")]),
            ):
                for path in ("/score", "/v1/score"):
                    answer = (await server.post(path, text_1=one, text_2=other)).json()
                    assert [each["score"] for each in answer["data"]] == [score(*pair) for pair in pairs]
            refused = await server.post("/score", text_1=["a", "b"], text_2=["c", "d", "e"])
            assert refused.json()["error"]["param"] == "text_1"

    run(test)


def test_settings_of_generation_are_ignored() -> None:
    """Clients send their settings with every call; a refusal of `temperature` would help none of them."""

    async def test() -> None:
        async with serving() as server:
            answer = await server.post("/v1/embeddings", input="ab", temperature=0.5, max_tokens=3, tools=[{}])
            assert answer.status_code == 200
            assert answer.headers["x-sluice-ignored-fields"] == "temperature, max_tokens, tools"
            assert (await server.post("/v1/embeddings", input="ab", prompt_embeds="x")).status_code == 400

    run(test)
