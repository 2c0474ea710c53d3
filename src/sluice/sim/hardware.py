"""Machines that one does not have: costs from what their makers promise. They are predicted, not measured.

A step costs its launch, and reading the weights; a token its products with the weights; a key that is read the bytes
of its KV; a query and a key their products. That is a roofline (Williams et al., "Roofline: An Insightful Visual
Performance Model", 2009) with the sum of both roofs in the place of the higher one, which errs on the slow side.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from sluice.assembly.resolve import resolve
from sluice.config import ConfigError, EngineConfig
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.machine import Machine
from sluice.sim.world import World
from sluice.types import Regime

NUMBER_BYTES = 2
"""Of weights and KV, in bfloat16."""
REACHED_FLOPS, REACHED_BANDWIDTH = 0.6, 0.8
"""Shares of what makers promise that good kernels reach. They are assumed."""
STEP_SECONDS = 0.002
"""Launching a step, planning it and sending its tokens. It is assumed."""
POOL_SHARE = 0.9
"""Of the memory behind the weights that holds KV."""


class Device(NamedTuple):
    """What its maker promises, of dense products in bfloat16."""

    flops: float
    """A second."""
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


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a dense model."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    weights: int
    """Numbers that each token is multiplied by."""
    stored: int
    """Numbers in memory."""
    max_model_len: int
    """Its context, in tokens."""

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values."""
        return 2 * self.layers * self.kv_heads * self.head_dim * NUMBER_BYTES

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the sizes in the `config.json` of a model.

        Raises:
            ConfigError: it cannot be read, or is not of a dense model with layers as Llama's.
        """
        path = folder / "config.json" if folder.is_dir() else folder
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"--model: cannot read the sizes of a model from {path}: {error}") from error
        if not isinstance(content, dict):
            raise ConfigError(f"--model: {path} holds no JSON object")
        if experts := next((name for name in content if "expert" in name), None):
            raise ConfigError(f"--model: {path} is of a mixture of experts ({experts}); --hardware takes dense models")
        if content.get("quantization_config") is not None:
            raise ConfigError(f"--model: {path} is of quantised weights; --hardware predicts those of 16 bits alone")
        size = {name: _size(path, content, name) for name in FIELDS}
        heads, hidden, vocab = size["num_attention_heads"], size["hidden_size"], size["vocab_size"]
        kv_heads = _size(path, content, "num_key_value_heads", heads)
        head_dim = _size(path, content, "head_dim", hidden // heads)
        layer = hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * size["intermediate_size"]
        weights = size["num_hidden_layers"] * layer + vocab * hidden
        stored = weights if content.get("tie_word_embeddings") else weights + vocab * hidden
        name = path.parent.resolve().name
        context = _context(path, content, size["max_position_embeddings"])
        return cls(name, size["num_hidden_layers"], heads, kv_heads, head_dim, weights, stored, context)


FIELDS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


def _context(path: Path, content: Mapping[str, Any], positions: int) -> int:
    """Return the model's context. YaRN configs often give the original one in `max_position_embeddings`."""
    rope = content.get("rope_scaling") or content.get("rope_parameters")
    if not isinstance(rope, dict) or "yarn" not in (rope.get("rope_type"), rope.get("type")):
        return positions
    factor = rope.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < math.inf:
        raise ConfigError(f"--model: {path}: the factor of YaRN must be a number of at least 1, got {factor!r}")
    return max(positions, int(_size(path, rope, "original_max_position_embeddings", positions) * factor))


def _size(path: Path, content: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = content.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise ConfigError(f"--model: {path}: {name} must be an integer of at least 1, got {value!r}")
    return value


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
    """Return a machine of this kind that serves a model, with all options left open.

    Raises:
        ConfigError: an unknown machine or model, or one that is too large for it.
    """
    device, sizes = parse_device(text), ModelSizes.read(model)
    room = POOL_SHARE * (device.memory - sizes.stored * NUMBER_BYTES)
    config = resolve(EngineConfig(), "cuda").config
    page_size, depth = config.cache.page_size, config.scheduler.depth
    assert page_size is not None, "resolved"
    assert depth is not None, "resolved"
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
        setup=SchedulerSetup(config.scheduler.limits(), pages, page_size, config.cache.enable_prefix_caching),
        depth=depth,
        world=World(dict.fromkeys(Regime, _costs(device, sizes))),
        token_bytes=sizes.token_bytes,
        max_model_len=sizes.max_model_len,
    )


def _costs(device: Device, sizes: ModelSizes) -> tuple[float, ...]:
    """Return the microseconds of a step, a token, a row, a key, a pair and a loaded byte."""
    flops, read = REACHED_FLOPS * device.flops / 1e6, REACHED_BANDWIDTH * device.bandwidth / 1e6
    return (
        1e6 * STEP_SECONDS + sizes.weights * NUMBER_BYTES / read,
        2 * sizes.weights / flops,
        0.0,
        sizes.token_bytes / read,
        4 * sizes.layers * sizes.heads * sizes.head_dim / flops,
        1 / 25e3,  # PCI Express 4, 25 GB/s
    )
