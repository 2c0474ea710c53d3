"""How far a model is loaded is reported while it loads."""

from __future__ import annotations

from sluice.assembly.load import load
from sluice.config import EngineConfig
from sluice.engine.heartbeat import Heartbeat, LoadingPart


class Recording(Heartbeat):
    def __init__(self) -> None:
        self.reports: list[tuple[LoadingPart, int, int]] = []

    def loading(self, part: LoadingPart, done: int = 0, total: int = 0) -> None:
        self.reports.append((part, done, total))


def test_every_tensor_is_a_step_forward() -> None:
    """A server ends an engine that loads and reports no progress."""
    heartbeat = Recording()
    load(EngineConfig.from_options({"max_total_tokens": 256}), progress=False, heartbeat=heartbeat)
    (first, *_), (last, *_) = heartbeat.reports[0], heartbeat.reports[-1]
    assert (first, last) == (LoadingPart.FILES, LoadingPart.MEMORY)
    weights = [(done, total) for part, done, total in heartbeat.reports if part is LoadingPart.WEIGHTS and total]
    assert len(weights) > 20
    assert [done for done, _ in weights] == sorted({done for done, _ in weights})
    done, total = weights[-1]
    assert 0.9 * total < done <= total, "all but the headers of the files"
    packed = [(done, total) for part, done, total in heartbeat.reports if part is LoadingPart.PACKING]
    assert packed == [(done, len(packed) + 1) for done in range(len(packed))]
    assert len(packed) > 1
