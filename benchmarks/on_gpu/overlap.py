"""Compares two steps in flight with one: tokens a second, idle time of the device, time of the host."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.on_gpu.clocks import finish, idle_share
from benchmarks.on_gpu.engines import Bench, bench_of
from benchmarks.on_gpu.models import SMALL
from benchmarks.on_gpu.setting import Setting, random_prompt
from sluice.models.base import CausalLM

BATCHES = (64, 256)
FASTER, IDLE = 1.15, 0.05


def measure(setting: Setting) -> dict[str, Any]:
    """Return the figures of each batch, synchronous and overlapped."""
    model = setting.model(SMALL)
    rows = [_compare(setting, model, setting.pick(batch, 4)) for batch in BATCHES[: setting.pick(2, 1)]]
    return {"aim": f"at least {FASTER}x the tokens/s, idle below {IDLE}, host below device", "batches": rows}


def _compare(setting: Setting, model: CausalLM, batch: int) -> dict[str, Any]:
    one, two = (_run(setting, model, batch, overlap=overlap) for overlap in (False, True))
    gain = two["tokens_per_second"] / one["tokens_per_second"]
    return {
        "batch": batch,
        "synchronous": one,
        "overlapped": two,
        "gain": gain,
        "reached": {
            "gain": gain >= FASTER,
            "idle": two["idle_share"] < IDLE,
            "host": two["host_seconds"] < two["device_seconds"],
        },
    }


def _run(setting: Setting, model: CausalLM, batch: int, *, overlap: bool) -> dict[str, Any]:
    prompt, outputs = setting.pick(128, 8), setting.pick(192, 8)
    bench = bench_of(
        model,
        setting.device,
        attention=setting.attention,
        max_total_tokens=batch * (prompt + outputs + 64),
        overlap=overlap,
        max_running_requests=batch,
        page_size=setting.pick(64, 16),
    )
    for number in range(batch):
        bench.submit(number, random_prompt(prompt, model.spec.vocab_size, number), outputs)
    bench.decode_all(batch)
    bench.engine.step()
    bench.forget()
    return _decodes(setting, bench, batch, steps=outputs - setting.pick(32, 5))


def _decodes(setting: Setting, bench: Bench, batch: int, *, steps: int) -> dict[str, Any]:
    """Run steps of decodes alone, with all requests running."""
    waited_before = len(bench.steps.times)
    began = time.perf_counter()
    for _ in range(steps):
        bench.engine.step()
    took = time.perf_counter() - began
    finish(setting.device)
    ended = bench.steps.times[waited_before:]
    tokens = sum(len(plan.chunks) for plan in bench.steps.plans[waited_before:])
    waited = sum(times.wait_seconds for times in ended)
    return {
        "steps": len(ended),
        "tokens_per_second": tokens / took,
        "step_seconds": took / steps,
        "host_seconds": (took - waited) / steps,
        "launch_seconds": sum(times.launch_seconds for times in ended) / len(ended),
        "device_seconds": sum(span.seconds for span in bench.compute.spans) / len(bench.compute.spans),
        "idle_share": idle_share(bench.compute.spans),
        "graphs": list(bench.graph_sizes),
        "batch": batch,
    }
