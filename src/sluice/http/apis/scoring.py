"""`POST /rerank` and `/score`: how alike texts are, by the cosine of their embeddings, in the form of vLLM's answers.

`/score` has another form, in `label_scores`. Jina's and Cohere's clients send `/v1/rerank` and `/v2/rerank`, with the
same fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from sluice.http.apis.decisions import DECISION_BODY, DecisionAnswer, Decisions, parse_decisions, with_labels
from sluice.http.apis.label_scores import (
    LabelScoreAnswer,
    LabelScoreFields,
    Score,
    Scored,
    parse_label_scores,
    with_label_tree,
)
from sluice.http.base.body import convert, fields_of, json_object, known_fields, read_fields
from sluice.http.base.errors import require
from sluice.http.base.routes import Body, Routes
from sluice.http.base.unsupported_fields import OF_EMBEDDINGS
from sluice.http.call import generation as counts
from sluice.http.call.embeddings import EmbedFields, embed_call
from sluice.http.call.generate_call import MAX_CHOICES, GenerateCall, Text, documented
from sluice.http.call.generating import CallHandler
from sluice.http.call.generation import Generation
from sluice.http.call.usage import Usage, usage_json
from sluice.text.vectors import cosine, unit_vector


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """A document as Jina's and Cohere's clients may write it."""

    text: Text


class RerankFields(EmbedFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /rerank`."""

    query: Text
    documents: Annotated[list[Text | Document], documented(minItems=1)]
    top_n: Annotated[int, documented(minimum=0)] = 0
    """Results, the best ones; 0: all."""
    return_documents: bool = True


class ScoreFields(EmbedFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /score` without a `query`: `text_1` and `text_2` are given."""

    text_1: Text | Annotated[list[Text], documented(minItems=1)] | None = None
    text_2: Text | Annotated[list[Text], documented(minItems=1)] | None = None


RERANK_PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")
SCORE_PATHS = ("/score", "/v1/score", "/generative_scoring")
RERANK_BODY = Body((RerankFields,))
SCORE_BODY = Body((ScoreFields, LabelScoreFields), either=("text_1", "query"))


def parse_rerank(body: bytes) -> GenerateCall[RerankFields]:
    """Check the body of `POST /rerank`.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = read_fields(body, RerankFields, OF_EMBEDDINGS)
    require(fields.top_n >= 0, f"top_n must be at least 0, got {fields.top_n}", param="top_n")
    _check_texts("query", [fields.query])
    _check_texts("documents", texts := _texts(fields))
    return embed_call(fields, (fields.query, *texts), {"prompt": "documents"})


def parse_score(body: bytes) -> GenerateCall[Any]:
    """Check the body of `POST /score`. A call that does not embed is one of `label_scores`.

    Raises:
        ApiError: 400, naming the field.
    """
    content = json_object(body)
    if any(content.get(name) is not None for name in ("query", "items", "label_token_ids", "labels")):
        require(content.get("text_1") is None, "send either text_1 and text_2, or query and items", param="text_1")
        return parse_label_scores(content)
    fields = convert(known_fields(content, fields_of(ScoreFields), unsupported=OF_EMBEDDINGS), ScoreFields)
    message = "text_1 and text_2 are required, or query, items and label_token_ids"
    require(fields.text_1 is not None, message, param="text_1")
    require(fields.text_2 is not None, message, param="text_2")
    ones, others = _listed(fields.text_1), _listed(fields.text_2)
    _check_texts("text_1", ones)
    _check_texts("text_2", others)
    message = f"text_1 must be one text, or as many as text_2, {len(others)}; got {len(ones)}"
    require(len(ones) in (1, len(others)), message, param="text_1")
    return embed_call(fields, (*ones, *others), {"prompt": "text_2"})


def _texts(fields: RerankFields) -> list[str]:
    return [each if isinstance(each, str) else each.text for each in fields.documents]


def _listed(texts: str | list[str] | None) -> list[str]:
    return [texts] if isinstance(texts, str) else texts or []


def _check_texts(name: str, texts: Sequence[str]) -> None:
    is_full = bool(texts) and all(texts)
    require(is_full, f"{name} must be a non-empty text, or a non-empty list of such texts", param=name)
    message = f"{name} has {len(texts)} texts; at most {MAX_CHOICES - 1} are accepted in one call"
    require(len(texts) < MAX_CHOICES, message, param=name)


class Ranked(msgspec.Struct, kw_only=True):
    index: int
    """Index of the document in the request."""
    document: Document | UnsetType = UNSET
    """Left out if `return_documents` is false."""
    relevance_score: float


class Reranked(msgspec.Struct, kw_only=True):
    """The answer to `POST /rerank`."""

    id: str
    model: str
    results: list[Ranked]
    """Best first."""
    usage: Usage


class RerankAnswer:
    """The answer to `POST /rerank`: the documents, the one most like the query first."""

    def __init__(self, call: GenerateCall[RerankFields], generation: Generation) -> None:
        self._head: dict[str, Any] = {"id": f"rerank-{generation.id}", "model": generation.model}
        self._texts = _texts(call.fields)
        self._most = call.fields.top_n or len(self._texts)
        self._returns_documents = call.fields.return_documents

    def whole(self, embeddings: Sequence[bytes], usage: counts.Usage) -> Reranked:
        query, *documents = map(unit_vector, embeddings)
        scores = [cosine(query, document) for document in documents]
        best = sorted(range(len(scores)), key=lambda index: -scores[index])[: self._most]
        results = [self._result(index, scores[index]) for index in best]
        return Reranked(results=results, usage=usage_json(usage), **self._head)

    def _result(self, index: int, score: float) -> Ranked:
        document = Document(self._texts[index]) if self._returns_documents else UNSET
        return Ranked(index=index, document=document, relevance_score=score)


class ScoreAnswer:
    """The answer to `POST /score`: a score for each pair of texts."""

    def __init__(self, call: GenerateCall[ScoreFields], generation: Generation) -> None:
        self._generation = generation
        self._num_ones = len(_listed(call.fields.text_1))

    def whole(self, embeddings: Sequence[bytes], usage: counts.Usage) -> Scored:
        vectors = [unit_vector(each) for each in embeddings]
        ones, others = vectors[: self._num_ones], vectors[self._num_ones :]
        pairs = zip(ones * (len(others) // len(ones)), others, strict=True)
        generation = self._generation
        return Scored(
            id=f"score-{generation.id}",
            object="list",
            created=generation.created,
            model=generation.model,
            data=[Score(index=index, object="score", score=cosine(*pair)) for index, pair in enumerate(pairs)],
            usage=usage_json(usage),
        )


def add_scoring(routes: Routes, calls: CallHandler) -> None:
    """Add the routes that compare texts, and those that ask how likely answers are."""

    @routes.add("POST", *RERANK_PATHS, summary="Documents by likeness to a query", body=RERANK_BODY, answer=Reranked)
    async def rerank(request: Request) -> Response:
        return await calls.embed(request, parse_rerank, RerankAnswer)

    @routes.add(
        "POST",
        *SCORE_PATHS,
        summary="How alike texts are, or how likely answers are (vLLM)",
        body=SCORE_BODY,
        answer=Scored,
    )
    async def score(request: Request) -> Response:
        accepted = await calls.accepted(request, parse_score)
        if accepted.call.embeds:
            return await calls.embed_accepted(request, accepted, ScoreAnswer)
        return await calls.score(request, accepted, with_label_tree, LabelScoreAnswer)

    @routes.add(
        "POST", "/v1/decisions", summary="How likely answers are (SGLang)", body=DECISION_BODY, answer=Decisions
    )
    async def decisions(request: Request) -> Response:
        return await calls.score(request, await calls.accepted(request, parse_decisions), with_labels, DecisionAnswer)
