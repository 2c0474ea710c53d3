"""A server with OpenAI's API as a target: the requests it gets, and its streamed answers, read after the run.

One event may carry several tokens: servers bundle them under load, and a speculating engine accepts several at once.
Then all of them came at the event's time: the first has the gap, the others 0. Spreading the gap over them would hide
a stall. How many tokens an event carried is taken from the best source there is (`CountedBy`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Any

from sluice.bench import BenchError
from sluice.bench.driver import Earlier, Exchange, MeasuredAnswer, Timer
from sluice.bench.http import Head, RawExchange, Read, Server, ServerSentEvent, events, exchange, parse_response
from sluice.bench.options import TargetOptions
from sluice.bench.records import CountedBy, Failure, TokenArrival
from sluice.bench.workload import Turn, as_text

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
LIST_TIMEOUT = 30.0
"""Seconds a server has to list its models."""
DONE = b"[DONE]"
CountText = Callable[[str], int]
"""Returns the number of tokens of a text, by the user's own tokenizer."""


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """Sends each request on a connection of its own. Bodies are made before they are due."""

    server: Server
    model: str
    options: TargetOptions
    timer: Timer
    ignore_eos: bool = False
    as_text: bool = False
    """Send prompts as text, not as token ids."""
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

    async def send(self, prepared: object) -> Exchange:
        assert isinstance(prepared, bytes)
        raw = await exchange(self.server, prepared, self.timer, timeout=self.options.timeout_s)
        return Exchange(raw.sent, raw.accepted, raw.ended, lambda: read_answer(raw, self.count_text))


def _messages(turn: Turn, earlier: Sequence[Earlier]) -> list[dict[str, str]]:
    messages = []
    for before in earlier:
        messages.append({"role": "user", "content": as_text(before.turn.prompt)})
        messages.append({"role": "assistant", "content": before.answer.text})
    return [*messages, {"role": "user", "content": as_text(turn.prompt)}]


def _prompt(turn: Turn, earlier: Sequence[Earlier]) -> str:
    history = "".join(f"{as_text(before.turn.prompt)}{before.answer.text} " for before in earlier)
    return history + as_text(turn.prompt)


async def served_model(server: Server, name: str | None, timer: Timer) -> str:
    """Return the name to call the model by.

    Args:
        name: the user's choice. It is checked against the server's list, if it has one.

    Raises:
        BenchError: the server cannot be reached, or lists no model, several, or another one.
    """
    status, content = await _get_json(server, "/v1/models", timer)
    names = _model_names(content) if status == 200 else []
    if name is not None:
        if names and name not in names:
            raise BenchError(f"{server.url} has no model {name!r}; it has {', '.join(map(repr, names))}")
        return name
    if len(names) == 1:
        return names[0]
    if names:
        raise BenchError(f"{server.url} has several models: {', '.join(map(repr, names))}; choose by --model-name")
    raise BenchError(f"{server.url}/v1/models lists no model (HTTP {status}); name one by --model-name")


def _model_names(content: Any) -> list[str]:
    try:
        return [str(item["id"]) for item in content["data"]]
    except (KeyError, TypeError):
        return []


async def about_server(server: Server, timer: Timer) -> dict[str, Any]:
    """Return what the server reports about itself: `/version` and `/server_info`, where it has them."""
    found: dict[str, Any] = {}
    for name in ("version", "server_info"):
        with suppress(BenchError):
            status, content = await _get_json(server, f"/{name}", timer)
            if status == 200 and isinstance(content, dict):
                found[name] = content
    return found


async def _get_json(server: Server, path: str, timer: Timer) -> tuple[int, Any]:
    """Return status and content of a page; the content is None if it is no JSON.

    Raises:
        BenchError: the server cannot be reached, or does not speak HTTP.
    """
    raw = await exchange(server, server.request("GET", path), timer, timeout=LIST_TIMEOUT)
    if raw.failure is not None:
        raise BenchError(f"cannot reach {server.url}: {raw.failure.message}")
    head, body = parse_response(raw.reads)
    if head is None:
        raise BenchError(f"{server.url} does not speak HTTP")
    try:
        return head.status, json.loads(b"".join(data for _, data in body))
    except ValueError:
        return head.status, None


def read_answer(raw: RawExchange, count_text: CountText | None = None) -> MeasuredAnswer:
    """Read the answer from its bytes. Tokens that came before a failure stay in it."""
    head, body = parse_response(raw.reads)
    if head is None:
        return MeasuredAnswer(failure=raw.failure or _no_answer(raw.reads))
    if head.status != 200:
        return MeasuredAnswer(failure=Failure(f"HTTP {head.status}", _error_text(b"".join(data for _, data in body))))
    if head.content_type != "text/event-stream":
        return MeasuredAnswer(failure=raw.failure or _not_a_stream(head))
    return _read_events(events(body), raw.failure, count_text)


def _no_answer(reads: Sequence[Read]) -> Failure:
    if reads:
        return Failure("protocol", f"this is no HTTP answer: {reads[0][1][:40]!r}")
    return Failure("connection", "the server closed the connection without an answer")


def _not_a_stream(head: Head) -> Failure:
    shown = head.content_type or "no content type"
    return Failure("not streamed", f"the server does not stream: it answered {shown}, not text/event-stream")


def _error_text(body: bytes) -> str:
    """Return the message in an error's body, as OpenAI, FastAPI or another server spells it, shortened."""
    try:
        content = json.loads(body)
    except ValueError:
        return " ".join(body[:200].decode(errors="replace").split()) or "(empty)"
    if isinstance(content, dict):
        error = content.get("error", content)
        message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
        content = content if message is None else message
    return " ".join(str(content).split())[:300]


@dataclass(frozen=True, slots=True)
class Delta:
    """The content of one event: its part of the (only) choice."""

    at: float
    text: str
    token_ids: tuple[int, ...]
    num_logprobs: int | None
    running_usage: int | None
    """Tokens of the answer so far, from servers that report it with each event."""
    finish_reason: str | None
    is_opening: bool
    """True for a chat's first event, which names the role and holds no token."""


def _read_events(
    found: Sequence[ServerSentEvent], broken: Failure | None, count_text: CountText | None
) -> MeasuredAnswer:
    deltas: list[Delta] = []
    usage: dict[str, Any] = {}
    failure = broken
    is_done = False
    for event in found:
        if event.data == DONE:
            is_done = True
            break
        try:
            content = json.loads(event.data)
        except ValueError:
            failure = failure or Failure("protocol", f"an event is not JSON: {event.data[:60]!r}")
            continue
        if not isinstance(content, dict) or content.get("error") is not None:
            failure = failure or Failure("error event", _error_text(event.data))
            continue
        usage = _object(content, "usage") or usage
        if content.get("choices"):
            deltas.append(_delta(event.at, content))
    finish = next((delta.finish_reason for delta in deltas if delta.finish_reason is not None), None)
    if failure is None and not is_done and finish is None:
        failure = Failure("broken stream", "the stream broke off before its end")
    text = "".join(delta.text for delta in deltas)
    counts, counted_by = count_tokens(deltas, _number(usage, "completion_tokens"), text, count_text)
    if failure is None and not any(counts):
        failure = Failure("no tokens", "the answer holds no token")
    return MeasuredAnswer(
        arrivals=tuple(TokenArrival(delta.at, tokens) for delta, tokens in zip(deltas, counts, strict=True) if tokens),
        text=text,
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        counted_by=counted_by,
        prompt_tokens=_number(usage, "prompt_tokens"),
        cached_tokens=_number(_object(usage, "prompt_tokens_details"), "cached_tokens"),
        finish_reason=finish,
        failure=failure,
    )


def _delta(at: float, content: dict[str, Any]) -> Delta:
    choice = content["choices"][0]
    delta, logprobs = _object(choice, "delta"), _object(choice, "logprobs")
    scored = logprobs.get("tokens", logprobs.get("content"))
    pieces = (choice.get("text"), delta.get("reasoning_content"), delta.get("reasoning"), delta.get("content"))
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    return Delta(
        at=at,
        text=text,
        token_ids=tuple(choice.get("token_ids") or ()),
        num_logprobs=len(scored) if isinstance(scored, list) else None,
        running_usage=_number(_object(content, "usage"), "completion_tokens"),
        finish_reason=choice.get("finish_reason"),
        is_opening="role" in delta and not text and choice.get("finish_reason") is None,
    )


def count_tokens(
    deltas: Sequence[Delta], total: int | None, text: str, count_text: CountText | None
) -> tuple[list[int], CountedBy]:
    """Count the tokens of each event.

    Args:
        total: tokens of the whole answer as the server counts them; None if it did not report them.
        text: of all events.
    """
    if any(delta.token_ids for delta in deltas):
        return [len(delta.token_ids) for delta in deltas], CountedBy.IDS
    if any(delta.num_logprobs for delta in deltas):
        return [delta.num_logprobs or 0 for delta in deltas], CountedBy.LOGPROBS
    if sum(delta.running_usage is not None for delta in deltas) > 1:
        return _differences(deltas), CountedBy.RUNNING_USAGE
    source = CountedBy.USAGE
    if total is None and count_text is not None and text:
        total, source = count_text(text), CountedBy.TOKENIZER
    if total is None:
        return [int(bool(delta.text)) for delta in deltas], CountedBy.EVENTS
    return _shared(deltas, total), source


def _differences(deltas: Sequence[Delta]) -> list[int]:
    counts, before = [], 0
    for delta in deltas:
        now = before if delta.running_usage is None else max(before, delta.running_usage)
        counts.append(now - before)
        before = now
    return counts


def _shared(deltas: Sequence[Delta], total: int) -> list[int]:
    """Share `total` tokens: one for each event that may have one, the rest by length of text.

    Events without text come last, and of these the ones that only report the end: a token may have no text of its
    own (part of a character, the end of the sequence), and an event may have no token.
    """
    places = [(_rank(delta), index) for index, delta in enumerate(deltas) if not delta.is_opening]
    order = [index for _, index in sorted(places)]
    counts = [0] * len(deltas)
    for index in order[:total]:
        counts[index] = 1
    # Each further token goes to the event with most text for each token it has (Webster's highest averages).
    heap = [(-_characters(deltas[index], 1), index) for index in order]
    heapify(heap)
    for _ in range(total - len(order) if order else 0):
        index = heap[0][1]
        counts[index] += 1
        heapreplace(heap, (-_characters(deltas[index], counts[index]), index))
    return counts


def _characters(delta: Delta, tokens: int) -> float:
    """Return the length of text for each token, with half a token more counted."""
    return max(1, len(delta.text)) / (tokens + 0.5)


def _rank(delta: Delta) -> int:
    return 0 if delta.text else 2 if delta.finish_reason else 1


def _object(content: dict[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _number(content: dict[str, Any], name: str) -> int | None:
    value = content.get(name)
    return value if type(value) is int and value >= 0 else None
