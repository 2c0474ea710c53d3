"""Reads one haystack and answers every question, in a process started by `needles.py`. It reads a file and prints JSON.

Each length has a process of its own, so that no memory of one counts for the next. A long one may have several, one
after the other: each goes on behind what lies on the tier.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.long_context.link import TimedLink
from benchmarks.long_context.process import PeakMemory, anonymous_bytes
from sluice.assembly.engine import build_engine
from sluice.config import EngineConfig
from sluice.engine.engine import Engine
from sluice.engine.messages import Abort, Submit
from sluice.runner.offload.loaders import LoadTotals
from sluice.runner.runner import TorchRunner
from sluice.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Task:
    """A haystack and its questions."""

    haystack: str
    """Path of an array of int32, `.npy`."""
    keys: tuple[tuple[int, ...], ...]
    """The tokens behind the haystack, for each question."""
    answers: tuple[tuple[int, ...], ...]
    options: dict[str, Any]
    """Options of the engine, `model` among them."""
    seconds: float | None = None
    """Time to read the haystack in, before it is given up to go on in another process; None: as long as it takes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a process has read of the haystack."""

    first: int
    """Tokens that lay on the tier before."""
    stop: int
    """Tokens that were read at its end."""
    seconds: float
    loaded: LoadTotals
    is_last: bool


@dataclass(frozen=True, slots=True)
class Question:
    """The answer to a question. Times are seconds."""

    is_right: bool
    ttft: float
    decode: float
    """Time from the first token to the last."""
    loaded: LoadTotals
    """Loads through the ring."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of a task."""

    piece: Piece
    questions: tuple[Question, ...]
    """None of them, unless the haystack is read to its end."""
    idle_anonymous: int
    """Bytes once the engine is ready and has read nothing."""
    peak_anonymous: int
    memory: dict[str, int]
    """Bytes that were allocated, by part."""
    predicted: dict[str, int]
    """Bytes that a request of this length takes, by part."""


class Reader:
    """Asks an engine one question after the other."""

    def __init__(self, engine: Engine, link: TimedLink) -> None:
        assert isinstance(engine.runner, TorchRunner), f"{engine.runner} loads nothing"
        self._engine = engine
        self._runner = engine.runner
        self._link = link
        self._ids = count()
        self._parent = os.getppid()

    def read(self, haystack: npt.NDArray[np.int32], seconds: float | None) -> Piece:
        """Read the haystack, until the time is over or the process that started this one has ended.

        Raises:
            RuntimeError: the engine failed.
        """
        request, link = next(self._ids), self._link
        state: Any = self._engine.scheduler
        before, start, first, stop, is_over = replace(self._runner.loads), time.perf_counter(), None, 0, False
        link.put(Submit(request, tuple(map(int, haystack)), SamplingParams(temperature=0.0, max_tokens=1, seed=0)))
        while request not in link.ended:
            self._engine.step()
            running = state.state.offloaded.get(request)
            if running is not None:
                first = running.computed if first is None else first
                stop = running.computed
            late = seconds is not None and time.perf_counter() - start > seconds
            if (late or os.getppid() != self._parent) and not is_over:
                is_over = True
                link.put(Abort(request))
        if (error := link.ended[request]) is not None and not is_over:
            raise RuntimeError(error)
        spent = time.perf_counter() - start
        loaded = _since(before, self._runner.loads)
        is_last = bool(link.tokens.get(request))
        return Piece(first or 0, len(haystack) if is_last else stop, spent, loaded, is_last)

    def ask(self, haystack: npt.NDArray[np.int32], key: tuple[int, ...], answer: tuple[int, ...]) -> Question:
        """Ask one question. The prompt is made here, so that no other object keeps it.

        Raises:
            RuntimeError: the engine failed.
        """
        request, link = next(self._ids), self._link
        before, start = replace(self._runner.loads), time.perf_counter()
        sampling = SamplingParams(temperature=0.0, max_tokens=len(answer), seed=0)
        link.put(Submit(request, tuple(chain(map(int, haystack), key)), sampling))
        while request not in link.ended:
            self._engine.step()
        if (error := link.ended[request]) is not None:
            raise RuntimeError(error)
        tokens, times = tuple(link.tokens[request]), link.times[request]
        return Question(tokens == answer, times[0] - start, times[-1] - times[0], _since(before, self._runner.loads))


def _since(before: LoadTotals, now: LoadTotals) -> LoadTotals:
    return LoadTotals(now.bytes - before.bytes, now.seconds - before.seconds, now.waited - before.waited)


def read(task: Task) -> Reading:
    """Read the haystack, and ask all questions, one after the other."""
    haystack: npt.NDArray[np.int32] = np.load(task.haystack, mmap_mode="r")
    length = len(haystack) + len(task.keys[0]) + max(len(answer) for answer in task.answers)
    link = TimedLink()
    engine, info = build_engine(EngineConfig.from_options(task.options), link, progress=False)
    with closing(engine):
        reader = Reader(engine, link)
        idle = anonymous_bytes()
        with PeakMemory() as memory:
            piece = reader.read(haystack, task.seconds)
            asked = zip(task.keys, task.answers, strict=True) if piece.is_last else ()
            questions = tuple(reader.ask(haystack, key, answer) for key, answer in asked)
    return Reading(piece, questions, idle, memory.peak, info.memory.as_dict(), info.predicted_memory(length).as_dict())


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    given["keys"] = tuple(tuple(key) for key in given["keys"])
    given["answers"] = tuple(tuple(answer) for answer in given["answers"])
    print(json.dumps(asdict(read(Task(**given)))))


if __name__ == "__main__":
    main()
