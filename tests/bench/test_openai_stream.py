"""From bytes to tokens and times, however the network cuts the bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.bench.http import RawExchange, ServerSentEvent, events, parse_response
from sluice.bench.openai import read_answer
from sluice.bench.records import CountedBy, Failure, TokenArrival

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"


def chunked(body: bytes, sizes: Sequence[int]) -> bytes:
    """HTTP's chunked coding in chunks of these sizes and the rest."""
    parts = []
    for size in sizes:
        part, body = body[:size], body[size:]
        if part:
            parts.append(b"%x;name=value\r\n%s\r\n" % (len(part), part))
    if body:
        parts.append(b"%X\r\n%s\r\n" % (len(body), body))
    return b"".join([*parts, b"0\r\n\r\n"])


def cut(data: bytes, places: Sequence[int]) -> list[tuple[float, bytes]]:
    """Reads that end at these places, one a second."""
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    pieces = [data[left:right] for left, right in pairwise(edges)]
    return [(float(second), piece) for second, piece in enumerate(piece for piece in pieces if piece)]


@given(
    st.lists(st.text(min_size=1, max_size=6).filter(lambda text: "\n" not in text and "\r" not in text), min_size=1),
    st.lists(st.integers(1, 9), max_size=9),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.booleans(),
    st.sampled_from(["\n", "\r\n"]),
)
def test_events_do_not_depend_on_where_the_bytes_are_cut(
    texts: list[str], sizes: list[int], places: list[int], is_chunked: bool, line_end: str
) -> None:
    body = "".join(f": a comment{line_end}data: {text}{line_end}{line_end}" for text in texts).encode()
    coding = b"Transfer-Encoding: Chunked\r\n\r\n" if is_chunked else b"\r\n"
    wire = HEAD + coding + (chunked(body, sizes) if is_chunked else body)
    reads = cut(wire, places)
    head, parsed = parse_response(reads)
    assert head is not None
    assert (head.status, head.content_type) == (200, "text/event-stream")
    found = events(parsed)
    assert [event.data.decode() for event in found] == texts
    # An event is complete when its last byte is: its time is that of a read, and no event is earlier than one before.
    times = [event.at for event in found]
    assert times == sorted(times)
    assert set(times) <= {at for at, _ in reads}
    if not is_chunked:
        ends = [wire.index(b"\r\n\r\n") + 4 + len(body)]
        assert times[-1] == next(at for at, upto in _ends(reads) if upto >= ends[0])


def _ends(reads: Sequence[tuple[float, bytes]]) -> list[tuple[float, int]]:
    found, length = [], 0
    for at, data in reads:
        length += len(data)
        found.append((at, length))
    return found


def test_an_event_is_complete_with_its_empty_line() -> None:
    body = [
        (1.0, b"data: a\n"),
        (2.0, b"\ndata: b\n\nda"),
        (3.0, b"ta: c\n"),
        (4.0, b"data: d\n\n"),
        (5.0, b"data: e\n"),
    ]
    assert events(body) == [ServerSentEvent(2.0, b"a"), ServerSentEvent(2.0, b"b"), ServerSentEvent(4.0, b"c\nd")]


@pytest.mark.parametrize("data", [b"", b"nothing", b"nothing\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\n"])
def test_what_is_no_http_has_no_head(data: bytes) -> None:
    assert parse_response([(0.0, data)])[0] is None


def stream(*contents: Any, done: bool = True, failure: Failure | None = None) -> RawExchange:
    """An answer whose events came one a second."""
    events_data = [content if isinstance(content, str) else json.dumps(content) for content in contents]
    events_data += ["[DONE]"] if done else []
    reads = [(0.0, HEAD + b"\r\n")]
    reads += [(float(second), f"data: {data}\n\n".encode()) for second, data in enumerate(events_data, start=1)]
    return RawExchange(0.0, reads, float(len(events_data)), failure)


def text(piece: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {name: more.pop(name) for name in ("token_ids", "logprobs") if name in more}
    return {"choices": [{"index": 0, "text": piece, "finish_reason": finish, **choice}], **more}


def chat(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def usage(tokens: int, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens, **more}}


def test_one_event_for_each_token() -> None:
    answer = read_answer(stream(text("a"), text("b"), text("c", "length"), usage(3)))
    assert answer.arrivals == (TokenArrival(1, 1), TokenArrival(2, 1), TokenArrival(3, 1))
    assert (answer.text, answer.prompt_tokens, answer.finish_reason) == ("abc", 9, "length")
    assert answer.counted_by is CountedBy.USAGE
    assert answer.failure is None
    assert answer.cached_tokens is None


def test_usage_tells_what_was_cached() -> None:
    answer = read_answer(stream(text("a", "stop"), usage(1, prompt_tokens_details={"cached_tokens": 5})))
    assert answer.cached_tokens == 5
    unknown = read_answer(stream(text("a", "stop"), usage(1, prompt_tokens_details=None)))
    assert unknown.cached_tokens is None


@pytest.mark.parametrize(
    ("contents", "counts", "source"),
    [
        ([text("ab", token_ids=[5, 6]), text("c", "stop", token_ids=[7])], [2, 1], CountedBy.IDS),
        ([text("ab", logprobs={"tokens": ["a", "b"]}), text("c", "stop", logprobs={"tokens": ["c"]})], [2, 1],
         CountedBy.LOGPROBS),
        ([{"choices": [{"delta": {"content": "ab"}, "logprobs": {"content": [{}, {}]}, "finish_reason": "stop"}]}], [2],
         CountedBy.LOGPROBS),
        ([text("a", usage={"completion_tokens": 1}), text("bcd", "stop", usage={"completion_tokens": 4})], [1, 3],
         CountedBy.RUNNING_USAGE),
        ([text("a"), text("bcdefgh", "stop"), usage(8)], [1, 7], CountedBy.USAGE),
        ([text("ab"), text("cd", "stop"), usage(4)], [2, 2], CountedBy.USAGE),
        ([text("a"), text("b", "stop")], [1, 1], CountedBy.EVENTS),
    ],
)  # fmt: skip
def test_tokens_of_bundling_servers_are_counted(contents: list[Any], counts: list[int], source: CountedBy) -> None:
    answer = read_answer(stream(*contents))
    assert [arrival.tokens for arrival in answer.arrivals] == counts
    assert [arrival.at for arrival in answer.arrivals] == [float(second) for second in range(1, len(counts) + 1)]
    assert answer.counted_by is source


def test_events_without_text_are_tokens_only_if_the_server_counts_them() -> None:
    """A part of a character is a token without text; llama.cpp's last event is no token."""
    halves = [text("a"), text(""), text("ü"), text("", "stop")]
    for total, times in ((4, [1, 2, 3, 4]), (3, [1, 2, 3]), (2, [1, 3])):
        answer = read_answer(stream(*halves, usage(total)))
        assert [arrival.at for arrival in answer.arrivals] == times, total
    assert [arrival.at for arrival in read_answer(stream(*halves)).arrivals] == [1, 3]


def test_a_chats_opening_is_no_token() -> None:
    """It comes before the model has computed anything: as a first token it makes TTFT a lie."""
    answer = read_answer(
        stream(chat(role="assistant", content=""), chat(content="a"), chat("stop", content="b"), usage(2))
    )
    assert answer.arrivals == (TokenArrival(2, 1), TokenArrival(3, 1))
    assert answer.text == "ab"


def test_thoughts_are_tokens() -> None:
    answer = read_answer(stream(chat(reasoning_content="hm"), chat("stop", content="a"), usage(2)))
    assert [arrival.at for arrival in answer.arrivals] == [1, 2]


def test_a_tokenizer_counts_what_the_server_does_not() -> None:
    answer = read_answer(stream(text("ab"), text("cdef", "stop")), len)
    assert [arrival.tokens for arrival in answer.arrivals] == [2, 4]
    assert answer.counted_by is CountedBy.TOKENIZER
    counted = read_answer(stream(text("ab"), text("cdef", "stop"), usage(2)), len)
    assert counted.counted_by is CountedBy.USAGE


@given(st.lists(st.text("ab", max_size=9), min_size=1, max_size=8), st.integers(1, 40))
def test_the_servers_total_is_kept_for_any_events(pieces: list[str], total: int) -> None:
    contents = [text(piece, "stop" if index == len(pieces) - 1 else None) for index, piece in enumerate(pieces)]
    answer = read_answer(stream(*contents, usage(total)))
    assert answer.num_tokens == total


@pytest.mark.parametrize(
    ("raw", "kind", "said"),
    [
        (stream(text("a"), done=False), "broken stream", "broke off"),
        (stream({"error": {"message": "no memory"}}, done=False), "error event", "no memory"),
        (stream({"error": "no memory"}, done=False), "error event", "no memory"),
        (stream(text("a"), "{nothing", text("b", "stop")), "protocol", "not JSON"),
        (stream(text("", "stop"), usage(0)), "no tokens", "no token"),
        (stream(text("a"), done=False, failure=Failure("timeout", "late")), "timeout", "late"),
        (RawExchange(0.0, [], 1.0), "connection", "without an answer"),
        (RawExchange(0.0, [(0.5, b"220 mail.example ESMTP\r\n")], 1.0), "protocol", "220 mail"),
        (RawExchange(0.0, [], 1.0, Failure("connection", "refused")), "connection", "refused"),
        (
            RawExchange(0.0, [(0.5, b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{}")], 1.0),
            "not streamed",
            "application/json",
        ),
        (
            RawExchange(0.0, [(0.5, b'HTTP/1.1 404 No\r\n\r\n{"error": {"message": "no such model"}}')], 1.0),
            "HTTP 404",
            "no such model",
        ),
        (RawExchange(0.0, [(0.5, b'HTTP/1.1 422 No\r\n\r\n{"detail": [{"loc": "body"}]}')], 1.0), "HTTP 422", "loc"),
        (
            RawExchange(0.0, [(0.5, b"HTTP/1.1 502 Bad\r\n\r\n<h1>Bad\n gateway</h1>")], 1.0),
            "HTTP 502",
            "<h1>Bad gateway",
        ),
    ],
)
def test_what_goes_wrong_is_named(raw: RawExchange, kind: str, said: str) -> None:
    failure = read_answer(raw).failure
    assert failure is not None
    assert failure.kind == kind
    assert said in failure.message


def test_tokens_before_a_break_are_kept() -> None:
    answer = read_answer(stream(text("a"), text("b"), done=False))
    assert answer.arrivals == (TokenArrival(1, 1), TokenArrival(2, 1))


def test_a_stream_may_end_without_its_marker() -> None:
    """Some servers close after the finish reason."""
    assert read_answer(stream(text("a", "stop"), done=False)).failure is None
