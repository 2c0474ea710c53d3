"""The rows of the comparison on a CPU: workloads, the numbers taken from them, and Sluice's aims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import Settings
from sluice.bench.metrics import Summary
from sluice.bench.workload import LONG, SHORT

QWEN3, GPT2 = "qwen3-0.6b", "gpt2-124m"
TPOT, AFTER_PREFILLS, TTFT = "TPOT p50", "ITL mean after the prefills", "TTFT p50"
WHOLE, CHUNK = 2048, 256
"""Budgets: one for a whole prompt of the prefill row, and one that keeps decoding requests running."""


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a run."""

    name: str
    unit: str
    """Unit: "ms", for a number in seconds, or "/s"."""
    of: Callable[[Summary], float | None]
    aim: float | None = None
    """Aim of ours over the best peer's: at most for a time, at least for a rate. None: no aim."""


@dataclass(frozen=True, slots=True)
class Row:
    """A workload on a checkpoint."""

    name: str
    title: str
    checkpoint: str
    budget: int | None
    given: Mapping[str, Any]
    numbers: Sequence[Number]
    max_running: int = 8
    """Most requests decoded at once, by every engine."""
    ours: tuple[str, ...] = ()
    """Further arguments of Sluice."""
    is_disturbed: bool = False
    """True if another process keeps the engine's last processor busy."""
    undisturbed: str | None = None
    """Name of the row that is the same without the neighbour."""


def _closed(requests: int, at_once: int, prompt: int, output: int, **more: Any) -> dict[str, Any]:
    """Return the options of requests of one size, `at_once` at a time."""
    return {
        "num_requests": requests,
        "concurrency": at_once,
        "prompt_tokens": str(prompt),
        "max_new_tokens": output,
        "ignore_eos": True,
        **more,
    }


def _tpot(aim: float | None) -> Number:
    """Return the number TPOT. With an engine that sends several tokens at once most ITLs would be 0."""
    return Number(TPOT, "ms", lambda summary: summary.all.tpot.p50, aim)


ROWS: tuple[Row, ...] = (
    Row("decode-1", "decode, batch 1", QWEN3, WHOLE, _closed(3, 1, 64, 64), [_tpot(1 / 1.15)]),
    Row("decode-8", "decode, batch 8", QWEN3, WHOLE, _closed(8, 8, 64, 64), [_tpot(1 / 1.2)]),
    Row(
        "prefill",
        "prefill of 2,048 tokens",
        QWEN3,
        WHOLE,
        _closed(3, 1, 2048, 2),
        [Number(TTFT, "ms", lambda summary: summary.all.ttft.p50, 1 / 1.2)],
    ),
    Row(
        "cached",
        "decode at 4,000 tokens, batch 4",
        QWEN3,
        WHOLE,
        # All prompts are long, so that gaps outside windows belong to steps without any prefill.
        _closed(4, 4, 4000, 48, long_prompt_tokens=1000, warmup=0),
        [Number(AFTER_PREFILLS, "ms", lambda summary: summary.itl_outside.mean, 1 / 1.2)],
    ),
    Row(
        "neighbour",
        "decode, batch 1, one processor taken",
        QWEN3,
        WHOLE,
        _closed(2, 1, 64, 64, warmup=0),
        [_tpot(None), Number("ITL max", "ms", lambda summary: summary.all.itl.max)],
        is_disturbed=True,
        undisturbed="decode-1",
    ),
    Row(
        "interference",
        "4 decodes beside prompts of 4,000 tokens, chunk 256",
        QWEN3,
        CHUNK,
        {"preset": "interference"},
        [
            Number("ITL p50", "ms", lambda summary: summary.by_kind[SHORT].itl.p50),
            Number("ITL p50 in prefills", "ms", lambda summary: summary.itl_in_windows.p50),
            Number("ITL p99", "ms", lambda summary: summary.by_kind[SHORT].itl.p99, 0.6),
            Number("ITL max", "ms", lambda summary: summary.by_kind[SHORT].itl.max, 0.6),
            Number("long TTFT", "ms", lambda summary: summary.by_kind[LONG].ttft.mean, 1.0),
        ],
        # Other engines have no such option: their steps take longer the further a prompt is.
        ours=("--dynamic-chunking", "0"),
    ),
    Row(
        "rosellm",
        "GPT-2 124M, 32 requests",
        GPT2,
        None,
        {"preset": "rosellm"},
        [
            Number("ITL p50", "ms", lambda summary: summary.all.itl.p50),
            Number("ITL p99", "ms", lambda summary: summary.all.itl.p99, 0.7),
            Number("tokens/s", "/s", lambda summary: summary.output_per_second, 1.0),
        ],
        max_running=32,
    ),
)


@dataclass(frozen=True, slots=True)
class Session:
    """Rows that one start of an engine serves."""

    settings: Settings
    rows: Sequence[Row] = field(default_factory=tuple)
    ours: tuple[str, ...] = ()
    """Further arguments of Sluice."""


def sessions(rows: Sequence[Row], checkpoints: Path, threads: int) -> list[Session]:
    """Group the rows by the settings an engine is started with, in their order."""
    ordered = [row for row in ROWS if row in rows]
    found = []
    for (checkpoint, budget, running, ours), own in groupby(ordered, key=_start):
        settings = Settings(checkpoints / checkpoint, threads=threads, budget=budget, max_running=running)
        found.append(Session(settings, tuple(own), ours))
    return found


def _start(row: Row) -> tuple[str, int | None, int, tuple[str, ...]]:
    return row.checkpoint, row.budget, row.max_running, row.ours
