"""A short storm over a real server, and what the storm notices: `tests/stress/storm.py`, smaller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from stress.storms.answers import Answer, answer_of, differences
from stress.storms.blows import BLOWS
from stress.storms.checks import Rest, grown, held
from stress.storms.client import Manner, Reply
from stress.storms.load import Load
from stress.storms.report import summary
from stress.storms.requests import StormRequest
from stress.storms.rounds import Plan, storm
from stress.storms.server import StormServer

pytestmark = pytest.mark.slow
SHORT = ("engine: KILL", "engine: STOP, then CONT", "page file: bytes flipped", "front: KILL", "clients: leave")
REQUEST = StormRequest("0:0", "/v1/completions", {"prompt": "The water", "stream": True}, ("completions", "stream"))


def test_a_storm_loses_nothing() -> None:
    """Engine and server are killed under requests of every kind. A token may be lost between any two of them."""
    blows = tuple(blow for blow in BLOWS if blow.name in SHORT)
    assert len(blows) == len(SHORT)
    plan = Plan(minutes=None, seed=19, requests=12, clients=2, blows=blows, measures_memory=False)
    record = asyncio.run(storm(plan))
    assert not record.tally.problems, summary(record)
    assert set(record.struck) == set(SHORT)
    assert record.fronts == 2
    assert record.engines >= 3
    assert record.tally.outcomes["all"]["same"] >= 12
    assert record.tally.outcomes["all"]["cut"] + record.tally.outcomes["all"]["left"] > 0


def test_memory_is_compared_within_a_life() -> None:
    """A server that was started again holds less than one that has served for long, and would hide a leak."""
    first, second = (Rest(life, 20, 18, mib, 400.0) for life, mib in ((1, 60.0), (1, 90.0)))
    third, fourth = (Rest(2, 20, 18, mib, 404.0) for mib in (70.0, 72.0))
    assert not grown([first, second, third, fourth])
    assert [text.split()[1] for text in grown([first, second, third, fourth._replace(front_mib=73.0)])] == ["server"]
    assert [text.split()[1] for text in grown([first, second, third, fourth._replace(engine_mib=440.0)])] == ["engine"]


def test_what_is_held() -> None:
    """A request that is never ended keeps its pages, and the server seems to work as before."""
    counts = {"running": 0, "waiting": 0, "partial": 0, "loading": 0}
    assert not held(counts | {"free_pages": 3, "cached_pages": 5, "total_pages": 8})
    assert len(held(counts | {"free_pages": 3, "cached_pages": 4, "total_pages": 8, "running": 1})) == 2


def events(texts: Sequence[str], *, end: bytes = b"data: [DONE]\n\n") -> bytes:
    """Return the body of a stream of one choice."""
    choices = [{"index": 0, "text": text, "logprobs": None, "finish_reason": None} for text in texts]
    return b"".join(b"data: " + json.dumps({"id": "x", "choices": [each]}).encode() + b"\n\n" for each in choices) + end


def answer(texts: Sequence[str]) -> Answer:
    return answer_of(REQUEST, Reply(status=200, body=events(texts), is_complete=True))


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        ("abcd", None),
        ("abc", "lost"),
        ("acd", "lost"),
        ("abbcd", "repeated"),
        ("abcdd", "repeated"),
        ("abxd", "changed"),
    ],
)
def test_differences(texts: str, kind: str | None) -> None:
    """A comparison that finds nothing would pass every storm."""
    found = differences(answer("abcd"), answer(texts))
    assert [each.kind for each in found] == ([] if kind is None else [kind])


def test_unfinished_answers_are_beginnings() -> None:
    """Of a client that leaves, the tokens that it got must still be right."""
    left = Reply(status=200, body=events("ab", end=b""), has_left=True)
    assert not differences(answer("abcd"), answer_of(REQUEST, left))
    wrong = Reply(status=200, body=events("ax", end=b""), has_left=True)
    assert [each.kind for each in differences(answer("abcd"), answer_of(REQUEST, wrong))] == ["changed"]


def native(*events: tuple[str, list[int]]) -> Answer:
    """Return the answer of a stream of /generate, given the text and the token ids of each event."""
    request = StormRequest("0:1", "/generate", {"text": "The water", "stream": True}, ("generate", "stream"))
    body = b""
    for number, (text, ids) in enumerate(events, 1):
        meta = {"id": "x", "prompt_tokens": 2, "e2e_latency": 1.0, "completion_tokens": len(ids)}
        meta["finish_reason"] = {"type": "length"} if number == len(events) else None
        body += b"data: " + json.dumps({"text": text, "output_ids": ids, "meta_info": meta}).encode() + b"\n\n"
    return answer_of(request, Reply(status=200, body=body + b"data: [DONE]\n\n", is_complete=True))


def test_streams_of_generate_only_grow() -> None:
    """Every event of /generate repeats what came before it, and could change it. Tokens may share an event."""
    twin = native(("a", [1]), ("ab", [1, 2]), ("abc", [1, 2, 3]))
    assert not differences(twin, native(("ab", [1, 2]), ("abc", [1, 2, 3])))
    assert [each.kind for each in differences(twin, native(("ab", [1, 2])))] == ["changed"]
    assert [each.kind for each in differences(twin, native(("a", [1]), ("aab", [1, 1, 2])))] == ["repeated"]
    assert [each.kind for each in differences(twin, native(("ac", [1, 3])))] == ["lost"]
    with pytest.raises(ValueError, match="changes what was sent"):
        native(("a", [1]), ("ab", [3, 2]))


@pytest.mark.parametrize(
    ("head", "body", "outcome"),
    [
        ("200 OK", events("abcd"), "same"),
        ("200 OK", b": waiting\n\n" + events("abcd"), "same"),
        ("200 OK", events("abd"), "lost"),
        ("200 OK\r\nContent-Length: 1000", events("ab", end=b""), "lost"),
        ("200 OK", events("ab", end=b'data: {"error": {"message": "the engine died", "code": "x"}}\n\n'), "lost"),
        ("500 X", b'{"error": {"message": "the engine died", "code": "x"}}', "lost"),
        ("503 X", b'{"error": {"message": "full", "code": "overloaded"}}', "lost"),
        ("503 X", b'{"error": {"message": "no tier", "code": "tier_unavailable"}}', "lost"),
        ("503 X\r\nRetry-After: 1", b'{"error": {"message": "full", "code": "overloaded"}}', "refused"),
    ],
)
def test_outcomes(tmp_path: Path, head: str, body: bytes, outcome: str) -> None:
    """A failure that counts as a refusal, or as a client that left, would hide what was lost."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {head}\r\nConnection: close\r\n\r\n".encode() + body)
        writer.close()

    async def attempt() -> str:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
            server = StormServer(tmp_path)
            server.port = listener.sockets[0].getsockname()[1]
            load = Load(server, [REQUEST], {REQUEST.name: answer("abcd")}, seed=0)
            return (await load.attempt(REQUEST, Manner())).kind

    assert asyncio.run(attempt()) == outcome
