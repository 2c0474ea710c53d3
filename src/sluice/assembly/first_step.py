"""A step at the start that tells whether a model computes numbers at all, before requests depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from sluice.assembly.pacing import FIRST_STEP
from sluice.engine.protocols import Runner
from sluice.models.checkpoint import CheckpointError
from sluice.models.formats.gguf_file import tensors_of
from sluice.models.formats.gguf_open import open_gguf
from sluice.models.weights import GGUF, stored_tensors
from sluice.scheduler.setup import SchedulerSetup
from sluice.types import SamplingParams, Submit

AT_ONCE = 1 << 22
"""Numbers that are looked at at once."""


def check_first_step(setup: SchedulerSetup, runner: Runner, folder: Path, *, embeds: bool) -> None:
    """Compute the first token of a request. Later requests overwrite the slot and the page that were used.

    Args:
        setup: of the engine's scheduler.
        runner: with nothing in flight.
        folder: of the checkpoint, in which the cause is looked for.
        embeds: the model has no head.

    Raises:
        CheckpointError: what it computes is NaN or infinite. The message names a weight with such numbers.
    """
    limits = replace(setup.limits, max_queued_requests=0, max_queued_tokens=0)
    tiers = replace(setup.tiers, host_pages=0, disk_pages=0)
    scheduler = replace(setup, limits=limits, prefix_caching=False, tiers=tiers, offload=None).build()
    scheduler.state.step = FIRST_STEP
    sampling = SamplingParams(max_tokens=1, temperature=0.0, seed=0)
    scheduler.add(Submit(0, (0,), sampling, embeds=embeds))
    while (plan := scheduler.schedule()) is not None:
        result = runner.launch(plan).wait()
        if result.errors:
            raise CheckpointError(
                f"the model computes NaN or infinite numbers for the first token that it is given: {_cause(folder)}"
            )
        scheduler.commit(plan, result)


def _cause(folder: Path) -> str:
    for name, values in _weights(folder):
        for part in values.flatten().split(AT_ONCE):
            if part.is_floating_point() and not part.float().isfinite().all():
                return f"its weight {name} holds such numbers"
    return "its weights do not, so the dtype may have too little room (--dtype float32)"


def _weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    if not (folder / GGUF).exists():
        for stored in stored_tensors(folder):
            assert isinstance(stored.value, torch.Tensor), "as they are in the file"
            yield stored.name, stored.value
        return
    for tensor in tensors_of(open_gguf((folder / GGUF).resolve())):
        yield tensor.name, tensor.dequantized(torch.float32)
