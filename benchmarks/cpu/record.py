"""The results so far, in one file that is rewritten after each start of an engine."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu.machine import Rates, rates
from sluice.bench.results import machine
from sluice.config import ConfigError

FORMAT = "sluice-cpu-peers-1"


@dataclass(slots=True)
class Record:
    """A file of results."""

    path: Path
    content: dict[str, Any]

    @classmethod
    def opened(cls, path: Path, threads: int) -> Record:
        """Open the file, or begin a new one with the rates of the machine.

        Raises:
            ConfigError: the file holds something else, or results of another number of threads.
        """
        if not path.exists():
            content = {"format": FORMAT, "threads": threads, "machine": machine()}
            record = cls(path, content | {"rates": asdict(rates(threads)), "rows": {}, "engines": {}})
            record.save()
            return record
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"--json {path} exists and is no JSON: {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ConfigError(f"--json {path} exists and is no result of this script")
        if content["threads"] != threads:
            raise ConfigError(f"--json {path} was measured with {content['threads']} threads, not {threads}")
        return cls(path, content)

    @property
    def rates(self) -> Rates:
        return Rates(**self.content["rates"])

    def has(self, row: str, peer: str, turn: int) -> bool:
        return len(self._runs(row, peer)) > turn

    def add(self, row: str, peer: str, values: dict[str, float | None], error: str | None = None) -> None:
        """Add a run; a failed one has no values."""
        run: dict[str, Any] = {"values": values} if error is None else {"values": {}, "error": error}
        self.content["rows"].setdefault(row, {}).setdefault(peer, []).append(run)

    def describe(self, peer: str, target: dict[str, Any], versions: dict[str, str]) -> None:
        """Add how an engine was started."""
        self.content["engines"][peer] = {"target": target, "versions": versions}

    def save(self) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        part.replace(self.path)

    def median(self, row: str, peer: str, number: str) -> float | None:
        """Return the median over the runs that have the number; None if none has."""
        values = [run["values"].get(number) for run in self._runs(row, peer)]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    def _runs(self, row: str, peer: str) -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = self.content["rows"].get(row, {}).get(peer, [])
        return runs
