"""What steps take of a device beside weights and KV, seen by running the largest one before there is a KV pool."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from sluice.attention.backend import AttentionBackend
from sluice.config import ConfigError
from sluice.device.memory import CudaMemory
from sluice.device.queues import noop
from sluice.device.transport import transport_for
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.forwards import EagerForwards, Model
from sluice.runner.largest_step import EVERYTHING, StepLimits, largest_plan
from sluice.runner.logit_ops import LogitOps
from sluice.runner.runner import TorchRunner
from sluice.types import SamplingParams

GRAPH_BYTES = 16 << 20
"""What a CUDA graph takes beside the memory that its kernels write to."""


class StepTrial:
    """Runs steps that compute nothing of use, over a state with a single page.

    Args:
        backend: what attends.
        shape: of the state to come; the number of its pages does not matter.
    """

    def __init__(self, model: Model, shape: DeviceShape, backend: AttentionBackend, logit_ops: LogitOps) -> None:
        self._model = model
        self._shape = replace(shape, num_pages=1, scratch_pages=0)
        self._new_kv = partial(backend.new_kv, kernels=None)
        self._attention = backend.make(shape.device, None, noop)
        self._logit_ops = logit_ops

    def run(self, limits: StepLimits, sampling: SamplingParams = EVERYTHING) -> None:
        """Run the largest step within some limits, all of whose requests sample so."""
        device, attention = self._shape.device, self._attention
        state = DeviceState(self._shape, self._new_kv)
        runner = TorchRunner(
            self._model,
            state,
            attention,
            transport=transport_for(device, num_buffers=1),
            forwards=EagerForwards(self._model, state, attention),
            logit_ops=self._logit_ops,
        )
        runner.launch(largest_plan(limits, self._shape.page_size, sampling)).wait()


def cuda_memory(trial: StepTrial, limits: StepLimits, graph_rows: Sequence[int], device: torch.device) -> CudaMemory:
    """A GPU's memory, with what the largest step takes of it and CUDA graphs will.

    The second step, of decodes, asks for next to nothing: with it, all that is compiled at its first use has been.

    Args:
        graph_rows: numbers of rows that graphs will be captured for, ascending.

    Raises:
        ConfigError: there is not enough for such a step.
    """
    try:
        step = _peak(trial, limits, EVERYTHING, device)
        rows = graph_rows[-1] if graph_rows else 1
        decodes = _peak(trial, StepLimits(rows, rows, limits.context), SamplingParams(seed=0, top_p=0.9), device)
        graphs = decodes + GRAPH_BYTES * len(graph_rows) if graph_rows else 0
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        raise ConfigError(
            f"a step of {limits.tokens} tokens and {limits.rows} requests does not fit into {device}, of whose"
            f" {total >> 20} MiB the model and others leave {free >> 20}: lower --chunked-prefill-size,"
            f" --max-batch-tokens or --max-running-requests"
        ) from error
    free, total = torch.cuda.mem_get_info(device)
    return CudaMemory(total, free, step, graphs)


def _peak(trial: StepTrial, limits: StepLimits, sampling: SamplingParams, device: torch.device) -> int:
    """Bytes that torch's allocator took more during a step than before; all of them are given back."""
    torch.cuda.synchronize(device)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    try:
        trial.run(limits, sampling)
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_reserved(device) - before
    finally:
        gc.collect()  # a step's closures may hold each other, and its tensors
        torch.cuda.empty_cache()
