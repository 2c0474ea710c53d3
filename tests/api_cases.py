"""Requests that schemathesis makes up from the server's own schema, and what may be said against an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jsonschema_rs
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode

from sluice.http.apis.responses.store import ResponseStore
from sluice.http.app import make_routes
from sluice.http.base.backend import Backend
from sluice.http.base.body import BodyLimits, BodyReader
from sluice.http.base.errors import OVERLOADED
from sluice.http.base.isolation import CacheIsolation
from sluice.http.base.openapi import openapi
from sluice.http.base.routes import EVENT_STREAM, JSON, NDJSON
from sluice.http.observe.http_metrics import Metrics

ROUTES = make_routes(Backend(), BodyReader(BodyLimits()), CacheIsolation(), Metrics(), lambda: 0.0, ResponseStore(0, 0))
SCHEMA = schemathesis.openapi.from_dict(openapi(ROUTES.operations, "0"))
WITH_BODY = [(each.method, each.path) for each in ROUTES.operations if each.body is not None]
OPERATIONS = [(method.upper(), path) for path, methods in SCHEMA.raw_schema["paths"].items() for method in methods]
MODEL = "shadow"
MOST = {"max_tokens": 30, "max_completion_tokens": 30, "max_output_tokens": 30, "min_tokens": 3, "n": 4, "best_of": 4}
"""What is tested is the way in, not the engine's patience."""


class Described:
    """The document's schemas of answers, with every field that they do not name refused."""

    def __init__(self) -> None:
        document = _closed(SCHEMA.raw_schema)
        self._components = document["components"]
        self._paths = document["paths"]
        self._validators: dict[str, jsonschema_rs.Validator] = {}
        self.operations = OPERATIONS

    def complaint(self, method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
        """Return how an answer differs from what the document says of it."""
        responses = self._paths[path][method.lower()]["responses"]
        described = responses.get(str(status)) or responses.get(f"{status // 100}XX")
        if described is None:
            return f"status {status} is not described"
        kind = headers.get("content-type", "").split(";")[0]
        content = {name.split(";")[0]: media for name, media in described["content"].items()}
        if kind not in content:
            return f"status {status} as {kind!r} is not described"
        if kind not in (JSON, EVENT_STREAM, NDJSON):
            return None
        values = [json.loads(body)] if kind == JSON else _events(body)
        found = (self._validator(content[kind]["schema"]).iter_errors(value) for value in values)
        return next((f"{error.message} at {error.instance_path}" for errors in found for error in errors), None)

    def _validator(self, schema: Any) -> jsonschema_rs.Validator:
        key = json.dumps(schema)
        if key not in self._validators:
            self._validators[key] = jsonschema_rs.validator_for({"components": self._components} | schema)
        return self._validators[key]


def _closed(schema: Any) -> Any:
    """Return a schema in which objects have no fields but those that are named."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(item) for name, item in schema.items()}
    return {"additionalProperties": False} | closed if isinstance(schema.get("properties"), dict) else closed


def _events(body: bytes) -> list[Any]:
    """Return the data of server-sent events but for `[DONE]`, or of lines of JSON."""
    lines = [line for line in body.decode().split("\n") if line and not line.startswith("event: ")]
    data = [line.removeprefix("data: ") for line in lines]
    return [json.loads(each) for each in data if each != "[DONE]"]


class Sent(NamedTuple):
    """A request as bytes."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@st.composite
def case_of(draw: st.DrawFn, method: str, path: str) -> Sent:
    """A request for one operation, half of them such as the schema does not allow."""
    mode = draw(st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE]))
    operation = SCHEMA[path][method]
    try:
        strategy = operation.as_strategy(generation_mode=mode)
        case = draw(strategy)
    except schemathesis.errors.SchemathesisError:  # nothing of this operation can be wrong
        case = draw(operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    body = case.body
    if not isinstance(body, bytes):
        body = b"" if isinstance(body, schemathesis.core.NotSet) else json.dumps(_usable(draw, path, body)).encode()
    return Sent(method, case.formatted_path, {"content-type": case.media_type or "application/json"}, body)


def _usable(draw: st.DrawFn, path: str, body: Any) -> Any:
    """Mostly for the model there is, and mostly short: else every answer is 404, or one takes all the time."""
    if not isinstance(body, dict) or draw(st.integers(0, 9)) == 0:
        return body
    body = {name: _as_integer(value) for name, value in body.items() if name not in ("model", "priority")}
    for name, most in MOST.items():
        if isinstance(body.get(name), int | float):
            body[name] = min(body[name], most)
    if path.startswith(("/api/", "/v1/messages")):
        body["model"] = MODEL
    if isinstance(body.get("options"), dict):
        body["options"] |= {"num_predict": MOST["max_tokens"]}
    for name in ("prompt", "input_ids", "tokens", "stop_token_ids"):
        body[name] = _known_ids(body.get(name))
    if isinstance(body.get("logit_bias"), dict) and draw(st.booleans()):
        body["logit_bias"] = {str(token): bias for token, bias in enumerate(body["logit_bias"].values())}
    if path.endswith("completions") and body.get("max_completion_tokens") is None:
        body["max_tokens"] = body.get("max_tokens", MOST["max_tokens"])
    return {name: value for name, value in body.items() if value is not None}


def _as_integer(value: Any) -> Any:
    """A JSON schema takes 2.0 for an integer; the server does not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _known_ids(value: Any) -> Any:
    """Token ids that every model knows."""
    if isinstance(value, list):
        return [_known_ids(item) for item in value]
    return int(value) % 100 if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else value


def complaint(
    operation: tuple[str, str], status: int, headers: Mapping[str, str], body: bytes, described: Described
) -> str | None:
    """Return what is wrong with an answer, independent of what was sent."""
    overloads = (503, OVERLOADED) if operation[1].startswith("/v1/messages") else (503,)
    if status >= 500 and status not in overloads:
        return f"status {status}: {body[:500]!r}"
    if status in overloads and not headers.get("retry-after", "").isdecimal():
        return f"status {status} without a time to come back: {dict(headers)}"
    if status >= 400:
        error = json.loads(body)["error"]
        if operation[1].startswith("/v1/messages"):
            is_fine = set(error) == {"type", "message"} and bool(error["message"])
            return None if is_fine else f"status {status} in a shape of its own: {body[:500]!r}"
        if operation[1].startswith("/api/"):
            return None if isinstance(error, str) and error else f"status {status} without a message: {body[:500]!r}"
        if set(error) != {"message", "type", "param", "code"} or not error["message"]:
            return f"status {status} in a shape of its own: {body[:500]!r}"
    found = described.complaint(*operation, status, headers, body)
    return None if found is None else f"{found}: {body[:500]!r}"
