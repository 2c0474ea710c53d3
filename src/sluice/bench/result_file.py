"""Results as files: JSON that other programs can read too."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sluice.bench.errors import BenchError
from sluice.bench.records import Result

FORMAT = "sluice-bench-1"


def write_result(result: Result, path: Path) -> None:
    """
    Raises:
        BenchError: the file cannot be written.
    """
    try:
        path.write_bytes(msgspec.json.encode(result) + b"\n")
    except OSError as error:
        raise BenchError(f"cannot write {path}: {error.strerror or error}") from error


def read_result(path: Path) -> Result:
    """
    Raises:
        BenchError: the file cannot be read, or holds something else.
    """
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} is no result of sluice bench --json: {error}") from error
    if result.format != FORMAT:
        raise BenchError(f"{path} has the format {result.format!r}; this version reads {FORMAT!r}")
    if not result.runs:
        raise BenchError(f"{path} holds no run")
    return result
