"""The results so far, in one file that is rewritten after each measurement."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu.checkpoint_size import layer_weights
from benchmarks.cpu.machine import Rates
from sluice.bench.results import machine
from sluice.config import ConfigError

FORMAT = "sluice-cpu-peers-2"


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement."""

    values: Mapping[str, float | None]
    """Numbers by name; none if it failed."""
    rates: Rates | None
    """Rates of the machine just before."""
    load: float
    """Load average over a minute, which counts the engine that was measured before."""
    error: str | None = None


@dataclass(slots=True)
class Record:
    """A file of results."""

    path: Path
    content: dict[str, Any]

    @classmethod
    def opened(cls, path: Path, checkpoint: Path, threads: int) -> Record:
        """Open the file, or begin a new one.

        Raises:
            ConfigError: the file holds something else, or results of another checkpoint or number of threads.
        """
        settings = {"checkpoint": checkpoint.resolve().name, "threads": threads}
        if not path.exists():
            counted = {"layer_weights": layer_weights(checkpoint)}
            content = {"format": FORMAT, **settings, **counted, "machine": machine(), "rows": {}, "engines": {}}
            record = cls(path, content)
            record.save()
            return record
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"--json {path} exists and is no JSON: {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ConfigError(f"--json {path} exists and is no result of this script")
        for name, value in settings.items():
            if content[name] != value:
                raise ConfigError(f"--json {path} was measured with {name} {content[name]}, not {value}")
        return cls(path, content)

    @property
    def layer_weights(self) -> int:
        count: int = self.content["layer_weights"]
        return count

    def has(self, row: str, label: str, turn: int) -> bool:
        return len(self.runs(row, label)) > turn

    def add(self, row: str, label: str, measured: Measured) -> None:
        """Add the measurement of the next turn, and save the file."""
        self.content["rows"].setdefault(row, {}).setdefault(label, []).append(asdict(measured))
        self.save()

    def runs(self, row: str, label: str) -> list[Measured]:
        """Return the measurements, one for each turn."""
        raw = self.content["rows"].get(row, {}).get(label, [])
        return [Measured(**{**run, "rates": run["rates"] and Rates(**run["rates"])}) for run in raw]

    def describe(self, label: str, peer: Mapping[str, Any], weights_bytes: int | None) -> None:
        """Add how an engine was started, and the bytes of its weights if it says."""
        self.content["engines"][label] = {"peer": peer, "weights_bytes": weights_bytes}

    def weights_bytes(self, label: str) -> int | None:
        """Return the bytes of an engine's weights; None if it does not say."""
        found: int | None = self.content["engines"].get(label, {}).get("weights_bytes")
        return found

    def save(self) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        part.replace(self.path)


def load_average() -> float:
    """Return the load average over a minute."""
    return round(os.getloadavg()[0], 2)
