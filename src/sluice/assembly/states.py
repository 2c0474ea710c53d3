"""Recurrent states of a model: their memory, what the scheduler is told of them, and what is refused beside them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sluice.attention.states import BLOCK, StateSpec
from sluice.config import ConfigError, EngineConfig, MemoryShortage
from sluice.config.speculative import RUNNER_ALGORITHMS
from sluice.device.memory import Room
from sluice.models.spec import ModelSpec
from sluice.runner.device_state import DeviceShape
from sluice.types import StateLimits

LOGGER = logging.getLogger("sluice.engine")
SLOTS_SHARE = 0.5
"""Share of the room beside the weights that states of slots take at most."""
RECORDS_SHARE = 1 / 3
"""Share of what they leave that records take at most: half of what keys and values take."""
LEAST_RECORDS = 4
"""Records beside a pool whose size the user gave, however small it is, if there is room for them."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Bytes of the states of all layers."""

    slot_bytes: int
    """Of a running request."""
    record_bytes: int

    @classmethod
    def of(cls, state: StateSpec, layers: int, reach: int) -> StateSizes:
        """Return the sizes of so many layers' states."""
        return cls(layers * state.slot_bytes(reach), layers * state.record_bytes)


@dataclass(frozen=True, slots=True)
class StateMemory:
    """What states take of the memory beside the weights."""

    num_slots: int
    num_records: int
    room: Room
    """What they leave to keys and values."""
    reasons: Mapping[str, str]
    """Why it is so, by option."""


def state_memory(
    config: EngineConfig, shape: DeviceShape, token_bytes: int, room: Room, *, may_lower: bool
) -> StateMemory:
    """Decide on how many states and records a device holds.

    Args:
        shape: with as many slots as the options ask for; of a model with states.
        token_bytes: of the keys and values of a position.
        room: what is left beside the weights.
        may_lower: whether there may be fewer slots than that: the user gave no number of requests.

    Raises:
        MemoryShortage: there is no room for one slot, or for as many as the user asked for.
    """
    assert shape.state is not None, f"{shape} has no states"
    sizes = StateSizes.of(shape.state, shape.num_states, shape.reach)
    asked = config.cache.max_total_tokens
    given = 0 if asked is None else asked // shape.page_size * shape.page_size * token_bytes
    most = int(room.open_bytes * SLOTS_SHARE) if asked is None else max(0, room.most_bytes - given)
    padding = 1 if shape.scratch_pages else 0  # a slot for rows that only pad a step
    fit = most // sizes.slot_bytes - padding
    slots = min(shape.num_slots, fit)
    if fit < 1 or (slots < shape.num_slots and not may_lower):
        wanted = "a request" if may_lower else f"{shape.num_slots} requests"
        raise MemoryShortage(
            f"no room for the recurrent states of {wanted}: those of one take {_mib(sizes.slot_bytes)} MiB,"
            f" and {room.reason}, of which states may take {_mib(most)} MiB; free some memory, or set a smaller"
            f" --max-running-requests{'' if asked is None else ' or --max-total-tokens'}"
        )
    why = {}
    if slots < shape.num_slots:
        why["max_running_requests"] = (
            f"as many recurrent states as fit into {_mib(most)} MiB, each of {_mib(sizes.slot_bytes)} MiB"
        )
    taken = (slots + padding) * sizes.slot_bytes
    rest = max(0, (room.open_bytes if asked is None else room.most_bytes - given) - taken)
    records = 0
    if config.cache.enable_prefix_caching:
        records = _records(replace(shape, num_slots=slots), sizes, token_bytes, rest, asked)
        if not records:
            why["enable_prefix_caching"] = (
                f"no room for a record of recurrent states, which takes {_mib(sizes.record_bytes)} MiB and is behind"
                f" {_grid(shape)} tokens at least"
            )
    taken += records * sizes.record_bytes
    LOGGER.info(
        "recurrent states: %d slots of %s MiB and %d records of %s MiB",
        slots,
        _mib(sizes.slot_bytes),
        records,
        _mib(sizes.record_bytes),
    )
    left = replace(room, open_bytes=max(0, room.open_bytes - taken), most_bytes=max(0, room.most_bytes - taken))
    states = f"{slots} recurrent states take {_mib(slots * sizes.slot_bytes)} MiB"
    if records:
        states += f" and {records} records of them {_mib(records * sizes.record_bytes)} MiB"
    return StateMemory(slots, records, replace(left, reason=f"{room.reason}; {states}"), why)


def _records(shape: DeviceShape, sizes: StateSizes, token_bytes: int, rest: int, asked: int | None) -> int:
    """Return how many records there are: as many as their share of the memory holds, but no more than the pool has
    places for.

    Args:
        shape: with as many slots as there will be.
        rest: bytes beside the states of slots, and beside the pool, if the user gave its size.
        asked: that size, in tokens.
    """
    page_bytes = token_bytes * shape.page_size
    if asked is None:
        records = int(rest * RECORDS_SHARE) // sizes.record_bytes
        pages = min((rest - records * sizes.record_bytes) // page_bytes, shape.num_slots * shape.row_pages)
    else:
        pages, most = asked // shape.page_size, rest // sizes.record_bytes
        records = min(most, max(LEAST_RECORDS, pages * page_bytes // 2 // sizes.record_bytes))
    return min(records, pages * shape.page_size // _grid(shape))


def _grid(shape: DeviceShape) -> int:
    """Return the tokens between two places at which a record may be made."""
    return StateLimits(BLOCK).grid(shape.page_size)


def with_slots(config: EngineConfig, slots: int, reasons: Mapping[str, str]) -> EngineConfig:
    """Return options with as many running requests as a model's states leave, and without a prefix cache if there is no
    room for what it needs of them.

    Args:
        slots: that there are.
        reasons: as `StateMemory.reasons`.
    """
    scheduler = config.scheduler
    assert scheduler.max_running_requests is not None, f"not resolved: {config}"
    if slots < scheduler.max_running_requests:
        partial = None if scheduler.max_partial_prefills is None else min(slots, scheduler.max_partial_prefills)
        config = replace(config, scheduler=replace(scheduler, max_running_requests=slots, max_partial_prefills=partial))
    if "enable_prefix_caching" in reasons:
        config = replace(config, cache=replace(config.cache, enable_prefix_caching=False))
    return config


def state_limits(shape: DeviceShape, token_bytes: int) -> StateLimits | None:
    """Return what a scheduler knows of the states of a model; None if it has none.

    Args:
        token_bytes: of the keys and values of a position, half of which records of long contexts take at most.
    """
    if shape.state is None:
        return None
    record = StateSizes.of(shape.state, shape.num_states, shape.reach).record_bytes
    return StateLimits(BLOCK, shape.num_records, -(-2 * record // max(1, token_bytes)))


def refuse_beside_states(config: EngineConfig, spec: ModelSpec) -> None:
    """Refuse what is not done yet for a model with recurrent states.

    Raises:
        ConfigError: an option that cannot be honoured, by name and value.
    """
    if spec.state is None:
        return
    of_model = f"is not supported for {spec.architecture}, whose layers have recurrent states"
    cache = config.cache
    for name, value in (("--kv-host-bytes", cache.kv_host_bytes), ("--kv-disk", cache.kv_disk)):
        if value is not None:
            raise ConfigError(f"{name} {value} {of_model}: they stay on the device. Leave it out")
    algorithm = config.speculative.speculative_algorithm
    if algorithm in RUNNER_ALGORITHMS:
        raise ConfigError(f"--speculative-algorithm {algorithm} {of_model}: take ngram, or none")


def _mib(count: int) -> str:
    return f"{count / MIB:.1f}"
