"""The content of a trace file: what must be in it, and what must not."""

from __future__ import annotations

import gc
import json
import logging
import stat
from pathlib import Path
from typing import Any

import pytest

from recorded import header_of, play, recorded_engine, trace_file
from sluice.engine.messages import Abort, Submit
from sluice.testing import Faults, ManualLink, resolved
from sluice.tracing.file import FLUSH_SECONDS, TraceFile, create
from sluice.tracing.format import Nothing
from sluice.types import SamplingParams
from worlds import Arrival, World, limits_of

WORLD = World(limits_of(chunk=8), num_pages=32, page_size=2)
VOCAB = 9_973
PROMPT = tuple(range(7_001, 7_021))
ASKED = SamplingParams(
    max_tokens=5,
    seed=3,
    stop_token_ids=(8_123,),
    logprobs=2,
    prompt_logprobs=1,
    presence_penalty=1,
    logit_bias={8_124: 1.0},
)
"""Its ids are larger than every other integer of the file."""


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def integers(value: object) -> set[float]:
    """Return all integers of a JSON value."""
    return {number for number in numbers(value) if isinstance(number, int)}


def numbers(value: object) -> list[float]:
    """Return all numbers of a JSON value."""
    if isinstance(value, int | float):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [number for part in parts for number in numbers(part)]


def record(path: Path, *, token_ids: bool = True, faults: Faults | None = None) -> ManualLink:
    engine = recorded_engine(WORLD, trace_file(path, WORLD, token_ids=token_ids), faults=faults, vocab_size=VOCAB)
    return play(
        engine, [Arrival(0, Submit(0, PROMPT, ASKED, 2, "Tenant A", 4)), Arrival(1, Submit(1, (7,), resolved(2)))]
    )


def test_a_line_for_every_step_and_input(tmp_path: Path) -> None:
    link = record(tmp_path / "trace")
    header, first, *rest = written(tmp_path / "trace")
    assert header["kind"] == "header"
    assert header["setup"]["limits"]["chunked_prefill_size"] == 8
    assert (header["setup"]["num_pages"], header["setup"]["page_size"], header["depth"]) == (32, 2, 1)
    assert first["kind"] == "add"
    assert (first["prompt"], first["prompt_len"]) == (list(PROMPT), 20)
    assert (first["sampling"]["seed"], first["sample_index"], first["priority"]) == (3, 2, 4)
    steps = [line for line in rest if line["kind"] == "step"]
    assert [step["plan"]["step"] for step in steps] == list(range(len(steps)))
    assert steps[0]["plan"]["bound_by"] == "chunked_prefill_size"
    assert steps[0]["tokens"] == []
    assert [token for step in steps for row in step["tokens"] for token in row if len(str(token)) > 1] == [
        token for output in link.outputs for token in output.token_ids
    ]
    assert steps[0]["device_ms"] == pytest.approx(1 + 8 / 10)
    assert steps[0]["ended_at"] == pytest.approx(0.0018)
    assert [end for step in steps for end in step.get("ends", [])] == [
        [1, "length", 2, 0, None],
        [0, "length", 5, 0, None],
    ]


def test_without_token_ids_there_are_none(tmp_path: Path) -> None:
    """No ids of prompts, outputs, targets or stop tokens; their numbers remain."""
    link = record(tmp_path / "trace", token_ids=False)
    hidden = {token for token in (*PROMPT, *link.tokens(0), *ASKED.stop_token_ids, 8_124) if token > 999}
    assert len(hidden) > 21
    assert integers(written(tmp_path / "trace")) & hidden == set()
    lines = written(tmp_path / "trace")
    assert lines[0]["token_ids"] is False
    assert lines[1]["prompt_len"] == 20
    assert "prompt" not in lines[1]
    steps = [line for line in lines if line["kind"] == "step"]
    assert sum(sum(step.get("counts", [])) for step in steps) == 7
    record(tmp_path / "whole")
    assert hidden <= integers(written(tmp_path / "whole")), "this test can tell"


def test_log_probabilities_are_not_written(tmp_path: Path) -> None:
    """Only how many each row had, which is all that a replay needs."""
    link = record(tmp_path / "trace")
    assert all(item.logprob < 0 for item in link.prompt_logprobs(0)), "this test can tell"
    lines = written(tmp_path / "trace")
    assert min(numbers(lines)) == 0
    assert sum(sum(line.get("prompt_logprobs", [])) for line in lines) == 19


def test_salts_are_hashed_by_the_traces_own_key(tmp_path: Path) -> None:
    """A salt is a secret of a tenant. Equal salts have equal hashes."""

    def salts(path: Path, key: bytes) -> list[str]:
        create(path)
        journal = TraceFile(path, header_of(WORLD), key=key)
        asked = [Submit(i, (1,), resolved(1), 0, salt) for i, salt in enumerate(["Tenant A", "", "B", "Tenant A"])]
        play(recorded_engine(WORLD, journal), [Arrival(0, submit) for submit in asked])
        assert "Tenant" not in path.read_text()
        return [line.get("extra_key", "") for line in written(path) if line["kind"] == "add"]

    first, none, other, again = salts(tmp_path / "one", b"key")
    assert first == again
    assert len({first, none, other}) == 3
    assert (none, len(first)) == ("", 16)
    assert salts(tmp_path / "two", b"another key")[0] != first


def test_failures_are_written(tmp_path: Path) -> None:
    faults = Faults(wait_raises=frozenset({0}), row_fails={1: 0})
    record(tmp_path / "trace", faults=faults)
    first, second = [line for line in written(tmp_path / "trace") if line["kind"] == "step"][:2]
    assert first["error"] == "the step failed: InjectedFault: wait 0"
    assert "tokens" not in first
    assert first["ends"][0][:2] == [0, "error"]
    assert second["row_errors"] == [[0, "row 0 failed"]]


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    """Even if an old file of that name was readable by all users."""
    path = tmp_path / "trace"
    path.write_text("old\n")
    path.chmod(0o644)
    record(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert written(path)[0]["kind"] == "header"


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        create(tmp_path / "nowhere" / "trace")
    with pytest.raises(IsADirectoryError):
        create(tmp_path)


def test_lines_reach_the_file_in_time(tmp_path: Path) -> None:
    """They are gathered: a system call for each step would cost more than the line."""
    path = tmp_path / "trace"
    journal = trace_file(path, WORLD)
    journal.write(Nothing(number=0, at=0.5))
    assert len(written(path)) == 1
    journal.write(Nothing(number=1, at=FLUSH_SECONDS))
    assert len(written(path)) == 3
    journal.write(Nothing(number=2, at=FLUSH_SECONDS + 0.9))
    assert len(written(path)) == 3
    journal.flush()
    assert len(written(path)) == 4
    journal.write(Nothing(number=3, at=FLUSH_SECONDS + 0.9))
    journal.close()
    journal.close()
    journal.write(Nothing(number=4, at=9.0))
    journal.flush()
    assert [line["number"] for line in written(path)[1:]] == [0, 1, 2, 3]


def test_a_trace_that_was_never_closed_is_whole(tmp_path: Path) -> None:
    """As of a program that ends without closing its `LLM`."""
    path = tmp_path / "trace"
    journal = trace_file(path, WORLD)
    journal.write(Nothing(number=0, at=0.0))
    del journal
    gc.collect()
    assert len(written(path)) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_ends_the_trace_and_not_the_engine(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    create(path)
    journal = TraceFile(path, header_of(WORLD), key=b"")
    full = open("/dev/full", "wb", buffering=1 << 16)  # noqa: SIM115
    journal._file.close()
    journal._file = full
    with caplog.at_level(logging.WARNING, logger="sluice.trace"):
        link = play(recorded_engine(WORLD, journal), [Arrival(i, Submit(i, (1,), resolved(3))) for i in range(5)])
    assert [link.end(i).finish_reason for i in range(5)] == ["length"] * 5
    messages = [item.getMessage() for item in caplog.records]
    assert len(messages) == 1
    assert "No space left" in messages[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_is_full_from_the_start_is_an_error() -> None:
    """It leaves no open file behind, which would fail once more when it is collected."""
    with pytest.raises(OSError, match="No space left"):
        TraceFile(Path("/dev/full"), header_of(WORLD), key=b"")
    gc.collect()


def test_an_abort_is_written(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    engine = recorded_engine(WORLD, trace_file(path, WORLD))
    engine.link.put(Submit(0, (1,) * 20, resolved(9)))
    engine.step()
    engine.link.put(Abort(0))
    engine.step()
    engine.close()
    aborted = next(line for line in written(path) if line["kind"] == "abort")
    assert (aborted["request_id"], aborted["reason"], aborted["ends"]) == (0, "abort", [[0, "abort", 0, 0, None]])
