"""A server with OpenAI's API, as a target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sluice.bench.answers import Earlier
from sluice.bench.errors import BenchError
from sluice.bench.http import exchange
from sluice.bench.openai_stream import CountText, OpenAIExchange
from sluice.bench.options import TargetOptions
from sluice.bench.prompts import as_text
from sluice.bench.sse import parse_response
from sluice.bench.timing import Timer
from sluice.bench.url import Server
from sluice.bench.workload import Turn

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
LIST_TIMEOUT = 30.0
"""Seconds a server has to list its models."""


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """Sends each request on a connection of its own; bodies are made before they are due."""

    server: Server
    model: str
    options: TargetOptions
    timer: Timer
    ignore_eos: bool = False
    as_text: bool = False
    """Prompts go as text, not as token ids."""
    count_text: CountText | None = None

    def prepare(self, turn: Turn, earlier: Sequence[Earlier]) -> bytes:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": turn.max_tokens,
            "temperature": self.options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.options.endpoint == "chat":
            body["messages"] = _messages(turn, earlier)
        else:
            body["prompt"] = _prompt(turn, earlier) if self.as_text or earlier else turn.prompt
        data = json.dumps(body, separators=(",", ":")).encode()
        return self.server.request("POST", PATHS[self.options.endpoint], data)

    async def send(self, prepared: object) -> OpenAIExchange:
        assert isinstance(prepared, bytes)
        raw = await exchange(self.server, prepared, self.timer, timeout=self.options.timeout_s)
        return OpenAIExchange(raw, self.count_text)


def _messages(turn: Turn, earlier: Sequence[Earlier]) -> list[dict[str, str]]:
    said = []
    for before in earlier:
        said.append({"role": "user", "content": as_text(before.turn.prompt)})
        said.append({"role": "assistant", "content": before.answer.text})
    return [*said, {"role": "user", "content": as_text(turn.prompt)}]


def _prompt(turn: Turn, earlier: Sequence[Earlier]) -> str:
    history = "".join(f"{as_text(before.turn.prompt)}{before.answer.text} " for before in earlier)
    return history + as_text(turn.prompt)


async def served_model(server: Server, asked: str | None, timer: Timer) -> str:
    """The name to call the model by.

    Args:
        asked: the user's; checked against the server's list, if it has one.

    Raises:
        BenchError: the server cannot be reached, lists no model, several, or another one.
    """
    raw = await exchange(server, server.request("GET", "/v1/models"), timer, timeout=LIST_TIMEOUT)
    if raw.failure is not None:
        raise BenchError(f"cannot reach {server.url}: {raw.failure.message}")
    head, body = parse_response(raw.reads)
    if head is None:
        raise BenchError(f"{server.url} does not speak HTTP")
    names = _names(b"".join(data for _, data in body)) if head.status == 200 else []
    if asked is not None:
        if names and asked not in names:
            raise BenchError(f"{server.url} has no model {asked!r}; it has {', '.join(map(repr, names))}")
        return asked
    if len(names) == 1:
        return names[0]
    if names:
        raise BenchError(f"{server.url} has several models: {', '.join(map(repr, names))}; choose by --model-name")
    raise BenchError(f"{server.url}/v1/models lists no model (HTTP {head.status}); name one by --model-name")


def _names(body: bytes) -> list[str]:
    try:
        listed = json.loads(body)["data"]
        return [str(item["id"]) for item in listed]
    except (ValueError, KeyError, TypeError):
        return []


async def about_server(server: Server, timer: Timer) -> dict[str, Any]:
    """What it says about itself, for the record: `/version` and `/server_info`, where it has them."""
    found: dict[str, Any] = {}
    for name in ("version", "server_info"):
        raw = await exchange(server, server.request("GET", f"/{name}"), timer, timeout=LIST_TIMEOUT)
        head, body = parse_response(raw.reads)
        if raw.failure is not None or head is None or head.status != 200:
            continue
        try:
            content = json.loads(b"".join(data for _, data in body))
        except ValueError:
            continue
        if isinstance(content, dict):
            found[name] = content
    return found
