"""Machines that one does not have: costs from what their makers promise. They are predicted, not measured.

A step costs its launch, and reading the weights; a token its products with the weights; a key that is read the bytes
of its KV; a query and a key their products. That is a roofline (Williams et al., "Roofline: An Insightful Visual
Performance Model", 2009) with the sum of both roofs in the place of the higher one, which errs on the slow side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sluice.assembly.resolve import resolve
from sluice.config import ConfigError, EngineConfig
from sluice.models.catalog.gguf_sizes import GGUFSizes
from sluice.models.catalog.read_sizes import read_sizes
from sluice.models.catalog.sizes import NUMBER_BYTES, ModelSizes
from sluice.models.checkpoint import CheckpointError
from sluice.models.formats.gguf_folder import gguf_at
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.machine import Machine
from sluice.sim.world import World
from sluice.types import DENSE, ExpertCounts, Regime

REACHED_FLOPS, REACHED_BANDWIDTH = 0.6, 0.8
"""Shares of what makers promise that good kernels reach. They are assumed."""
STEP_SECONDS = 0.002
"""Launching a step, planning it and sending its tokens. It is assumed."""
POOL_SHARE = 0.9
"""Share of the memory left by the weights that holds KV."""


class Device(NamedTuple):
    """What its maker promises, of dense products in bfloat16."""

    flops: float
    """Floating-point operations a second."""
    bandwidth: float
    """Bytes a second."""
    memory: float
    """Bytes."""


DEVICES: Mapping[str, Device] = {
    "h200": Device(989e12, 4.8e12, 141e9),
    "h100": Device(989e12, 3.35e12, 80e9),
    "a100": Device(312e12, 2.04e12, 80e9),
    "l40s": Device(362e12, 0.864e12, 48e9),
    "l4": Device(121e12, 0.3e12, 24e9),
    "mi300x": Device(1307e12, 5.3e12, 192e9),
}


def parse_device(text: str) -> Device:
    """Read a machine: a known name, or "FLOPS,BANDWIDTH,MEMORY" as numbers.

    Raises:
        ConfigError: anything else.
    """
    if (known := DEVICES.get(text.lower())) is not None:
        return known
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != len(Device._fields) or not all(0 < each < math.inf for each in numbers):
        raise ConfigError(
            f"--hardware takes {', '.join(DEVICES)}, or FLOPS,BANDWIDTH,MEMORY, such as 989e12,3.35e12,80e9, got"
            f" {text!r}"
        )
    return Device(*numbers)


def predicted_machine(text: str, model: Path) -> Machine:
    """Return a machine of this kind that serves a model in 16 bits, with all options left open.

    Args:
        model: a folder, a file like a `config.json`, or a GGUF file.

    Raises:
        ConfigError: an unknown machine or model, or one that is too large for it.
    """
    device = parse_device(text)
    try:
        file = gguf_at(model)
        sizes = read_sizes(model) if file is None else GGUFSizes.read(file).sizes
    except CheckpointError as error:
        raise ConfigError(f"--model: {error}; --hardware takes models in 16 bits") from error
    room = POOL_SHARE * (device.memory - sizes.stored * NUMBER_BYTES)
    config = resolve(EngineConfig(), "cuda").config
    page_size, depth = config.cache.page_size, config.scheduler.depth
    assert page_size is not None, "resolved"
    assert depth is not None, "resolved"
    counts = DENSE if sizes.experts is None else ExpertCounts(sizes.experts.count, sizes.experts.chosen)
    limits = replace(config.scheduler.limits(), experts=counts)
    pages = int(room // (page_size * sizes.token_bytes))
    if pages < 1:
        raise ConfigError(
            f"{sizes.name} has {sizes.stored * NUMBER_BYTES / 1e9:.0f} GB of weights and does not fit into the"
            f" {device.memory / 1e9:.0f} GB of --hardware {text}"
        )
    return Machine(
        model=sizes.name,
        name=f"{text}: {device.flops / 1e12:.0f} TFLOP/s, {device.bandwidth / 1e9:.0f} GB/s",
        is_measured=False,
        device="cuda",
        setup=SchedulerSetup(limits, pages, page_size, config.cache.enable_prefix_caching),
        depth=depth,
        world=World(dict.fromkeys(Regime, _costs(device, sizes))),
        token_bytes=sizes.token_bytes,
        max_model_len=sizes.max_model_len,
    )


def _costs(device: Device, sizes: ModelSizes) -> tuple[float, ...]:
    """Return the microseconds of a step, a token, a row, a key, a pair, a loaded byte and an expert of each layer."""
    flops, read = REACHED_FLOPS * device.flops / 1e6, REACHED_BANDWIDTH * device.bandwidth / 1e6
    experts = sizes.experts
    expert = 0 if experts is None else experts.layers * experts.parameters
    always = sizes.weights - (0 if experts is None else experts.chosen * expert)
    return (
        1e6 * STEP_SECONDS + always * NUMBER_BYTES / read,
        2 * sizes.weights / flops,
        0.0,
        sizes.token_bytes / read,
        4 * sizes.layers * sizes.heads * sizes.head_dim / flops,
        1 / 25e3,  # PCI Express 4, 25 GB/s
        expert * NUMBER_BYTES / read,
    )
