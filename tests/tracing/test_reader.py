"""Files that are no traces, or are damaged, are refused in a line that names the place and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from recorded import play, recorded_engine, trace_file
from sluice.engine.messages import Submit
from sluice.testing import resolved
from sluice.tracing.file import TraceReader
from sluice.tracing.format import TraceError
from worlds import Arrival, World, limits_of

WORLD = World(limits_of(chunk=8), num_pages=32, page_size=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "trace"
    play(recorded_engine(WORLD, trace_file(path, WORLD)), [Arrival(0, Submit(0, (1,) * 11, resolved(3)))])
    return path


def read(path: Path) -> tuple[list[int], bool]:
    """Return the numbers of the lines, and whether the last one is cut."""
    with TraceReader(path) as trace:
        return [line.number for line in trace], trace.is_truncated


def test_a_whole_file(path: Path) -> None:
    assert read(path) == ([2, 3, 4, 5, 6], False)


def test_a_file_cut_anywhere_is_used_up_to_there(path: Path) -> None:
    """As an engine leaves it that was killed while it wrote."""
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for size in range(last, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert read(path) == ([2, 3, 4, 5], size > last), size
    path.write_bytes(whole[:-1])
    assert read(path) == ([2, 3, 4, 5, 6], False), "only the end of the line is missing"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is empty"),
        (b"\n", "line 1: not a JSON object"),
        (b"hello\n", "line 1: not a JSON object"),
        (b"\x80\x02\xff\n", "line 1: not a JSON object"),
        (b"[1]\n", "line 1: not a JSON object"),
        (b'{"traceEvents":[]}\n', "line 1: not a trace: it does not begin with a header"),
        (b'{"kind":"step"}\n', "line 1: not a trace: it does not begin with a header"),
        (
            b'{"kind":"header","version":9}\n',
            "line 1: the trace has version 9 of the format, not 8",
        ),
        (b'{"kind":"header"}\n', "line 1: the trace has version 0"),
        (b'{"kind":"header","version":8}\n', "line 1: a bad header: .*missing required field"),
        (b'{"kind":"header","version":8,"setup":[]}\n', "line 1: a bad header"),
    ],
)
def test_a_file_that_is_no_trace(tmp_path: Path, text: bytes, said: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(text)
    with pytest.raises(TraceError, match=said):
        TraceReader(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\n", "line 3: not a JSON object"),
        (
            b"{}\n",
            "line 3: unknown kind of record ''; known: add, abort, nothing, flush_cache, forget_device, copied,"
            " loaded, compiled, adapter_loaded, restored, step",
        ),
        (b'{"kind":"deadline"}\n', "line 3: unknown kind of record 'deadline'"),
        (b'{"kind":"nothing"}\n', "line 3: a bad 'nothing' record: .*`number`"),
        (b'{"kind":"nothing","number":"1","at":0}\n', "line 3: a bad 'nothing' record: .*int"),
        (b'{"kind":"nothing","number":1,"at"\n', "line 3: not a JSON object"),
        (b'{"kind":"abort","number":1,"at":0,"request_id":0,"reason":"boredom"}\n', "line 3: a bad 'abort' .*boredom"),
        (
            b'{"kind":"add","number":0,"at":0,"request_id":0,"prompt_len":1,"sampling":{"temperature":-1}}\n',
            "line 3: a bad 'add' record: temperature must be",
        ),
        (b"\xff\xfe\n", "line 3: not a JSON object"),
        (
            b'{"kind":"step","planned":1,"planned_at":0,"host_ms":0,"plan":{"step":1}}\n',
            "line 3: a bad 'step' record: .*new_slots",
        ),
    ],
)
def test_a_line_that_is_no_record(path: Path, text: bytes, said: str) -> None:
    """Only the last line may be cut: a bad one in the middle means that the file was damaged."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], text, *lines[2:]]))
    with pytest.raises(TraceError, match=said):
        read(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read .*: No such file"):
        TraceReader(tmp_path / "nothing")
    with pytest.raises(TraceError, match=r"cannot read .*: Is a directory"):
        TraceReader(tmp_path)
