"""Measures how loading a long prefix delays decoding requests: gaps between their tokens, before and meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.disk.driving import Driven, DrivenLink, Prompt, Request, prompt
from sluice.assembly.load import load
from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.config import EngineConfig
from sluice.engine.messages import Copied

MOST = 1500
"""Most tokens of a decoding request: more than it has time for."""


class Idle:
    """A model that computes nothing, to fill a page file in the time that writing takes."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        self._hidden_size = hidden_size
        self._vocab_size = vocab_size

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        return torch.zeros(len(batch.logit_rows), self._hidden_size)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(hidden), self._vocab_size)


def fill_file(checkpoint: Path, tokens: Prompt, **options: Any) -> None:
    """Write a prompt's pages, with arbitrary content, under their names."""
    config = EngineConfig.from_options({"model": str(checkpoint), **options, "chunked_prefill_size": 2048})
    loaded = load(config, progress=False)
    model = Idle(loaded.spec.hidden_size, loaded.spec.vocab_size)
    loaded = replace(loaded, model=model)
    link, state = DrivenLink(), loaded.state()
    for layer in state.kv:
        layer.k.fill_(0.01)
        layer.v.fill_(0.01)
    tiers = loaded.tiers.open(state, lambda done: link.post(Copied(done)))
    runner = loaded.runner(state=state, tiers=tiers)
    engine = loaded.engine(link, runner, tiers, runner.close)
    driven = Driven(engine, loaded.info, link)
    driven.ask(tokens)
    driven.finish_copies()
    driven.close()


def measure(checkpoint: Path, length: int, streams: int, folder: Path, **options: Any) -> dict[str, Any]:
    """Run decoding requests alone, then beside a load of `length` tokens, then alone again."""
    disk = folder / "interference"
    options |= {"kv_disk": str(disk), "kv_disk_bytes": options.pop("disk_bytes"), "max_total_tokens": length + 8192}
    tokens = prompt(length + 1, 7)
    fill_file(checkpoint, tokens, **options)
    driven = Driven.start(checkpoint, **options)
    for layer in driven.engine.runner._state.kv:  # the first touch of memory must not be measured
        layer.k.fill_(0.01)
        layer.v.fill_(0.01)
    running = [driven.submit(prompt(64, seed), MOST) for seed in range(streams)]
    while not all(len(request.times) > 5 for request in running):
        driven.engine.step()
    alone = _window(driven, running, 150)
    loader = driven.submit(tokens, 1)
    began, steps = len(running[0].times), 0
    driven.engine.step()
    while driven.engine.scheduler.occupancy().loading:
        driven.engine.step()
        steps += 1
    beside = [_gaps(request, began) for request in running]
    seconds = running[0].times[-1] - loader.sent
    driven.finish(loader)
    assert loader.end is not None
    after = _window(driven, running, 150)
    driven.close()
    disk.unlink()
    alone_gaps = [*alone, *after]
    flat = [gap for gaps in beside for gap in gaps]
    found = {
        "prefix_tokens": length,
        "disk_tokens": loader.end.num_disk_tokens,
        "streams": streams,
        "load_s": round(seconds, 2),
        "steps_meanwhile": steps,
        "alone_p50_ms": _p(alone_gaps, 0.5),
        "alone_p99_ms": _p(alone_gaps, 0.99),
        "beside_p50_ms": _p(flat, 0.5),
        "beside_p99_ms": _p(flat, 0.99),
    }
    found["ratio_p50"] = round(found["beside_p50_ms"] / found["alone_p50_ms"], 2)
    found["ratio_p99"] = round(found["beside_p99_ms"] / found["alone_p99_ms"], 2)
    print(f"  {found}", flush=True)
    return found


def _window(driven: Driven, running: Sequence[Request], count: int) -> list[float]:
    began = [len(request.times) for request in running]
    while len(running[0].times) < began[0] + count:
        driven.engine.step()
    return [gap for request, start in zip(running, began, strict=True) for gap in _gaps(request, start)]


def _gaps(request: Request, start: int) -> list[float]:
    times = request.times[max(0, start - 1) :]
    return [later - earlier for earlier, later in pairwise(times)]


def _p(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
