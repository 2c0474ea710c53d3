"""Reads answers into a form that two runs of a request have in common, and finds what differs between two of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from stress.storms.client import Reply
from stress.storms.requests import StormRequest

VOLATILE = {
    *("id", "created", "e2e_latency", "cached_tokens", "cached_tokens_details", "prompt_tokens_details"),
    "max_model_len",
}
"""Keys whose values may differ: names, times, where a prefix was found, and the longest request, which is shorter while
there is no tier."""
TOLERANCE = 1e-6
"""Absolute difference of two log-probabilities that count as equal: sums in another order differ by about 1e-12."""


@dataclass
class Answer:
    """An answer without what differs between two runs."""

    streams: dict[int, list[Any]] = field(default_factory=dict)
    """The events of each choice of a stream."""
    rest: list[Any] = field(default_factory=list)
    """Everything else: a whole answer, or the last event of a stream."""
    error: str | None = None
    """The message of an error, in the answer or in the last event."""
    code: str | None = None
    """The code of this error."""
    is_finished: bool = False
    """All of it has come."""


@dataclass(frozen=True)
class Difference:
    """The first difference between an answer, or one of its streams, and its calm twin."""

    kind: str
    """lost, repeated or changed."""
    where: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.where}: {self.expected} became {self.found}"


def answer_of(request: StormRequest, reply: Reply) -> Answer:
    """Read a reply.

    Raises:
        ValueError: it is not what this route answers.
    """
    if not request.is_stream or reply.status != 200:
        if not reply.is_complete:
            return Answer()
        content = json.loads(reply.body)
        answer = Answer(rest=[_lasting(content)], is_finished=True)
        if isinstance(content, dict) and "error" in content:
            answer.error, answer.code = content["error"]["message"], content["error"]["code"]
        return answer
    answer = Answer()
    for event in _events(reply.body):
        if event is None:
            answer.is_finished = reply.is_complete
        elif "error" in event:
            answer.error, answer.code = event["error"]["message"], event["error"]["code"]
            answer.is_finished = reply.is_complete
        elif "choices" not in event:
            answer.streams.setdefault(event.get("index", 0), []).append(event)
        elif event["choices"]:
            (choice,) = event["choices"]
            shown = _lasting(choice) | {"usage": _lasting(event.get("usage"))}
            answer.streams.setdefault(choice["index"], []).append(shown)
        else:
            answer.rest.append(_lasting(event))
    if request.path == "/generate":
        answer.streams = {index: list(_growth(events)) for index, events in answer.streams.items()}
    return answer


def _events(body: bytes) -> Iterator[Any]:
    """Yield the content of each whole event; None for `[DONE]`. Comments say that a request still waits."""
    for part in body.split(b"\n\n")[:-1]:
        if part.startswith(b":"):
            continue
        data = part.removeprefix(b"data: ")
        yield None if data == b"[DONE]" else json.loads(data)


def _lasting(value: Any) -> Any:
    """Return a value without its volatile parts."""
    match value:
        case dict():
            return {key: _lasting(item) for key, item in value.items() if key not in VOLATILE}
        case list():
            return [_lasting(item) for item in value]
    return value


def _growth(events: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each token of a choice of `/generate`, then what its last event says of all of them.

    Every event repeats the whole text; tokens that were ready at the same time may share one.

    Raises:
        ValueError: an event changes what an earlier one has shown.
    """
    text = ""
    ids: list[int] = []
    prompt_logprobs: list[Any] = []
    for number, event in enumerate(events):
        meta = event["meta_info"]
        if not event["text"].startswith(text) or event["output_ids"][: len(ids)] != ids:
            raise ValueError(f"event {number} of a stream changes what was sent before it")
        logprobs = meta.get("output_token_logprobs", [])
        for at, token in enumerate(event["output_ids"][len(ids) :], len(ids)):
            yield {"token": token, "logprob": logprobs[at] if logprobs else None}
        text, ids = event["text"], event["output_ids"]
        prompt_logprobs = prompt_logprobs or meta.get("input_token_logprobs", [])
        if meta["finish_reason"] is not None:
            counts = [meta["prompt_tokens"], meta["completion_tokens"]]
            yield {"text": text, "finish_reason": meta["finish_reason"], "counts": counts}
            yield {"top": meta.get("output_top_logprobs")}
            yield {"prompt": prompt_logprobs}


def differences(twin: Answer, answer: Answer) -> list[Difference]:
    """Return what differs in an answer. Of one that is cut off or ends with an error, what came of it is compared."""
    found, is_whole = [], answer.is_finished and answer.error is None
    for index in sorted(twin.streams.keys() | answer.streams.keys()):
        expected, events = twin.streams.get(index, []), answer.streams.get(index, [])
        difference = _first_difference(f"choice {index}", expected, events, is_whole=is_whole)
        if difference is not None:
            found.append(difference)
    if is_whole and not is_same(twin.rest, answer.rest):
        kind = "lost" if len(json.dumps(answer.rest)) < len(json.dumps(twin.rest)) else "changed"
        found.append(Difference(kind, *_path(twin.rest, answer.rest)))
    return found


def _first_difference(
    where: str, expected: Sequence[Any], events: Sequence[Any], *, is_whole: bool
) -> Difference | None:
    for at, (one, other) in enumerate(zip_longest(expected, events)):
        if at >= len(events) and not is_whole:
            return None
        if is_same(one, other):
            continue
        kind = "changed"
        if at >= len(events) or (at + 1 < len(expected) and is_same(expected[at + 1], other)):
            kind = "lost"
        elif at >= len(expected) or (at and is_same(expected[at - 1], other)):
            kind = "repeated"
        return Difference(kind, f"{where}, event {at}", _short(one), _short(other))
    return None


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, log-probabilities up to `TOLERANCE`."""
    match one, other:
        case (float(), float() | int()) | (int(), float()):
            return math.isclose(one, other, rel_tol=0, abs_tol=TOLERANCE)
        case dict(), dict():
            return one.keys() == other.keys() and all(is_same(item, other[key]) for key, item in one.items())
        case list(), list():
            return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def _path(one: Any, other: Any, path: str = "") -> tuple[str, str, str]:
    """Return where two values first differ, and what they are there."""
    match one, other:
        case dict(), dict() if one.keys() == other.keys():
            key = next(key for key in one if not is_same(one[key], other[key]))
            return _path(one[key], other[key], f"{path}.{key}")
        case list(), list() if len(one) == len(other):
            at = next(at for at, item in enumerate(one) if not is_same(item, other[at]))
            return _path(one[at], other[at], f"{path}[{at}]")
    return path or "answer", _short(one), _short(other)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-80:]}"
