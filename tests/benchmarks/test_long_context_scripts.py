"""The scripts that measure long contexts, on short ones."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import pytest
import torch

from benchmarks import needles, offload_neighbours, ring_loading
from benchmarks.long_context.bandwidth import read_bandwidth
from benchmarks.long_context.process import PeakMemory, anonymous_bytes


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
    page = prefix.with_suffix(".html").read_text()
    assert "Time to read the prompt" in page
    assert "<script" not in page


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


def test_needles_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A typo in a length, and a child whose reason is lost."""
    out = ["--out", str(tmp_path / "needles")]
    assert needles.main([*out, "--lengths", "16k"]) == 1
    assert "got '16k'" in capsys.readouterr().err
    assert needles.main([*out, "--pieces", "60"]) == 1
    assert "--pieces must be seconds, beside --disk FILE, got 60" in capsys.readouterr().err
    assert needles.main([*out, "--lengths", "300", "--option", "page_size=-5"]) == 1
    assert "--page-size must be at least 1" in capsys.readouterr().err


def test_neighbours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Phases in which no stream moves would divide by nothing, and an answer that is wrong must not look right."""
    prefix = tmp_path / "neighbours"
    sizes = ["--long", "2000", "--answer", "16", "--ordinary", "600", "--streams", "2", "--seconds", "0.2"]
    options = ["--option", "max_total_tokens=8192", "--option", "threads=1", "--option", "chunked_prefill_size=128"]
    assert offload_neighbours.main(["--out", str(prefix), *sizes, *options]) == 0
    found = json.loads(prefix.with_suffix(".json").read_text())
    assert list(found["phases"]) == ["alone", "ordinary", "prefill", "decode"]
    assert all(phase["gaps"] > 0 for phase in found["phases"].values())
    assert found["is_right"]
    assert offload_neighbours.main(["--out", str(prefix), *sizes, "--option", "max_total_tokens=512"]) == 1
    assert "offload_neighbours: error:" in capsys.readouterr().err


def test_anonymous_memory_is_seen() -> None:
    """Pages of a file count as well, and a context on a disk would seem to be in memory."""
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        with PeakMemory() as memory:
            before = anonymous_bytes()
            block.write(bytes(64 << 20))
            assert anonymous_bytes() - before == pytest.approx(64 << 20, rel=0.5)
        assert memory.peak - before == pytest.approx(64 << 20, rel=0.5)


def test_read_bandwidth(tmp_path: Path) -> None:
    """A limit that counts bytes which were not read, or a file too short to read from for ever."""
    file = tmp_path / "pages"
    file.write_bytes(bytes(3 << 20))
    assert read_bandwidth(file, 1 << 20, seconds=0.01) > 1 << 20
    with pytest.raises(ValueError, match="must hold at least 4194304 bytes, it has 3145728"):
        read_bandwidth(file, 4 << 20)


def test_no_anonymous_memory(tmp_path: Path) -> None:
    """A system that does not tell would be measured as 0."""
    (tmp_path / "status").write_text("Name:\tx\nVmRSS:\t12 kB\n")
    with pytest.raises(ValueError, match="no RssAnon"):
        anonymous_bytes(tmp_path / "status")


def test_ring_loading_reads_the_reports_of_the_loader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script that follows the engine's interfaces, and is run once in a while."""
    out, disk = ["--out", str(tmp_path / "loading")], ["--disk", str(tmp_path / "pages")]
    threads = torch.get_num_threads()
    try:
        assert ring_loading.main([*out, *disk, "--mib", "1", "--rounds", "1", "--page-size", "64"]) == 0
    finally:
        torch.set_num_threads(threads)
    assert "pages of   64 tokens, GB/s: memory" in capsys.readouterr().out
    (rates,) = json.loads((tmp_path / "loading.json").read_text())["gigabytes_per_second"].values()
    assert all(rate > 0 for way in rates.values() for rate in way)
