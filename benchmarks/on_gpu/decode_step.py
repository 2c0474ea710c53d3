"""Times a decode step of the large model, and compares it with reading its bytes at the rate of a copy."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.on_gpu.clocks import finish, idle_share
from benchmarks.on_gpu.engines import bench_of
from benchmarks.on_gpu.models import LARGE, num_parameters
from benchmarks.on_gpu.rates import copy_rate
from benchmarks.on_gpu.setting import Setting, random_prompt
from sluice.models.base import CausalLM
from sluice.types.footprint import KVSizes

BATCHES = (1, 64)
AIM = 0.75


def measure(setting: Setting) -> dict[str, Any]:
    """Return the seconds of a step on the device, and the share of the bandwidth, for each batch."""
    model, rate = setting.model(LARGE), copy_rate(setting)
    return {"aim": f"at least {AIM} of the bandwidth", "batches": [_batch(setting, model, rate, n) for n in BATCHES]}


def _batch(setting: Setting, model: CausalLM, rate: float, batch: int) -> dict[str, Any]:
    batch = min(batch, setting.pick(batch, 3))
    context, steps = setting.pick(1024, 40), setting.pick(60, 6)
    bench = bench_of(
        model,
        setting.device,
        attention=setting.attention,
        max_total_tokens=(context + 2 * steps + 192) * batch,
        overlap=True,
        max_running_requests=batch,
        page_size=setting.pick(64, 16),
    )
    for number in range(batch):
        bench.submit(number, random_prompt(context, model.spec.vocab_size, number), 2 * steps + 16)
    bench.decode_all(batch)
    for _ in range(8):
        bench.engine.step()
    finish(setting.device)
    bench.forget()
    for _ in range(steps):
        bench.engine.step()
    finish(setting.device)
    seconds = statistics.median(span.seconds for span in bench.compute.spans)
    ended = [times.ended_at for times in bench.steps.times]
    period = (ended[-1] - ended[0]) / (len(ended) - 1)
    # The embedding is looked up, not read; a tied one is read as the head.
    spec = model.spec
    read = num_parameters(model) - (0 if model.tied else spec.vocab_size * spec.hidden_size)
    held = sum(chunk.end for chunk in bench.steps.plans[len(bench.steps.plans) // 2].chunks)
    needed = (
        read * spec.dtype.itemsize
        + held * KVSizes(spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.dtype.itemsize).token_bytes
    )
    return {
        "batch": batch,
        "context": context,
        "graphs": list(bench.graph_sizes),
        "device_seconds": seconds,
        "step_seconds": period,
        "idle_share": idle_share(bench.compute.spans),
        "bytes": needed,
        "floor_seconds": needed / rate,
        "share_of_bandwidth": needed / rate / seconds,
        "reached": needed / rate / seconds >= AIM,
    }
