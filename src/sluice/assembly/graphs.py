"""Whether steps that only decode are captured and replayed, and for which numbers of rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import torch

from sluice.assembly.ranks import layout_of
from sluice.attention.backend import AttentionBackend
from sluice.attention.base import Attention
from sluice.config import ConfigError, EngineConfig, MemoryShortage
from sluice.device.transport import Transport
from sluice.models.native_states import has_kernel
from sluice.models.spec import ModelSpec
from sluice.runner.device_state import DeviceState
from sluice.runner.forwards import Forwards, Model
from sluice.runner.graphs import CudaCapture, DecodeGraphs, graph_sizes

LOGGER = logging.getLogger("sluice.engine")
MOST_ROWS = 256
"""Most rows of a graph by default: with more, a step's kernels take longer than their launches."""


def graph_rows(
    config: EngineConfig, spec: ModelSpec, device: torch.device, backend: AttentionBackend
) -> tuple[tuple[int, ...], str]:
    """Return the numbers of rows to capture CUDA graphs for, ascending, and why these. None of them: no graphs.

    Args:
        config: resolved.

    Raises:
        ConfigError: `cuda_graph_max_bs` was set and there can be no graphs.
    """
    most, running = config.model.cuda_graph_max_bs, config.scheduler.max_running_requests
    assert running is not None, f"not resolved: {config}"
    problem = _problem(config, spec, device, backend)
    if problem is not None:
        if most is not None:
            raise ConfigError(f"--cuda-graph-max-bs {most} has no effect: {problem}")
        return (), f"no graphs: {problem}"
    if most is not None and most > running:
        raise ConfigError(f"--cuda-graph-max-bs must be at most --max-running-requests {running}, got {most}")
    sizes = graph_sizes(most or min(running, MOST_ROWS))
    return sizes, f"graphs of {len(sizes)} sizes, up to {sizes[-1]} rows"


def _problem(config: EngineConfig, spec: ModelSpec, device: torch.device, backend: AttentionBackend) -> str | None:
    """Return why there can be no graphs, or None."""
    if device.type != "cuda":
        return f"they need --device cuda, got {device.type}"
    if config.model.disable_cuda_graph:
        return "--disable-cuda-graph"
    if layout_of(config.parallel).size > 1:
        return "steps of several ranks are not captured"
    if backend.capturable_on != device.type:
        return f"the {backend.name} attention cannot be captured"
    if spec.diffusion is not None:
        return "a pass over a block is no decode"
    if spec.state is not None:
        return "recurrent states are found by their positions on the host"
    if spec.implementation != "native":
        return f"the {spec.implementation} implementation of the model may read values on the host"
    return None


def kernels_compute(backend: AttentionBackend, spec: ModelSpec) -> bool:
    """Return whether compiled CPU kernels do all that is large, so that decodes are captured as their calls.

    In other dtypes torch multiplies, and Python's share of a step is small.
    """
    are_large = backend.needs_kernels and spec.implementation == "native" and spec.dtype == torch.bfloat16
    return are_large and (spec.state is None or has_kernel(spec.state))


def captured_graphs(
    eager: Forwards,
    model: Model,
    state: DeviceState,
    attention: Attention,
    transport: Transport,
    sizes: Sequence[int],
    busy: Callable[[], None],
    report: Callable[[int, int], None],
    *,
    with_adapters: bool = False,
) -> DecodeGraphs:
    """Capture graphs of all sizes over an empty state.

    Args:
        with_adapters: the model has some.
        busy: called before each replay.
        report: called with the number of graphs that are captured, and that of all.

    Raises:
        MemoryShortage: there is no memory left for them.
    """
    device = state.shape.device
    began, free = time.monotonic(), torch.cuda.mem_get_info(device)[0]
    graphs = DecodeGraphs(
        eager,
        model,
        state,
        attention,
        CudaCapture(device),
        sizes,
        busy=busy,
        with_adapters=with_adapters,
    )
    torch.cuda.synchronize(device)  # the compute queue is about to read what the default one fills
    try:
        transport.queues.compute.run(lambda: graphs.capture_all(report))
    except torch.OutOfMemoryError as error:
        raise MemoryShortage(
            f"no memory left on {device} to capture CUDA graphs of up to {sizes[-1]} rows: set a smaller"
            f" --max-total-tokens or --cuda-graph-max-bs, or --disable-cuda-graph"
        ) from error
    torch.cuda.synchronize(device)
    took = (free - torch.cuda.mem_get_info(device)[0]) / (1 << 20)
    LOGGER.info("captured %d CUDA graphs in %.1f s, %.0f MiB", len(sizes), time.monotonic() - began, took)
    return graphs
