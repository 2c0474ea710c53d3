"""Files of recorded traffic as arrivals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from recorded import play, recorded_engine, trace_file
from sluice.config import ConfigError
from sluice.engine.messages import Abort, Submit
from sluice.sim.traces.reading import EMPTY, TOO_LONG, ReadOptions, ReadTrace, read_trace
from sluice.sim.traces.synthetic import synthetic_arrivals
from sluice.sim.workload import Longest
from sluice.testing import resolved
from sluice.tracing.format import TraceError
from worlds import Arrival, World, limits_of

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def read(folder: Path, text: str, **options: Any) -> ReadTrace:
    path = folder / "trace"
    path.write_text(text, newline="")
    return read_trace(path, ReadOptions(**options))


def lines(*rows: Mapping[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def mooncake(time: int, length: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"timestamp": time, "input_length": length, "output_length": 7, "hash_ids": ids} | more


def lengths(trace: ReadTrace) -> list[tuple[float, int, int]]:
    return [(each.time, each.prompt.length, each.output_tokens) for each in trace.arrivals]


def test_mooncake_blocks_are_shared_prefixes(tmp_path: Path) -> None:
    """Without them a simulation has no prefix cache to speak of."""
    trace = read(tmp_path, lines(mooncake(1000, 1100, [0, 5, 6]), mooncake(4000, 1030, [0, 5, 9])))
    assert trace.format == "mooncake"
    assert lengths(trace) == [(0.0, 1100, 7), (3.0, 1030, 7)]
    first, second = (each.prompt.tokens() for each in trace.arrivals)
    assert first[:1024] == second[:1024]
    assert first[1024] != second[1024]


def test_blocks_that_do_not_make_the_prompt_are_refused(tmp_path: Path) -> None:
    """Blocks of another size would be read as prefixes of another length."""
    with pytest.raises(TraceError, match=r"line 1: hash_ids must be the ids of 4 blocks of 512 tokens.*got 2 of them"):
        read(tmp_path, lines(mooncake(0, 1537, [0, 5])))
    with pytest.raises(TraceError, match="line 1: hash_ids must be a list of integers"):
        read(tmp_path, lines({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}))


def test_bailian_chains_are_sessions(tmp_path: Path) -> None:
    """A router that keeps sessions together needs to know them."""
    rows = [
        {"chat_id": chat, "parent_chat_id": parent, "timestamp": time, "input_length": 20, "output_length": 3}
        | {"type": "text", "turn": 1, "hash_ids": [chat, 99]}
        for time, chat, parent in ((0.5, 1, -1), (1.0, 2, -1), (2.25, 3, 1), (3.0, 4, 3), (4.0, 5, 77))
    ]
    trace = read(tmp_path, lines(*rows))
    assert trace.format == "bailian"
    assert [each.session for each in trace.arrivals] == ["1", "2", "1", "1", "77"]
    assert trace.arrivals[2].time == 1.75


def test_azure_dates_become_seconds(tmp_path: Path) -> None:
    """Dates have seven decimals in 2023 and a zone in 2024; the last line may lack its end."""
    old = read(tmp_path, AZURE + "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.4799600,3180,8")
    assert (old.format, lengths(old)) == ("azure", [(0.0, 4808, 10), (0.5, 3180, 8)])
    new = read(tmp_path, AZURE + "2024-05-10 00:00:00.25+00:00,2,1\n2024-05-10 00:00:01.5+00:00,3,1\n")
    assert lengths(new) == [(0.0, 2, 1), (1.25, 3, 1)]
    assert old.arrivals[0].prompt.tokens()[0] != old.arrivals[1].prompt.tokens()[0]


def test_vidur_and_burstgpt_are_found_by_their_columns(tmp_path: Path) -> None:
    """Formats are detected, and columns may stand in any order."""
    vidur = read(tmp_path, "num_decode_tokens,arrived_at,num_prefill_tokens\n44,1.5,374\n109,4.0,396.0\n")
    assert (vidur.format, lengths(vidur)) == ("vidur", [(0.0, 374, 44), (2.5, 396, 109)])
    burst = read(tmp_path, BURSTGPT + "5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,30,8,38,API log\n")
    assert (burst.format, lengths(burst)) == ("burstgpt", [(0.0, 472, 18), (40.5, 30, 8)])
    later = BURSTGPT.replace("Model", "Session ID,Elapsed time,Model")
    assert read(tmp_path, later + "5,s1,2,GPT-4,3,4,7,API log\n").arrivals[0].session == "s1"


def test_failed_requests_are_refused_or_left_out_and_counted(tmp_path: Path) -> None:
    """Taking them as answers of one token would be a guess about a third of the file."""
    text = BURSTGPT + "5,ChatGPT,472,18,490,Conversation log\n7,ChatGPT,10,0,10,Conversation log\n"
    with pytest.raises(TraceError, match="line 3: Response tokens must be at least 1, got 0; --skip empty"):
        read(tmp_path, text)
    trace = read(tmp_path, text, skip=frozenset({EMPTY}))
    assert len(trace.arrivals) == 1
    assert trace.skipped == {EMPTY: 1}
    with pytest.raises(TraceError, match="holds no request but 1 left out"):
        read(tmp_path, BURSTGPT + "7,ChatGPT,10,0,10,Conversation log\n", skip=frozenset({EMPTY}))


def test_requests_longer_than_the_model_are_refused_or_left_out(tmp_path: Path) -> None:
    """Cutting them would make the traffic lighter than it was."""
    text = lines(mooncake(0, 600, [0, 1]), mooncake(1, 594, [0, 1]))
    longest = Longest(601, "the model's context")
    error = (
        r"line 1: input_length and output_length must be at most 601 tokens together \(the model's context\), got 600"
    )
    with pytest.raises(TraceError, match=error):
        read(tmp_path, text, longest=longest)
    trace = read(tmp_path, text, longest=longest, skip=frozenset({TOO_LONG}))
    assert (lengths(trace), dict(trace.skipped)) == ([(0.001, 594, 7)], {TOO_LONG: 1})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (AZURE + "2023-11-16 18:17:04,9,9\n2023-11-16 18:17:03,9,9\n", "line 3: TIMESTAMP must not go back.* 1 s"),
        (AZURE + "2023-11-16 18:17:04,-9,9\n", "line 2: ContextTokens must be an integer of at least 0, got '-9'"),
        (AZURE + "2023-11-16 18:17:04,,9\n", "line 2: ContextTokens is missing"),
        (AZURE + "2023-11-16 18:17:04,9\n", "line 2: 2 values for 3 columns"),
        (AZURE + "yesterday,9,9\n", "line 2: TIMESTAMP must be a date and time such as .* got 'yesterday'"),
        (AZURE, "holds no request"),
        (BURSTGPT + "nan,GPT-4,1,1,2,API log\n", "line 2: Timestamp must be a number of at least 0, got 'nan'"),
        (BURSTGPT + "1,GPT-4,1,1,3,API log\n", "line 2: Total tokens must be the sum of both lengths, 2, got '3'"),
        ("when,what\n1,2\n", "line 1: no known format has the columns when, what; --format takes mooncake"),
        ('{"timestamp": 1}\n', "line 1: no known format has the columns timestamp;"),
        ("", "no known format has the columns of an empty file"),
        (lines(mooncake(0, 5, [1])) + "oops\n", "line 2: not JSON"),
        (lines(mooncake(0, 5, [1]), {"timestamp": 1}), "line 2: input_length is missing"),
        (lines(mooncake(0, 5, [1]), mooncake(True, 5, [1])), "line 2: timestamp must be a number.* got True"),
        (AZURE + "2023-11-16 18:17:04,1_0,9\n", "line 2: ContextTokens must be an integer.*, got '1_0'"),
        (AZURE + "2023-11-16 18:17:04,\u0661,9\n", "line 2: ContextTokens must be an integer"),
        (AZURE + "2023-11-16 18:17:04,9,1e15\n", "line 2: GeneratedTokens must be at most 16777216, got '1e15'"),
        (AZURE + "0001-01-01 00:00:00+05:00,9,9\n", "line 2: TIMESTAMP must be a date and time"),
        ("TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n", "line 1: column 'ContextTokens' is there twice"),
        (lines(mooncake(0, 10**30, [1])), "line 1: input_length must be at most 16777216, got 1000000"),
        (lines(mooncake(0, 5, [1])) + '{"timestamp": ' + "9" * 5000 + "}\n", "line 2: not JSON that can be read: "),
        (lines(mooncake(0, 5, [1])) + "[" * 100_000 + "\n", "line 2: brackets are nested too deeply"),
        ("[" * 100_000, "line 1: no known format"),
        ('{"a": ' * 100_000, "line 1: no known format"),
        (lines(mooncake(0, 5, [1])) + '{"timestamp": 1, "timestamp": 2}\n', "line 2: .* 'timestamp' is there twice"),
    ],
)
def test_errors_name_the_row_and_the_column(tmp_path: Path, text: str, error: str) -> None:
    """A trace has millions of rows."""
    with pytest.raises(TraceError, match=error):
        read(tmp_path, text)


def test_a_file_of_another_encoding_is_refused(tmp_path: Path) -> None:
    """Spreadsheets write UTF-16."""
    (tmp_path / "trace").write_bytes(AZURE.encode("utf-16"))
    with pytest.raises(TraceError, match="line 1: no text in UTF-8"):
        read_trace(tmp_path / "trace", ReadOptions())
    with pytest.raises(TraceError, match="line 1: "):
        read_trace(tmp_path / "trace", ReadOptions("azure"))


def test_ids_of_chats_are_exact(tmp_path: Path) -> None:
    """Two hashes that are equal as floating-point numbers would be one conversation."""
    row = {"parent_chat_id": -1, "timestamp": 1, "input_length": 5, "output_length": 3, "hash_ids": [1]}
    trace = read(tmp_path, lines(*(row | {"chat_id": 2**60 + number} for number in (0, 1))), format="bailian")
    assert [each.session for each in trace.arrivals] == [str(2**60), str(2**60 + 1)]


def test_a_named_format_is_used_whatever_else_the_file_holds(tmp_path: Path) -> None:
    """Further columns hide a format from detection only; missing ones are named."""
    text = "arrived_at,num_prefill_tokens,num_decode_tokens,note\n0,3,4,x\n"
    with pytest.raises(TraceError, match="no known format"):
        read(tmp_path, text)
    assert lengths(read(tmp_path, text, format="vidur")) == [(0.0, 3, 4)]
    with pytest.raises(TraceError, match="line 1: column 'TIMESTAMP' is missing"):
        read(tmp_path, text, format="azure")


def test_what_clients_ask_for_is_the_answer_or_what_is_said(tmp_path: Path) -> None:
    """The scheduler reserves memory by `max_tokens`, which most traces do not hold."""
    text = lines(mooncake(0, 5, [1]))
    assert read(tmp_path, text).arrivals[0].max_tokens == 7
    assert read(tmp_path, text, max_tokens=512).arrivals[0].max_tokens == 512
    assert read(tmp_path, text, max_tokens=3).arrivals[0].max_tokens == 7


def test_turns_of_a_synthetic_conversation_hold_the_answers_before_them() -> None:
    """Their prefixes are what a cache and a router are measured with."""
    given = {"request_rate": 1.0, "num_requests": 3, "turns": 2, "think_ms": 500.0, "max_new_tokens": 8}
    arrivals = synthetic_arrivals(given, ms_per_token=50.0)
    first, second = (each for each in arrivals if each.session == "0")
    assert first.answer is not None
    before = first.prompt.tokens() + tuple(first.answer.tokens())
    assert second.prompt.tokens()[: len(before)] == before
    assert second.time == pytest.approx(first.time + 0.5 + 8 * 0.05)
    assert [each.time for each in arrivals] == sorted(each.time for each in arrivals)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"concurrency": 4}, "needs a schedule"),
        ({"request_rate": 1.0, "background": 2}, "--background 2"),
        ({"request_rate": 1.0, "turns": 2}, "--turns 2 needs --ms-per-token"),
    ],
)
def test_workloads_that_depend_on_answers_are_refused(given: Mapping[str, Any], error: str) -> None:
    """Their arrivals are not known before the simulation."""
    with pytest.raises(ConfigError, match=error):
        synthetic_arrivals(given, ms_per_token=None)


@pytest.mark.parametrize("token_ids", [True, False])
def test_our_own_trace_holds_what_arrived_and_what_was_answered(tmp_path: Path, token_ids: bool) -> None:
    """A client that left is no answer of `max_tokens`, and one that left before its first token left by time."""
    world = World(limits_of(chunk=64, batch=80), num_pages=64, page_size=4)
    arrivals = [
        Arrival(0, Submit(0, (1, 0, 1), resolved(12), itl_target=70_000)),
        Arrival(1, Submit(1, (0,) * 200, resolved(2))),
        Arrival(2, Submit(2, (1, 1), resolved(40))),
        Arrival(2, Abort(1)),
        Arrival(9, Abort(2)),
    ]
    play(recorded_engine(world, trace_file(tmp_path / "t", world, token_ids=token_ids), at_launch=True), arrivals)
    trace = read_trace(tmp_path / "t", ReadOptions())
    assert trace.format == "sluice"
    whole, left_early, left_late = trace.arrivals
    assert (whole.prompt.length, whole.output_tokens, whole.max_tokens, whole.leaves) == (3, 12, 12, None)
    assert (whole.itl_target, left_late.itl_target) == (70_000, 0)
    assert 0 < left_late.output_tokens < left_late.max_tokens == 40
    assert left_early.leaves is not None
    assert left_early.leaves.after_seconds > 0
    if token_ids:
        assert whole.prompt.tokens() == (1, 0, 1)
        assert whole.answer is not None
        assert whole.answer.length == 12
    else:
        assert whole.answer is None
