"""The rows of the comparison on a CPU: workloads, and the numbers taken from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import Settings
from sluice.bench.metrics import Summary
from sluice.bench.workload import LONG, SHORT

STEP = "decode step"
WHOLE, CHUNK = 2048, 128
"""Budgets: one for a whole prompt of the prefill row, and one that keeps decoding requests running."""
KV_TOKENS = 16_384


class Floor(Enum):
    """What a number cannot be faster than."""

    READ = "reading the weights"
    """The bytes of the weights at the rate of memory."""
    MULTIPLY = "bf16 products"
    """The layers' products of `WHOLE` tokens at torch's rate in bfloat16. Products in 8 bits can be faster."""


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a run."""

    name: str
    of: Callable[[Summary], float | None]
    floor: Floor | None = None
    is_rate: bool = False
    """True for a number per second, which is the better the larger it is; else it is in seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A workload."""

    name: str
    title: str
    budget: int | None
    given: Mapping[str, Any]
    numbers: Sequence[Number]
    max_running: int = 64
    """Most requests decoded at once, by every engine."""
    is_disturbed: bool = False
    """True if another process keeps the engine's last processor busy."""
    only_ours: bool = False


def _closed(requests: int, at_once: int, prompt: int, output: int, **more: Any) -> dict[str, Any]:
    """Return the options of requests of one size, `at_once` at a time."""
    return {
        "num_requests": requests,
        "concurrency": at_once,
        "prompt_tokens": str(prompt),
        "max_new_tokens": output,
        "ignore_eos": True,
        "warmup": 0,
        **more,
    }


def _decode(batch: int, output: int, *, only_ours: bool = False) -> Row:
    # All prompts are long, so that gaps outside windows belong to steps without any prefill.
    given = _closed(batch, batch, 32, output, long_prompt_tokens=1)
    numbers = [Number(STEP, lambda summary: summary.itl_outside.mean, Floor.READ)]
    return Row(f"decode-{batch}", f"decode, batch {batch}", WHOLE, given, numbers, only_ours=only_ours)


ROWS: tuple[Row, ...] = (
    _decode(1, 64),
    _decode(8, 48),
    _decode(32, 24),
    _decode(64, 24, only_ours=True),
    Row(
        "prefill",
        "prefill of 2,048 tokens",
        WHOLE,
        _closed(2, 1, 2048, 2),
        [Number("TTFT p50", lambda summary: summary.all.ttft.p50, Floor.MULTIPLY)],
    ),
    Row(
        "cached",
        "decode at 3,000 tokens, batch 4",
        WHOLE,
        _closed(4, 4, 3000, 48, long_prompt_tokens=1000),
        [Number(STEP, lambda summary: summary.itl_outside.mean)],
    ),
    Row(
        "neighbour",
        "decode, batch 1, one processor taken",
        WHOLE,
        _closed(1, 1, 64, 64),
        [
            Number("TPOT p50", lambda summary: summary.all.tpot.p50),
            Number("ITL max", lambda summary: summary.all.itl.max),
        ],
        is_disturbed=True,
    ),
    Row(
        "interference",
        f"4 decodes beside a prompt of 3,000 tokens, chunk {CHUNK}",
        CHUNK,
        {
            "background": 4,
            "background_prompt_tokens": "64",
            "background_output_tokens": "128",
            "at_ms": "1000",
            "prompt_tokens": "3000",
            "max_new_tokens": 8,
            "ignore_eos": True,
            "warmup": 0,
        },
        [
            Number("ITL p50 in prefills", lambda summary: summary.itl_in_windows.p50),
            Number("ITL p99", lambda summary: summary.by_kind[SHORT].itl.p99),
            Number("ITL max", lambda summary: summary.by_kind[SHORT].itl.max),
            Number("long TTFT", lambda summary: summary.by_kind[LONG].ttft.mean),
        ],
        max_running=8,
    ),
    Row(
        "rosellm",
        "RoseLLM's 32 requests",
        None,
        {"preset": "rosellm", "warmup": 0},
        [
            Number("ITL p50", lambda summary: summary.all.itl.p50),
            Number("ITL p99", lambda summary: summary.all.itl.p99),
            Number("tokens/s", lambda summary: summary.output_per_second, is_rate=True),
        ],
        max_running=32,
    ),
)


@dataclass(frozen=True, slots=True)
class Session:
    """Rows that one start of the engines serves."""

    settings: Settings
    rows: Sequence[Row]


def sessions(rows: Sequence[Row], checkpoint: Path, threads: int) -> list[Session]:
    """Group the rows by the settings that engines are started with, in their order."""
    ordered = [row for row in ROWS if row in rows]
    return [
        Session(Settings(checkpoint, threads, budget, running, KV_TOKENS), tuple(own))
        for (budget, running), own in groupby(ordered, key=lambda row: (row.budget, row.max_running))
    ]
