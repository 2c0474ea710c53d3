"""Ollama's `POST /api/embed`, and the older `POST /api/embeddings` for one text: requests and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from sluice.http.apis.ollama.answers import nanoseconds
from sluice.http.apis.ollama.fields import PLACE, OllamaOptions, OllamaSampling, read_options, served_name
from sluice.http.base.backend import Service
from sluice.http.base.body import read_fields
from sluice.http.base.errors import require
from sluice.http.base.routes import Body
from sluice.http.base.turns import json_list
from sluice.http.base.unsupported_fields import OF_EMBEDDINGS
from sluice.http.call.embeddings import E, EmbedFields, checked_dimensions, embed_call
from sluice.http.call.generate_call import MAX_CHOICES, GenerateCall, Text, documented
from sluice.http.call.generation import Generation, Usage
from sluice.text.vectors import unit_vector


class OllamaEmbedFields(EmbedFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/embed`."""

    model: Text
    input: str | list[Text]
    """As in Ollama, no text has no embeddings."""
    dimensions: Annotated[int, documented(minimum=1)] | None = None
    options: dict[str, Any] = msgspec.field(default_factory=dict)


class OllamaEmbeddingFields(EmbedFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/embeddings`."""

    model: Text
    prompt: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)


OLLAMA_EMBED_BODY, OLLAMA_EMBEDDING_BODY = (
    Body((kind,), nested={PLACE: (OllamaSampling, OllamaOptions)})
    for kind in (OllamaEmbedFields, OllamaEmbeddingFields)
)


def parse_ollama_embed(service: Service, body: bytes) -> GenerateCall[OllamaEmbedFields]:
    """Check the body of `POST /api/embed`.

    Raises:
        ApiError: 400, naming the field; 404, another model.
    """
    fields = read_fields(body, OllamaEmbedFields, OF_EMBEDDINGS)
    texts = fields.input if isinstance(fields.input, list) else [fields.input] if fields.input else []
    require(all(texts), "input must be a text or a list of texts, of which none is empty", param="input")
    message = f"input has {len(texts)} texts; at most {MAX_CHOICES} are accepted in one call"
    require(len(texts) <= MAX_CHOICES, message, param="input")
    return _call(service, fields, fields.options, texts, "input")


def parse_ollama_embedding(service: Service, body: bytes) -> GenerateCall[OllamaEmbeddingFields]:
    """Check the body of `POST /api/embeddings`.

    Raises:
        ApiError: 400, naming the field; 404, another model.
    """
    fields = read_fields(body, OllamaEmbeddingFields, OF_EMBEDDINGS)
    return _call(service, fields, fields.options, [fields.prompt] if fields.prompt else [], "prompt")


def _call(service: Service, fields: E, options: dict[str, Any], texts: Sequence[str], name: str) -> GenerateCall[E]:
    """Return a call. Of its options only `num_ctx` concerns embeddings; sampling parameters have no effect."""
    _, others, _ = read_options(options)
    names = {"prompt": name, "num_ctx": f"{PLACE}.num_ctx"}
    return embed_call(fields, texts, names, model=served_name(service, fields.model or ""), num_ctx=others.num_ctx)


class OllamaEmbed(msgspec.Struct):
    """The answer to `POST /api/embed`."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    """Nanoseconds, as `total_duration`."""
    prompt_eval_count: int


class OllamaEmbedding(msgspec.Struct):
    """The answer to `POST /api/embeddings`."""

    embedding: list[float]


class OllamaEmbedAnswer:
    """The answer to `POST /api/embed`.

    Raises:
        ApiError: 400, the model's embeddings are shorter than is asked for.
    """

    def __init__(self, call: GenerateCall[OllamaEmbedFields], generation: Generation) -> None:
        self._model = call.fields.model
        self._generation = generation
        self._dimensions = checked_dimensions(generation, call.fields.dimensions)

    def whole(self, embeddings: Sequence[bytes], usage: Usage) -> OllamaEmbed:
        generation = self._generation
        ended = generation.service.client.now()
        submitted = generation.came_at if generation.submitted_at is None else generation.submitted_at
        vectors = (unit_vector(each, self._dimensions).tolist() for each in embeddings)
        return OllamaEmbed(
            model=self._model,
            embeddings=json_list(vectors, len(embeddings)),
            total_duration=nanoseconds(ended - generation.came_at),
            load_duration=nanoseconds(submitted - generation.came_at),
            prompt_eval_count=usage.prompt_tokens,
        )


class OllamaEmbeddingAnswer:
    """The answer to `POST /api/embeddings`."""

    def __init__(self, call: GenerateCall[OllamaEmbeddingFields], generation: Generation) -> None:
        pass

    def whole(self, embeddings: Sequence[bytes], usage: Usage) -> OllamaEmbedding:
        return OllamaEmbedding(unit_vector(embeddings[0]).tolist() if embeddings else [])
