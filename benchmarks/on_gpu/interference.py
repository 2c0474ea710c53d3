"""Measures decoding requests of the large model while one long prompt arrives, for several chunk sizes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from benchmarks.on_gpu.clocks import finish
from benchmarks.on_gpu.engines import Bench, bench_of
from benchmarks.on_gpu.models import LARGE
from benchmarks.on_gpu.setting import Setting, random_prompt
from sluice.models.base import CausalLM

OFF = -1
CHUNKS = (512, 2048, OFF)
FACTOR = 2.0
UNCUT = 8192
"""Most tokens of a step whose prompts are not cut."""


def measure(setting: Setting) -> dict[str, Any]:
    """Return gaps between tokens before and during the prompt, and its time to first token, for each chunk size."""
    model = setting.model(LARGE)
    rows = [_chunk(setting, model, chunk) for chunk in CHUNKS]
    first = rows[0]
    return {
        "aim": f"p99 with chunks of {CHUNKS[0]} at most {FACTOR} undisturbed steps",
        "rows": rows,
        "reached": first["disturbed"]["p99"] <= FACTOR * first["undisturbed"]["p50"],
    }


def _chunk(setting: Setting, model: CausalLM, chunk: int) -> dict[str, Any]:
    streams, context = setting.pick(64, 3), setting.pick(512, 16)
    prompt = setting.pick(32768, 96)
    size = chunk if chunk == OFF else setting.pick(chunk, max(16, chunk // 64))
    before, budget = setting.pick(40, 8), UNCUT if chunk == OFF else size
    steps = 2 * before + -(-(prompt + streams * context) // budget) + streams
    bench = bench_of(
        model,
        setting.device,
        attention=setting.attention,
        max_total_tokens=streams * (context + steps + 192) + prompt + 512,
        overlap=True,
        chunked_prefill_size=size,
        max_running_requests=streams + 1,
        page_size=setting.pick(64, 16),
        enable_prefix_caching=False,
    )
    vocab_size = model.spec.vocab_size
    # A first prompt of the same size compiles the kernels of its shapes before the measurement.
    bench.submit(streams + 1, random_prompt(prompt, vocab_size, streams + 1), 2)
    bench.drain()
    for number in range(streams):
        bench.submit(number, random_prompt(context, vocab_size, number), steps)
    _until_all(bench, range(streams))
    for _ in range(before):
        bench.engine.step()
    finish(setting.device)
    arrived = bench.engine.clock.now()
    bench.submit(streams, random_prompt(prompt, vocab_size, streams), 2)
    _until_all(bench, [streams])
    first = bench.link.arrived[streams][0]
    bench.drain()
    calm = [gap for n in range(streams) for gap in _gaps(bench.link.arrived[n], 0.0, arrived)[4:]]
    disturbed = [gap for n in range(streams) for gap in _gaps(bench.link.arrived[n], arrived, first)]
    return {
        "chunk": size,
        "streams": streams,
        "prompt": prompt,
        "ttft_seconds": first - arrived,
        "undisturbed": _summary(calm),
        "disturbed": _summary(disturbed),
        "gaps_of_one_stream": _gaps(bench.link.arrived[0], 0.0, first),
    }


def _until_all(bench: Bench, requests: Sequence[int]) -> None:
    """Step until each of these requests has a token."""
    while not all(bench.link.arrived.get(number) for number in requests):
        bench.engine.step()


def _gaps(times: Sequence[float], after: float, until: float) -> list[float]:
    """Return the gaps between tokens of which the later came in the interval."""
    return [b - a for a, b in pairwise(times) if after < b <= until]


def _summary(gaps: Sequence[float]) -> dict[str, float]:
    ordered = sorted(gaps)
    return {
        "p50": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "max": ordered[-1],
        "gaps": len(ordered),
    }
