"""Builds engines over random models as `sluice.assembly.load` does, with marks around the device's work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.on_gpu.clocks import MarkedQueue, mark_of
from sluice.assembly.graphs import captured_graphs, graph_rows
from sluice.assembly.resolve import resolve
from sluice.assembly.small_operations import use_triton
from sluice.attention.base import Attention
from sluice.attention.select import backend_named
from sluice.config import EngineConfig
from sluice.device.queues import cuda_queues, inline_queues, pinned_host_buffer, plain_host_buffer
from sluice.device.transport import Transport, staged_transport
from sluice.engine.clock import WallClock
from sluice.engine.engine import Engine
from sluice.engine.messages import Submit
from sluice.engine.trace import StepTimes
from sluice.models.base import CausalLM, no_report
from sluice.models.ops import Ops
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.forwards import EagerForwards, Forwards
from sluice.runner.graphs import DecodeGraphs, graph_sizes
from sluice.runner.logit_ops import TORCH_LOGIT_OPS
from sluice.runner.runner import TorchRunner
from sluice.scheduler.setup import SchedulerSetup
from sluice.testing import ManualLink
from sluice.testing.device import StaticAttention, recorded_steps
from sluice.types import BatchPlan, BatchResult, SamplingParams

STATIC = "static"
"""The attention of a trial run on a CPU, which graphs can capture."""
REFERENCE = "reference"
"""The attention in plain torch. All other operations are then in plain torch, too."""


@dataclass(slots=True)
class Steps:
    """A trace sink that keeps the host's time of each step."""

    plans: list[BatchPlan] = field(default_factory=list)
    times: list[StepTimes] = field(default_factory=list)
    latest: None = None

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        if result is None:
            raise RuntimeError(f"step {plan.step} failed")
        self.plans.append(plan)
        self.times.append(times)

    def close(self) -> None:
        """Do nothing: the times stay."""


class TimedLink(ManualLink):
    """A manual link that notes when each request's tokens come."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = WallClock()
        self.arrived: dict[int, list[float]] = {}

    def send(self, outputs: Sequence[Any]) -> None:
        now = self._clock.now()
        for output in outputs:
            if output.finish_reason is not None and output.finish_reason.is_failure:
                raise RuntimeError(f"request {output.request_id} failed: {output.error}")
            self.arrived.setdefault(output.request_id, []).extend([now] * len(output.token_ids))
        super().send(outputs)


@dataclass(frozen=True, slots=True)
class Bench:
    """An engine that the caller steps."""

    engine: Engine
    link: TimedLink
    steps: Steps
    compute: MarkedQueue
    graph_sizes: tuple[int, ...]

    def submit(self, request_id: int, prompt: Sequence[int], max_tokens: int, **changes: Any) -> None:
        """Submit a greedy request that no token ends, with changes of its sampling parameters."""
        params = SamplingParams(**{"temperature": 0.0, "seed": request_id, "max_tokens": max_tokens, **changes})
        self.link.put(Submit(request_id, tuple(prompt), params))

    def drain(self) -> None:
        """Step until the engine is idle."""
        self.engine.step()
        while not self.engine.is_idle:
            self.engine.step()

    def decode_all(self, requests: int) -> None:
        """Step until `count` requests have a token each, and only decodes are planned."""
        while len(self.link.arrived) < requests:
            self.engine.step()

    def forget(self) -> None:
        """Drop all times so far. The device must be idle."""
        for noted in (self.steps.plans, self.steps.times, self.compute.spans):
            noted.clear()


def bench_of(
    model: CausalLM,
    device: torch.device,
    *,
    attention: str,
    max_total_tokens: int,
    graphs: bool = True,
    overlap: bool = False,
    **options: Any,
) -> Bench:
    """Build an engine over empty state of its own.

    Args:
        attention: a backend of `sluice.attention.select`, or `STATIC`.
        max_total_tokens: size of the KV pool.
        graphs: replay steps that only decode.
        options: further engine options.
    """
    given: Mapping[str, Any] = {"max_total_tokens": max_total_tokens, "enable_overlap": overlap, **options}
    is_cuda = device.type == "cuda"
    if is_cuda and not graphs:
        given = {**given, "disable_cuda_graph": True}
    config = resolve(EngineConfig.from_options(given), device.type).config
    depth, page_size = config.scheduler.depth, config.cache.page_size
    running = config.scheduler.max_running_requests
    assert depth is not None, f"not resolved: {config}"
    assert page_size is not None, f"not resolved: {config}"
    assert running is not None, f"not resolved: {config}"
    if is_cuda:
        sizes, _ = graph_rows(config, model.spec, device, backend_named(attention))
    else:
        sizes = graph_sizes(running) if graphs and attention == STATIC else ()
    state = DeviceState(_shape(model, device, max_total_tokens // page_size, page_size, running, bool(sizes)))
    attending: Attention = StaticAttention()
    if attention != STATIC:
        attending = backend_named(attention).make(device, None, lambda: None)
    logit_ops = TORCH_LOGIT_OPS
    if is_cuda and attention != REFERENCE:
        logit_ops = use_triton(model)
    else:
        model.use(Ops())
    transport, compute = _transport(device, depth)
    forwards: Forwards = EagerForwards(model, state, attending)
    if sizes and is_cuda:
        forwards = captured_graphs(forwards, model, state, attending, transport, sizes, lambda: None, no_report)
    elif sizes:
        forwards = DecodeGraphs(forwards, model, state, attending, recorded_steps, sizes)
        transport.queues.compute.run(forwards.capture_all)
    compute.spans.clear()
    runner = TorchRunner(model, state, attending, transport=transport, forwards=forwards, logit_ops=logit_ops)
    setup = SchedulerSetup(
        limits=config.scheduler.limits(),
        num_pages=state.shape.num_pages,
        page_size=page_size,
        prefix_caching=config.cache.enable_prefix_caching,
    )
    link, steps = TimedLink(), Steps()
    engine = Engine(setup.build(), runner, link, depth=depth, trace=steps)
    return Bench(engine, link, steps, compute, sizes)


def _transport(device: torch.device, num_buffers: int) -> tuple[Transport, MarkedQueue]:
    queues, buffers = inline_queues(), plain_host_buffer
    if device.type == "cuda":
        queues, buffers = cuda_queues(device), pinned_host_buffer
    compute = MarkedQueue(queues.compute, mark_of(device))
    return staged_transport(queues._replace(compute=compute), device, buffers, num_buffers), compute


def _shape(
    model: CausalLM, device: torch.device, num_pages: int, page_size: int, running: int, scratch: bool
) -> DeviceShape:
    spec = model.spec
    return DeviceShape.of(
        spec,
        device,
        num_slots=running,
        num_pages=num_pages,
        page_size=page_size,
        row_pages=min(num_pages, -(-spec.max_model_len // page_size)),
        scratch_pages=int(scratch),
    )
