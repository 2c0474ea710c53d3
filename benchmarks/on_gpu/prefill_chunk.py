"""Times chunks of a long prompt in the large model, and compares them with the rate of a large product."""

from __future__ import annotations

from typing import Any

from benchmarks.on_gpu.clocks import finish
from benchmarks.on_gpu.engines import bench_of
from benchmarks.on_gpu.models import LARGE, num_parameters
from benchmarks.on_gpu.rates import matmul_rate
from benchmarks.on_gpu.setting import Setting, random_prompt
from sluice.models.base import CausalLM

AIM = 0.6


def flops(model: CausalLM, start: int, length: int) -> float:
    """Return the FLOP of a chunk without logits: products with the weights, and attention to the tokens before."""
    spec = model.spec
    tables = spec.vocab_size * spec.hidden_size * (1 if model.tied else 2)
    pairs = length * start + length * (length + 1) / 2
    return 2 * (num_parameters(model) - tables) * length + 4 * spec.num_layers * spec.num_heads * spec.head_dim * pairs


def measure(setting: Setting) -> dict[str, Any]:
    """Return each chunk's seconds on the device, and its rate as a share of the product's."""
    model, rate = setting.model(LARGE), matmul_rate(setting)
    chunk, chunks = setting.pick(2048, 32), 8
    bench = bench_of(
        model,
        setting.device,
        attention=setting.attention,
        max_total_tokens=chunk * (chunks + 1),
        chunked_prefill_size=chunk,
        page_size=setting.pick(64, 16),
        enable_prefix_caching=False,
        max_running_requests=4,
    )
    length = chunk * chunks
    bench.submit(0, random_prompt(length, model.spec.vocab_size, 0), 1)
    bench.drain()  # compiles the kernels
    finish(setting.device)
    bench.forget()
    bench.submit(1, random_prompt(length, model.spec.vocab_size, 1), 1)
    bench.drain()
    finish(setting.device)
    rows = []
    for plan, span in zip(bench.steps.plans, bench.compute.spans, strict=True):
        (only,) = plan.chunks
        share = flops(model, only.start, only.length) / span.seconds / rate
        rows.append({"start": only.start, "tokens": only.length, "seconds": span.seconds, "share_of_matmul": share})
    return {
        "aim": f"at least {AIM} of the measured matmul rate, first chunk",
        "chunk": chunk,
        "matmul_flops_per_second": rate,
        "rows": rows,
        "reached": rows[0]["share_of_matmul"] >= AIM,
    }
