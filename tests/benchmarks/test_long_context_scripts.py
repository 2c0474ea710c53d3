"""The scripts that measure long contexts, on short ones."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import pytest

from benchmarks import needles
from benchmarks.long_context.cost import loaded_tokens
from benchmarks.long_context.process import PeakMemory, anonymous_bytes


@pytest.mark.slow
def test_needles_writes_what_it_found(tmp_path: Path) -> None:
    """A script that fails at the end of an hour: every length's numbers are there, and what was left out is named."""
    prefix = tmp_path / "needles"
    lengths, options = ["--lengths", "300,1M"], ["--option", "max_total_tokens=1024", "--option", "threads=1"]
    assert needles.main(["--out", str(prefix), "--seconds", "9", *lengths, *options]) == 0
    found = json.loads(prefix.with_suffix(".json").read_text())
    assert list(found["figures"]) == ["300"]
    assert found["left_out"] == ["1M"]
    assert found["figures"]["300"][needles.RIGHT] == 5
    assert found["figures"]["300"][needles.ANON] >= found["figures"]["300"][needles.IDLE] > 10
    assert [each["is_right"] for each in found["readings"]["300"]["questions"]] == [True] * 5


@pytest.mark.slow
def test_needles_goes_on_where_it_was_interrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hours of reading that are lost with a process; a row of a sparse prefill that answers from its window alone."""
    prefix, disk = tmp_path / "needles", tmp_path / "pages"
    options = ["page_size=32", "max_total_tokens=1024", "offload_above=512", "threads=1", "ring_block_tokens=1024"]
    command = ["--out", str(prefix), "--disk", str(disk), "--lengths", "6000", "--pieces", "600", "--sparse-prefill"]
    command += [word for option in options for word in ("--option", option)]
    pieces = prefix.with_name("needles-6000-sparse-prefill-pieces.json")
    assert needles.main(command) == 0
    assert not pieces.exists()
    found = json.loads(prefix.with_suffix(".json").read_text())["readings"]["6000 sparse prefill"]
    assert [each["is_right"] for each in found["questions"]] == [True] * 5
    prefix.with_suffix(".json").unlink()
    pieces.write_text(json.dumps([found["piece"] | {"stop": 3000, "is_last": False, "seconds": 1000.0}]))
    assert needles.main(command) == 0
    found = json.loads(prefix.with_suffix(".json").read_text())
    first, second = found["readings"]["6000 sparse prefill"]["pieces"]
    assert second["first"] > 5800, "it was computed again"
    assert found["figures"]["6000 sparse prefill"][needles.PREFILL] == first["seconds"] + second["seconds"]
    capsys.readouterr()
    assert needles.main(command) == 0
    assert "was read before" in capsys.readouterr().out


def test_anonymous_memory_is_seen() -> None:
    """Pages of a file count as well, and a context on a disk would seem to be in memory."""
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        with PeakMemory() as memory:
            before = anonymous_bytes()
            block.write(bytes(64 << 20))
            assert anonymous_bytes() - before == pytest.approx(64 << 20, rel=0.5)
        assert memory.peak - before == pytest.approx(64 << 20, rel=0.5)


def test_no_anonymous_memory(tmp_path: Path) -> None:
    """A system that does not tell would be measured as 0."""
    (tmp_path / "status").write_text("Name:\tx\nVmRSS:\t12 kB\n")
    with pytest.raises(ValueError, match="no RssAnon"):
        anonymous_bytes(tmp_path / "status")


@pytest.mark.parametrize(("length", "chunk"), [(1, 1), (10, 1), (10, 3), (12, 3), (7, 100), (1000, 64)])
def test_every_chunk_loads_what_is_before_it(length: int, chunk: int) -> None:
    """A sum in closed form that forgets the last, shorter chunk."""
    assert loaded_tokens(length, chunk) == sum(range(0, length, chunk))
