"""Reads one haystack and answers every question, in a process started by `needles.py`. It reads a file and prints JSON.

Each length has a process of its own, so that no memory of one counts for the next.
"""

from __future__ import annotations

import json
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
from sluice.engine.messages import Submit
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

    questions: tuple[Question, ...]
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
        tokens, times, after = tuple(link.tokens[request]), link.times[request], self._runner.loads
        loaded = LoadTotals(after.bytes - before.bytes, after.seconds - before.seconds, after.waited - before.waited)
        return Question(tokens == answer, times[0] - start, times[-1] - times[0], loaded)


def read(task: Task) -> Reading:
    """Ask all questions, one after the other; the first finds nothing in the cache."""
    haystack: npt.NDArray[np.int32] = np.load(task.haystack, mmap_mode="r")
    length = len(haystack) + len(task.keys[0]) + max(len(answer) for answer in task.answers)
    link = TimedLink()
    engine, info = build_engine(EngineConfig.from_options(task.options), link, progress=False)
    with closing(engine):
        reader = Reader(engine, link)
        idle = anonymous_bytes()
        with PeakMemory() as memory:
            questions = tuple(
                reader.ask(haystack, key, answer) for key, answer in zip(task.keys, task.answers, strict=True)
            )
    return Reading(questions, idle, memory.peak, info.memory.as_dict(), info.predicted_memory(length).as_dict())


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    given["keys"] = tuple(tuple(key) for key in given["keys"])
    given["answers"] = tuple(tuple(answer) for answer in given["answers"])
    print(json.dumps(asdict(read(Task(**given)))))


if __name__ == "__main__":
    main()
