"""`GET /openapi.json`: the API described for machines, from the table of routes and the types that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from sluice.http.base.routes import EVENT_STREAM, JSON, Body, Fields, Operation

REF = "#/components/schemas/{name}"
NOT_NULL = {"not": {"type": "null"}}
Schema = dict[str, Any]


def openapi(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """Return the OpenAPI document of some operations.

    Besides the fields of a body that it lists, others are accepted and ignored, or refused by name.
    """
    operations = [operation for operation in operations if operation.is_documented]
    types = [*dict.fromkeys(_types(operations))]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    schema_of = dict(zip(types, schemas, strict=True))
    for operation in operations:
        if operation.body is not None:
            _join(operation.body, components)
    paths: dict[str, Any] = {}
    for operation in operations:
        path = re.sub(r"{(\w+):\w+}", r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, schema_of)
    # Schemas whose fields were merged into another are not referred to.
    of_others = {name: _names_in(schema) - {name} for name, schema in components.items()}
    named = _names_in(paths).union(*of_others.values())
    used = {name: schema for name, schema in components.items() if name in named}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluice", "version": version},
        "paths": paths,
        "components": {"schemas": used, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def _types(operations: Sequence[Operation]) -> Iterator[Any]:
    for operation in operations:
        if operation.body is not None:
            yield from operation.body.fields
            for fields in operation.body.nested.values():
                yield from fields
        yield from (
            each
            for each in (operation.answer, operation.events, operation.error, operation.unavailable)
            if each is not None
        )


def _join(body: Body, components: dict[str, Schema]) -> None:
    """Add to the schema of a body's first struct what the body holds besides the struct's own fields."""
    schema = components[_name(body.fields)]
    _merge(body.fields, components)
    for field, fields in body.nested.items():
        _merge(fields, components)
        schema["properties"][field] = {"$ref": REF.format(name=_name(fields))}
    if body.required:
        schema["required"] = [*schema.get("required", ()), *body.required]
    if body.either:
        schema["oneOf"] = [{"required": [field], "properties": {field: NOT_NULL}} for field in body.either]


def _merge(fields: Fields, components: dict[str, Schema]) -> None:
    for other in fields[1:]:
        components[_name(fields)]["properties"] |= components[other.__name__]["properties"]


def _name(fields: Fields) -> str:
    return fields[0].__name__


def _names_in(content: Any) -> set[str]:
    """Return the names of the schemas to which a part of the document refers."""
    return set(re.findall(r'"#/components/schemas/([^"]+)"', msgspec.json.encode(content).decode()))


def _operation(operation: Operation, schema_of: dict[Any, Schema]) -> dict[str, Any]:
    described: dict[str, Any] = {"summary": operation.summary, "responses": _responses(operation, schema_of)}
    if names := re.findall(r"{(\w+)", operation.path):
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if operation.body is not None:
        content = {JSON: {"schema": schema_of[operation.body.fields[0]]}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _responses(operation: Operation, schema_of: dict[Any, Schema]) -> dict[str, Any]:
    error = {JSON: {"schema": schema_of[operation.error]}}
    text = {"type": "string"}
    content = {operation.media_type: {"schema": text if operation.answer is None else schema_of[operation.answer]}}
    described = "What was asked for"
    if operation.events is not None:
        event = {"anyOf": [schema_of[operation.events], schema_of[operation.error]]}
        content[operation.events_type] = {"schema": event}
        framed = "server-sent events" if operation.events_type == EVENT_STREAM else "lines of JSON"
        if operation.events_type == EVENT_STREAM and operation.events_end is not None:
            framed += f", and a last one, `{operation.events_end}`"
        described += f"; with `stream: true` as a stream of such events, in the form of {framed}"
    later = {
        "description": "It may succeed later",
        "headers": {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}},
        "content": {JSON: {"schema": schema_of[operation.unavailable]}},
    }
    return {
        "200": {"description": described, "content": content},
        "4XX": {"description": "The request is at fault", "content": error},
        "500": {"description": "The engine failed the request", "content": error},
        "503": later,
    } | ({} if operation.overload_status is None else {str(operation.overload_status): later})
