"""`GET /openapi.json`: the API described for machines, by the types that bodies are checked against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sluice.http.generate_call import SamplingFields
from sluice.http.openai import ChatFields, CompletionFields
from sluice.http.sglang import NativeFields, NativeSampling, NativeText
from sluice.http.template_fields import TemplateFields
from sluice.http.tokenize import DetokenizeFields, TokenizeFields

BODIES: Mapping[str, tuple[str, type[msgspec.Struct]]] = {
    "/v1/completions": ("Continue prompts (OpenAI)", CompletionFields),
    "/v1/chat/completions": ("Continue a conversation (OpenAI)", ChatFields),
    "/generate": ("Continue prompts (SGLang)", NativeFields),
    "/tokenize": ("Text to token ids (vLLM)", TokenizeFields),
    "/detokenize": ("Token ids to text (vLLM)", DetokenizeFields),
}
EITHER: Mapping[str, tuple[str, str]] = {
    "NativeFields": ("text", "input_ids"),
    "TokenizeFields": ("prompt", "messages"),
}
"""Fields of which exactly one is given."""
NOT_NULL = {"not": {"type": "null"}}
READINGS: Mapping[str, str] = {
    "/v1/models": "The model that is served (OpenAI)",
    "/health": "Whether it can be used: 200 or 503; and the engine's step and phase",
    "/live": "Whether its process should live on: 200 or 503",
    "/ready": "Whether new work may be sent to it: 200 or 503",
    "/server_info": "Every option with its reason, and the state of the engine",
    "/model_info": "The model that is served (SGLang)",
    "/version": "The version of the server",
}


class ErrorDetails(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct):
    """The body of every answer other than 2xx."""

    error: ErrorDetails


def openapi(version: str) -> dict[str, Any]:
    """Return the document. Besides the listed fields, those that ask for nothing (`user`, `tools: []`) are accepted."""
    schemas, components = msgspec.json.schema_components(
        [*(kind for _, kind in BODIES.values()), NativeSampling, SamplingFields, TemplateFields, NativeText, Error],
        ref_template="#/components/schemas/{name}",
    )
    sampling = components.pop("SamplingFields")["properties"]
    for kind in (CompletionFields, ChatFields):
        components[kind.__name__]["properties"] |= sampling
    components["NativeSampling"]["properties"] |= components.pop("NativeText")["properties"]
    template = components.pop("TemplateFields")["properties"]
    for name in ("ChatFields", "TokenizeFields"):
        components[name]["properties"] |= template
    components["NativeFields"]["properties"]["sampling_params"] = {"$ref": "#/components/schemas/NativeSampling"}
    for name, either in EITHER.items():
        components[name]["oneOf"] = [{"required": [field], "properties": {field: NOT_NULL}} for field in either]
    paths: dict[str, Any] = {
        path: {"post": _with_body(summary, schema)}
        for (path, (summary, _)), schema in zip(BODIES.items(), schemas, strict=False)
    }
    paths |= {path: {"get": _operation(summary)} for path, summary in READINGS.items()}
    paths["/v1/models/{name}"] = {
        "get": _operation("One model (OpenAI)")
        | {"parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]}
    }
    paths["/flush_cache"] = {"post": _operation("Forget what is cached and not in use (SGLang)")}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluice", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(summary: str) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "summary": summary,
        "responses": {
            "200": {"description": "What was asked for", "content": {"application/json": {}}},
            "4XX": {"description": "The request is at fault", "content": error},
            "503": {
                "description": "It may succeed later",
                "headers": {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}},
                "content": error,
            },
        },
    }


def _with_body(summary: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    operation = _operation(summary)
    operation["responses"]["200"]["content"] |= {"text/event-stream": {}}
    return operation | {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
