"""Worlds with a disk that a test holds and lets go, and what is seen of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from recording import RecordingRunner
from sluice.engine.messages import Submit
from sluice.engine.protocols import Runner
from sluice.testing import Faults, FaultyRunner, resolved
from sluice.types import Chunk, Output, PageCopy, StoredPage, Tier, TierLimits
from worlds import Bench, SlowDisk, World, check_ends, limits_of


class Pace(random.Random):
    """A disk's chance, in a test's hand."""

    is_stuck = False

    def random(self) -> float:
        return 1.0 if self.is_stuck else 0.0


def world_of(*, num_pages: int = 8, page_size: int = 4, depth: int = 1, fails: float = 0.0, **rest: Any) -> World:
    """A small pool before a larger disk. `rest` are fields of the tiers and of the limits."""
    names = TierLimits.__dataclass_fields__.keys() & rest.keys()
    tiers = {"disk_pages": 64, **{name: rest.pop(name) for name in names}}
    limits = limits_of(**{"chunk": 64, **rest})
    return World(limits, num_pages, page_size, depth=depth, tiers=TierLimits(**tiers), disk_fails=fails)


class TierBench:
    """An engine over a world with tiers, its plans recorded."""

    def __init__(self, world: World, stored: Sequence[StoredPage] = (), faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.pace = Pace()
        self.sent: dict[int, Submit] = {}
        self.recording: RecordingRunner | None = None
        self.disk = SlowDisk(world, self.pace, self._record)
        self.bench: Bench = self.disk.bench()
        self.taken = self.bench.scheduler.restore(stored)

    def inherit(self, other: TierBench) -> None:
        """The disk is the one of an engine that is gone."""
        self.disk.tiers.adopt(other.disk.tiers)

    def _record(self, runner: Runner) -> Runner:
        self.recording = RecordingRunner(FaultyRunner(runner, self.faults))
        return self.recording

    def put(self, request_id: int, prompt: Sequence[int], max_tokens: int = 2, **rest: Any) -> None:
        self.sent[request_id] = Submit(request_id, tuple(prompt), resolved(max_tokens), **rest)
        self.bench.link.put(self.sent[request_id])

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.bench.step()

    def ask(self, request_id: int, prompt: Sequence[int], max_tokens: int = 2, **rest: Any) -> Output:
        """One request, alone, to its end."""
        self.put(request_id, prompt, max_tokens, **rest)
        self.bench.drain(500)
        return self.bench.link.end(request_id)

    def check(self, *, faults: bool = False) -> None:
        """All have ended as they were to, and nothing is left."""
        check_ends(self.bench, self.sent, faults=faults)

    @property
    def copies(self) -> list[PageCopy]:
        assert self.recording is not None
        return [copy for plan in self.recording.plans for copy in plan.copies]

    def chunks(self, request_id: int) -> list[Chunk]:
        """What was computed of a request."""
        assert self.recording is not None
        return [chunk for plan in self.recording.plans for chunk in plan.chunks if chunk.request_id == request_id]

    def loads(self) -> list[PageCopy]:
        return [copy for copy in self.copies if copy.target is Tier.DEVICE]

    def stores(self) -> list[PageCopy]:
        return [copy for copy in self.copies if copy.target is not Tier.DEVICE]


def prompt(first: int, length: int) -> list[int]:
    """Tokens that no prompt of another `first` begins with."""
    return [first >> bit & 1 for bit in range(8)] + [0] * (length - 8)
