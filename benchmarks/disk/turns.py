"""Measures conversations with more prefixes than the pool holds, without and with the tier, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.disk.driving import Driven, Prompt, Request, prompt

ANSWER = 8
"""Tokens that each turn generates."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Conversations, each with a prefix of its own; each turn adds `said` tokens and the answer."""

    conversations: int
    prefix: int
    said: int
    turns: int
    pool: int
    """Tokens of the device's pool."""
    settled: bool = False
    """True if each turn waits until all computed pages are stored."""

    @property
    def excess(self) -> float:
        return self.conversations * self.prefix / self.pool


@dataclass(frozen=True, slots=True)
class TurnsResult:
    """The figures of one run. The first turn of each conversation is left out: its prefix is not stored yet."""

    tier: bool
    restarted: bool
    ttft_p50_ms: float
    ttft_p90_ms: float
    prompt_tokens: int
    computed_tokens: int
    disk_tokens: int
    same_answers: bool | None = None


def run(
    checkpoint: Path, work: Workload, disk: Path | None, *, restart: bool, **options: Any
) -> tuple[TurnsResult, list[list[int]]]:
    """Play all turns.

    Args:
        disk: the page file; None: no tier.
        restart: close the engine and start another one before the last turn.

    Returns:
        The figures, and the tokens of every answer.
    """
    if disk is not None:
        options |= {"kv_disk": str(disk), "kv_disk_bytes": options.pop("disk_bytes")}
    else:
        options.pop("disk_bytes")
    driven = Driven.start(checkpoint, max_total_tokens=work.pool, **options)
    talks: list[Prompt] = [prompt(work.prefix, seed) for seed in range(work.conversations)]
    found: list[Request] = []
    answers: list[list[int]] = []
    prompt_tokens = 0
    for turn in range(work.turns):
        if restart and turn == work.turns - 1:
            driven.finish_copies()
            driven.close()
            driven = Driven.start(checkpoint, max_total_tokens=work.pool, **options)
        for number, talk in enumerate(talks):
            tokens = talk + prompt(work.said, 1000 * (turn + 1) + number)
            request = driven.ask(tokens, ANSWER)
            if work.settled:
                driven.finish_copies()
            answers.append(request.tokens)
            talks[number] = tokens + tuple(request.tokens)
            if turn:
                found.append(request)
                prompt_tokens += len(tokens)
    driven.finish_copies()
    driven.close()
    return _result(found, prompt_tokens, disk is not None, restart), answers


def _result(found: Sequence[Request], prompt_tokens: int, tier: bool, restarted: bool) -> TurnsResult:
    times = sorted(request.ttft * 1000 for request in found)
    ends = [request.end for request in found if request.end is not None]
    return TurnsResult(
        tier=tier,
        restarted=restarted,
        ttft_p50_ms=round(statistics.median(times), 1),
        ttft_p90_ms=round(times[int(0.9 * len(times))], 1),
        prompt_tokens=prompt_tokens,
        computed_tokens=prompt_tokens - sum(end.num_cached_tokens for end in ends),
        disk_tokens=sum(end.num_disk_tokens for end in ends),
    )


def compare(checkpoint: Path, work: Workload, folder: Path, repeats: int, **options: Any) -> list[dict[str, Any]]:
    """Run without, with, without, with the tier ..., and once more with it and a restart before the last turn."""
    results, first = [], None
    for number in range(repeats):
        for disk, restart in ((None, False), (folder / f"turns-{number}", False)):
            result, answers = run(checkpoint, work, disk, restart=restart, **options)
            first = first or answers
            results.append(asdict(result) | {"same_answers": answers == first})
            print(f"  {results[-1]}", flush=True)
            if disk is not None:
                disk.unlink()
    disk = folder / "turns-restart"
    result, answers = run(checkpoint, work, disk, restart=True, **options)
    results.append(asdict(result) | {"same_answers": answers == first})
    print(f"  {results[-1]}", flush=True)
    disk.unlink()
    return results
