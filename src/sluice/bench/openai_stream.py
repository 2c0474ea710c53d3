"""An answer of OpenAI's streaming API, read after the fact: how many tokens each event carried, and how it ended.

One event may carry several tokens: servers bundle them under load, and what a speculating engine accepts at once comes
at once. Then all of them came at the event's time: the first has the gap, the others 0. To spread the gap over them
would hide a stall. How many an event carried is taken from the best source there is (`CountedBy`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Any

from sluice.bench.answers import Answer, Arrival, CountedBy, Failure
from sluice.bench.http import RawExchange
from sluice.bench.sse import Event, Head, Read, events, parse_response

DONE = b"[DONE]"
CountText = Callable[[str], int]
"""The number of tokens of a text, by the user's own tokenizer."""


@dataclass(frozen=True, slots=True)
class OpenAIExchange:
    """One call, as raw bytes until somebody asks for the answer."""

    raw: RawExchange
    count_text: CountText | None = None

    @property
    def sent(self) -> float:
        return self.raw.sent

    @property
    def accepted(self) -> float | None:
        return self.raw.accepted

    @property
    def ended(self) -> float:
        return self.raw.ended

    def answer(self) -> Answer:
        return read_answer(self.raw, self.count_text)


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event says of the (only) choice."""

    at: float
    text: str
    token_ids: tuple[int, ...]
    num_logprobs: int | None
    running_usage: int | None
    """Tokens of the answer so far, from servers that tell it with each event."""
    finish_reason: str | None
    opens: bool
    """A chat's first event, which names the role and holds no token."""


def read_answer(raw: RawExchange, count_text: CountText | None = None) -> Answer:
    """The answer in the bytes. Tokens that came before a failure stay in it."""
    head, body = parse_response(raw.reads)
    if head is None:
        return Answer(failure=raw.failure or _no_answer(raw.reads))
    if head.status != 200:
        return Answer(failure=Failure(f"HTTP {head.status}", _error_text(b"".join(data for _, data in body))))
    if head.content_type != "text/event-stream":
        return Answer(failure=raw.failure or _not_a_stream(head))
    return _read_events(events(body), raw.failure, count_text)


def _no_answer(reads: Sequence[Read]) -> Failure:
    if reads:
        return Failure("protocol", f"this is no HTTP answer: {reads[0][1][:40]!r}")
    return Failure("connection", "the server closed the connection without an answer")


def _not_a_stream(head: Head) -> Failure:
    shown = head.content_type or "no content type"
    return Failure("not streamed", f"the server does not stream: it answered {shown}, not text/event-stream")


def _error_text(body: bytes) -> str:
    """The message in an error's body, as OpenAI, FastAPI or nobody in particular spells it; shortened."""
    try:
        content = json.loads(body)
    except ValueError:
        return " ".join(body[:200].decode(errors="replace").split()) or "(empty)"
    if isinstance(content, dict):
        error = content.get("error", content)
        message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
        if message is not None:
            return " ".join(str(message).split())[:300]
    return " ".join(str(content).split())[:300]


def _read_events(found: Sequence[Event], broken: Failure | None, count_text: CountText | None) -> Answer:
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
        if isinstance(content.get("usage"), dict):
            usage = content["usage"]
        if content.get("choices"):
            deltas.append(_delta(event.at, content))
    finish = next((delta.finish_reason for delta in deltas if delta.finish_reason is not None), None)
    if failure is None and not is_done and finish is None:
        failure = Failure("broken stream", "the stream broke off before its end")
    text = "".join(delta.text for delta in deltas)
    counts, counted_by = count_tokens(deltas, _number(usage, "completion_tokens"), text, count_text)
    if failure is None and not any(counts):
        failure = Failure("no tokens", "the answer holds no token")
    return Answer(
        arrivals=tuple(Arrival(delta.at, tokens) for delta, tokens in zip(deltas, counts, strict=True) if tokens),
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
    delta = _object(choice, "delta")
    logprobs = _object(choice, "logprobs")
    told = logprobs.get("tokens", logprobs.get("content"))
    pieces = (choice.get("text"), delta.get("reasoning_content"), delta.get("reasoning"), delta.get("content"))
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    return Delta(
        at=at,
        text=text,
        token_ids=tuple(choice.get("token_ids") or ()),
        num_logprobs=len(told) if isinstance(told, list) else None,
        running_usage=_number(_object(content, "usage"), "completion_tokens"),
        finish_reason=choice.get("finish_reason"),
        opens="role" in delta and not text and choice.get("finish_reason") is None,
    )


def count_tokens(
    deltas: Sequence[Delta], total: int | None, text: str, count_text: CountText | None
) -> tuple[list[int], CountedBy]:
    """How many tokens each event carried.

    Args:
        total: tokens of the whole answer as the server counts them; None if it did not get to say.
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
    """Share `total` tokens: one for each event that may have one, what is over by length of text.

    Events without text come last, and of these the ones that only say how it ended: a token may have no text of its
    own (part of a character, the end of the sequence), and an event may have no token.
    """
    places = [(_rank(delta), index) for index, delta in enumerate(deltas) if not delta.opens]
    order = [index for _, index in sorted(places)]
    counts = [0] * len(deltas)
    for index in order[:total]:
        counts[index] = 1
    # Each further token goes to the event with most text for each token it has (Webster's highest averages).
    hungry = [(-_characters(deltas[index], 1), index) for index in order]
    heapify(hungry)
    for _ in range(total - len(order) if order else 0):
        index = hungry[0][1]
        counts[index] += 1
        heapreplace(hungry, (-_characters(deltas[index], counts[index]), index))
    return counts


def _characters(delta: Delta, tokens: int) -> float:
    """Text for each token, if half of one more is counted."""
    return max(1, len(delta.text)) / (tokens + 0.5)


def _rank(delta: Delta) -> int:
    return 0 if delta.text else 2 if delta.finish_reason else 1


def _object(content: dict[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _number(content: dict[str, Any], name: str) -> int | None:
    value = content.get(name)
    return value if type(value) is int and value >= 0 else None
