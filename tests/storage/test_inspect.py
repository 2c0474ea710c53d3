"""`sluice cache inspect` says what a start would find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from page_files import GEOMETRY, SLOTS, keys, opened, page
from sluice.cli import main
from sluice.storage.page_file_format import FileLayout


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two pages of one tenant, one of another, one that hangs from nothing."""
    path = tmp_path / "pages"
    file = opened(path).file
    long, lost = keys([1, 2, 3, 4, 5, 6, 7, 8], "secret"), keys([9, 9, 9, 9, 8, 8, 8, 8])[1]
    for slot, key in enumerate([*long, keys([1, 2, 3, 4])[0], lost]):
        file.write(slot, key, page(slot))
    file.close()
    return path


def test_it_counts_what_would_be_restored(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures that do not say whether a restart will help; or that tell a tenant's salt."""
    assert main(["cache", "inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "stored      3 pages (12 tokens) that a start would restore, 1 that hang from nothing" in shown
    assert "namespace 0 2 pages, 1 ends, the longest prefix 8 tokens" in shown
    assert "secret" not in shown
    assert "checksums" not in shown


def test_it_reads_every_page_when_asked_to(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged file that is called sound."""
    assert main(["cache", "inspect", str(path), "--verify", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["slots"], shown["entries"], shown["pages"], shown["damaged"]) == (SLOTS, 4, 3, [])
    at = FileLayout(GEOMETRY, SLOTS).part_at(2, 0)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert main(["cache", "inspect", str(path), "--verify"]) == 1
    assert "checksums   1 of 4 pages are damaged\n            page 2 of the file has" in capsys.readouterr().out


def test_it_looks_while_an_engine_uses_the_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A look that waits for the engine's end, or takes its lock away."""
    file = opened(path).file
    assert main(["cache", "inspect", str(path)]) == 0
    assert main(["cache", "inspect", str(path)]) == 0
    file.close()


@pytest.mark.parametrize("content", [b"", b"something else", b"SluiceKV", b"SluiceKV" + bytes(5000)])
def test_what_is_no_page_file_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    """A traceback for a wrong path."""
    other = tmp_path / "other"
    other.write_bytes(content)
    assert main(["cache", "inspect", str(other)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"sluice cache inspect: error: {other} ")
    assert error.count("\n") == 1
    assert main(["cache", "inspect", str(tmp_path / "missing")]) == 1
    assert "cannot be opened: No such file" in capsys.readouterr().err
    assert main(["cache", "inspect", str(tmp_path)]) == 1
    assert "cannot be read: Is a directory" in capsys.readouterr().err
