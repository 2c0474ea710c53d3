"""One process that reads one haystack and answers every question: run by `needles.py`, told by a file, tells in JSON.

A process for each length, or the memory that one leaves behind would be the next one's.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.long_context.process import PeakMemory, anonymous_bytes
from sluice import LLM, SamplingParams


@dataclass(frozen=True, slots=True)
class Task:
    """What to read."""

    folder: str
    """The checkpoint."""
    haystack: str
    """A file of int32, `.npy`."""
    keys: tuple[tuple[int, ...], ...]
    """Of each question: what follows the haystack."""
    answers: tuple[tuple[int, ...], ...]
    options: dict[str, Any]
    """Of the engine."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and what became of it, in seconds."""

    is_right: bool
    ttft: float
    decode: float
    """From the first token to the last."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a task gave."""

    asked: tuple[Asked, ...]
    idle_anonymous: int
    """Bytes, when the engine stands and has read nothing."""
    peak_anonymous: int
    memory: dict[str, int]
    """`LLM.memory_report()`"""
    predicted: dict[str, int]
    """The same for a request of this length."""


def read(task: Task) -> Reading:
    """Ask all questions, one after the other; the first finds nothing in the cache."""
    haystack: npt.NDArray[np.int32] = np.load(task.haystack, mmap_mode="r")
    length = len(haystack) + len(task.keys[0]) + max(len(answer) for answer in task.answers)
    with LLM(task.folder, **task.options) as llm:
        idle = anonymous_bytes()
        with PeakMemory() as memory:
            asked = tuple(_ask(llm, haystack, key, answer) for key, answer in zip(task.keys, task.answers, strict=True))
        return Reading(asked, idle, memory.peak, llm.memory_report(), llm.memory_report(length))


def _ask(llm: LLM, haystack: npt.NDArray[np.int32], key: tuple[int, ...], answer: tuple[int, ...]) -> Asked:
    """The prompt is made here and let go: a list of each would be megabytes that no server holds."""
    prompt = (*map(int, haystack), *key)
    sampling = SamplingParams(temperature=0.0, max_tokens=len(answer))
    times: list[float] = []
    tokens: list[int] = []
    start = time.perf_counter()
    for piece in llm.stream(prompt, sampling):
        if piece.token_id is not None:
            times.append(time.perf_counter())
            tokens.append(piece.token_id)
    return Asked(tuple(tokens) == answer, times[0] - start, times[-1] - times[0])


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    given["keys"] = tuple(tuple(key) for key in given["keys"])
    given["answers"] = tuple(tuple(answer) for answer in given["answers"])
    print(json.dumps(asdict(read(Task(**given)))))


if __name__ == "__main__":
    main()
