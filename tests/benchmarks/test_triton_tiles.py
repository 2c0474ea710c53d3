"""The search for block sizes goes its whole way without a GPU, so that it is ready when there is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("triton")

import triton_device  # noqa: F401  # with it the interpreter is quicker
from benchmarks import triton_tiles
from sluice.attention.triton.tiles import DecodeTiles


def test_every_candidate_computes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A search that measures sizes which compute something else would put them into the table."""
    target = tmp_path / "tiles.json"
    assert triton_tiles.main(["--tiny", "--json", str(target)]) == 0
    found = json.loads(target.read_text())["found"]
    assert [len(entry["tried"]) for entry in found] == [3, 4]
    assert all(sum(each["in_table"] for each in entry["tried"]) == 1 for entry in found)
    assert capsys.readouterr().out.count("<- table") == 2


def test_another_result_is_called_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(triton_tiles, "LARGEST_ERROR", -1.0)
    monkeypatch.setattr(triton_tiles, "candidates", lambda decodes: [DecodeTiles(16, 1, 1, 2, 1)])
    assert triton_tiles.main(["--tiny", "--only", "decode"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_what_a_batch_costs() -> None:
    """Rates are read off these: causal pairs of 2 queries on 5 keys are 4 + 5."""
    work = triton_tiles.Work(triton_tiles.Heads(4, 2, 64), ((2, 5),))
    assert work.flops == 4 * (4 + 5) * 4 * 64
    assert work.read_bytes == 5 * 2 * 2 * 64 * 2
