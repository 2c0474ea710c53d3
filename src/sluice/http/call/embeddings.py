"""`POST /v1/embeddings`: OpenAI's request and answer. The calls of `scoring.py` are answered by the same means."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, TypeVar

import msgspec

from sluice.http.base.body import read_fields
from sluice.http.base.errors import bad_request
from sluice.http.base.routes import Body
from sluice.http.base.turns import json_list
from sluice.http.base.unsupported_fields import OF_EMBEDDINGS
from sluice.http.call import generation as counts
from sluice.http.call.generate_call import GenerateCall, Prompt, RequestFields, checked_prompts, documented, terms_of
from sluice.http.call.generation import Generation
from sluice.http.call.openai import PROMPT_SCHEMA
from sluice.http.call.usage import Usage, usage_json
from sluice.text.vectors import unit_vector
from sluice.types import NO_SAMPLING
from sluice.types.request_limits import LimitError


class EmbedFields(RequestFields, kw_only=True, forbid_unknown_fields=True):
    """Fields that every route takes that embeds texts."""

    model: str | None = None
    add_special_tokens: bool = True


class EmbeddingFields(EmbedFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/embeddings`."""

    input: Annotated[Any, documented(**PROMPT_SCHEMA)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, documented(minimum=1)] | None = None
    """Numbers of each embedding; None: all that the model gives."""


EMBEDDING_BODY = Body((EmbeddingFields,))
E = TypeVar("E", bound=EmbedFields)


class EmbedAnswer(Protocol):
    """How one route spells what it makes of embeddings."""

    def whole(self, embeddings: Sequence[bytes], usage: counts.Usage) -> msgspec.Struct:
        """Return the answer.

        Args:
            embeddings: of each prompt of the call, as `Output.embedding`.
        """
        ...


def embed_call(
    fields: E,
    prompts: Sequence[Prompt],
    names: Mapping[str, str],
    *,
    model: str | None = None,
    num_ctx: int | None = None,
) -> GenerateCall[E]:
    """Return a call whose prompts are embedded.

    Args:
        names: see `GenerateCall`.
        model: name of the model as it is served; None: the body has it.
        num_ctx: tokens of context that the client relies on.

    Raises:
        ApiError: 400, a salt or a time that cannot be honoured.
    """
    return GenerateCall(
        fields=fields,
        prompts=tuple(prompts),
        sampling=NO_SAMPLING,
        terms=terms_of(fields),
        embeds=True,
        model=fields.model if model is None else model,
        names=names,
        add_special_tokens=fields.add_special_tokens,
        num_ctx=num_ctx,
    )


def parse_embedding(body: bytes) -> GenerateCall[EmbeddingFields]:
    """Check the body of `POST /v1/embeddings`.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = read_fields(body, EmbeddingFields, OF_EMBEDDINGS)
    return embed_call(fields, checked_prompts("input", fields.input, 1), {"prompt": "input"})


class Embedding(msgspec.Struct, kw_only=True):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    """A vector of length 1; or, on request, its little-endian float32 in base64."""


class Embeddings(msgspec.Struct, kw_only=True):
    """The answer to `POST /v1/embeddings`."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Embedding]
    usage: Usage


class EmbeddingAnswer:
    """The answer to `POST /v1/embeddings`.

    Raises:
        ApiError: 400, the model's embeddings are shorter than is asked for.
    """

    def __init__(self, call: GenerateCall[EmbeddingFields], generation: Generation) -> None:
        self._id, self._created = f"embd-{generation.id}", generation.created
        self._model = generation.model
        self._dimensions = checked_dimensions(generation, call.fields.dimensions)
        self._is_base64 = call.fields.encoding_format == "base64"

    def whole(self, embeddings: Sequence[bytes], usage: counts.Usage) -> Embeddings:
        entries = (
            Embedding(object="embedding", index=index, embedding=self._encoded(embedding))
            for index, embedding in enumerate(embeddings)
        )
        return Embeddings(
            id=self._id,
            object="list",
            created=self._created,
            model=self._model,
            data=json_list(entries, len(embeddings)),
            usage=usage_json(usage),
        )

    def _encoded(self, embedding: bytes) -> str | list[float]:
        vector = unit_vector(embedding, self._dimensions)
        if self._is_base64:
            return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()
        numbers: list[float] = vector.tolist()
        return numbers


def checked_dimensions(generation: Generation, dimensions: int | None) -> int | None:
    """Return how many numbers an embedding is to have.

    Raises:
        ApiError: 400, the model's embeddings are shorter.
    """
    try:
        generation.service.limits.check_dimensions(dimensions)
    except LimitError as error:
        raise bad_request(str(error), param=error.param) from error
    return dimensions


async def embedded(generation: Generation, answer: EmbedAnswer) -> msgspec.Struct:
    """Return the answer of a call whose prompts are embedded.

    Raises:
        ApiError: as `Generation.pieces`.
    """
    with generation:
        await generation.submit()
        async for _ in generation.pieces():
            pass
        return answer.whole([choice.embedding for choice in generation.choices], generation.usage())
