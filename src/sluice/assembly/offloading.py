"""From options to offloaded requests: limits and costs for the scheduler, and what the runner serves them with."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

import torch

from sluice.assembly.sparse import Imported, QuestSizes, WindowSizes, refuse_late_layers, sparse_sizes
from sluice.assembly.tiers import OpenTiers
from sluice.attention.base import Attention, PagedKV
from sluice.config import ConfigError, MemoryShortage, OffloadConfig, flag
from sluice.device.queues import CudaQueue, InlineQueue
from sluice.device.transport import Transport
from sluice.kernels.cpu.library import Kernels
from sluice.models.spec import ModelSpec
from sluice.runner.device_state import DeviceState, KVMaker
from sluice.runner.forwards import Model
from sluice.runner.offload.loaders import DiskLoader, Loader, QueueLoader, Report
from sluice.runner.offload.native_upper_bounds import NativeUpperBounds
from sluice.runner.offload.offloader import Offloader, RingShape
from sluice.runner.offload.quest import Quest, torch_upper_bounds
from sluice.runner.offload.sparse import Full, SparsePolicy, Window
from sluice.types import Group, OffloadLimits, Tier
from sluice.types.footprint import KVSizes, OffloadSizes

CHUNK_TOKENS = {"cpu": 512, "cuda": 2048}
"""Tokens of an offloaded chunk: more than of others, since each loads all that is before it, and its work is spread
over steps by what it costs."""
FLOPS_PER_BYTE = {"cpu": 150.0, "cuda": 8000.0}
"""FLOP of matrix products that a device does while it loads one byte of a stored page: some 300 GFLOP/s beside 2 GB/s
that one thread reads and checks, and 200 TFLOP/s beside 25 GB/s."""
DECODE_LAG = 4
"""Most full pages before a decoded token that may not be stored yet where a sparse policy selects. Each is attended to,
and with fewer of them a token waits for a slow tier more often."""
MIN_WINDOW_PAGES = 2
"""Least pages of a window: one of the chunk, and one on its way to the tier."""
LEAST_PART_TOKENS = 2048
"""Least tokens of the part of a block that a work item attends to: fewer take longer to plan than to attend to."""
ATTENTION_COST = {"cpu": 2.0, "cuda": 1.5}
"""Time of a FLOP of attention, in FLOPs of matrix products."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What offloaded work costs, in tokens of a step's budget."""

    pair: float
    """Cost of a query and a key in one layer."""
    load: float
    """Cost of loading the KV of one token in one layer."""


FREE = Costs(0.0, 0.0)


def costs_of(spec: ModelSpec, kv: KVSizes, weights_bytes: int, device_type: str) -> Costs:
    """Return the costs for a model, where an ordinary token is a product with every weight."""
    of_token = 2 * weights_bytes / spec.weight_bytes
    of_pair = 4 * spec.num_heads * spec.head_dim * ATTENTION_COST[device_type]
    return Costs(of_pair / of_token, kv.layer_token_bytes * FLOPS_PER_BYTE[device_type] / of_token)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the limits of offloaded requests follow from, besides their options."""

    tier: Tier
    page_bytes: int
    page_size: int
    num_pages: int
    """Pages of the device's pool."""
    num_layers: int
    step_tokens: int
    """Tokens of a step's prefill budget."""
    device_type: str


def offload_limits(config: OffloadConfig, sizes: Sizes, costs: Costs) -> OffloadLimits | None:
    """Return the scheduler's limits, or None if the pool is too small for a window.

    Raises:
        ConfigError: the sparse policy selects in no layer, or cannot be imported.
    """
    assert config.sparse_policy is not None, f"not resolved: {config}"
    policy = policy_of(config, sizes.page_size)
    refuse_late_layers(config.sparse_policy, policy.wide_layers, sizes.num_layers)
    assert config.ring_blocks is not None and config.ring_block_tokens is not None, f"not resolved: {config}"
    ring = RingShape(config.ring_blocks, config.ring_block_tokens // sizes.page_size)
    most = CHUNK_TOKENS[sizes.device_type]
    if sizes.device_type == "cuda":
        most = min(most, sizes.step_tokens)  # a GPU's pool leaves room for steps of these
    pages = max(1, min(most // sizes.page_size, sizes.num_pages // 4))
    if sizes.num_pages < MIN_WINDOW_PAGES:
        return None
    block = ring.block_pages * sizes.page_size
    of_chunk, of_token = pages * sizes.page_size * costs.pair, max(costs.pair, costs.load)
    group = _group_of(ring, sizes.page_size, sizes.step_tokens, block * of_chunk)
    pool = sizes.num_pages * sizes.page_size
    lag = 0 if isinstance(policy, Full) else min(DECODE_LAG, pages)
    return OffloadLimits(
        above=pool if config.offload_above is None else min(config.offload_above, pool),
        tier=sizes.tier,
        page_bytes=sizes.page_bytes,
        chunk_tokens=pages * sizes.page_size,
        window_pages=2 * pages,
        num_layers=sizes.num_layers,
        block_pages=ring.block_pages,
        group_blocks=group.blocks,
        block_parts=group.parts,
        decode_group_blocks=_group_of(ring, sizes.page_size, sizes.step_tokens, block * of_token).blocks,
        decode_blocks=0 if policy.most_pages is None else -(-(policy.most_pages + lag) // ring.block_pages),
        decode_lag=lag,
        decode_from=policy.wide_layers,
        prefill_blocks=-(-(policy.most_prefill_pages or 0) // ring.block_pages) if policy.supports_prefill else 0,
        prefill_from=policy.least_prefill_tokens,
        pair_cost=costs.pair,
        load_cost=costs.load,
        reports_loads=sizes.tier is Tier.DISK,
        selects_ahead=policy.foresees,
    )


def _group_of(ring: RingShape, page_size: int, step_tokens: int, of_block: float) -> Group:
    """Return the largest work item that a step pays for: some blocks, or a part of one.

    Args:
        of_block: what attending to a block costs.
    """
    if of_block * ring.group_blocks <= step_tokens:
        return Group(ring.group_blocks)
    if of_block <= step_tokens:
        return Group(int(step_tokens // of_block))
    pages = max(1, LEAST_PART_TOKENS // page_size)
    return Group(1, max(1, min(math.ceil(of_block / step_tokens), ring.block_pages // pages)))


def ring_bytes(config: OffloadConfig, kv: KVSizes) -> int:
    """Return the bytes of the ring of a resolved config; 0 without one."""
    if config.ring_blocks is None or config.ring_block_tokens is None:
        return 0
    return config.ring_blocks * config.ring_block_tokens * kv.layer_token_bytes


def room_beside_ring(config: OffloadConfig, kv: KVSizes, free_bytes: int) -> int:
    """Return what the ring of a resolved config leaves of `free_bytes`.

    Raises:
        MemoryShortage: it leaves nothing.
    """
    left = free_bytes - ring_bytes(config, kv)
    if left <= 0:
        most = free_bytes // ((config.ring_blocks or 1) * kv.layer_token_bytes)
        raise MemoryShortage(
            f"--ring-blocks {config.ring_blocks} of --ring-block-tokens {config.ring_block_tokens} take"
            f" {ring_bytes(config, kv)} bytes, but {free_bytes} are free; at most {most} tokens a block fit, and the KV"
            f" pool needs room beside them"
        )
    return left


def check_effect(asked: OffloadConfig, limits: OffloadLimits | None, page_size: int) -> None:
    """Raise ConfigError for an option of `asked` that can have no effect, since no context is offloaded."""
    for item in fields(asked):
        value = getattr(asked, item.name)
        if limits is None and value is not None:
            raise ConfigError(
                f"{flag(item.name)} {value} needs a KV pool of {MIN_WINDOW_PAGES} pages or more"
                f" (--max-total-tokens {MIN_WINDOW_PAGES * page_size}) for the window of a long context"
            )


def policy_of(config: OffloadConfig, page_size: int, kernels: Kernels | None = None) -> SparsePolicy:
    """Return the policy of a resolved config, which uses compiled kernels if there are any.

    Raises:
        ConfigError: it cannot be imported.
    """
    assert config.sparse_policy is not None, f"not resolved: {config}"
    match sparse_sizes(config.sparse_policy, page_size):
        case None:
            return Full()
        case WindowSizes(sinks, recent):
            return Window(sinks, recent)
        case QuestSizes(num_pages, sinks, recent, from_layer):
            upper_bounds = torch_upper_bounds if kernels is None else NativeUpperBounds(kernels)
            return Quest(num_pages, sinks, recent, from_layer, upper_bounds)
        case Imported(module, name):
            return _imported(module, name, page_size)


def _imported(module: str, name: str, page_size: int) -> SparsePolicy:
    """Return the policy that `name` of a module makes when it is called with the page size."""
    shown = f"--sparse-policy import:{module}:{name}"
    try:
        policy = getattr(import_module(module), name)(page_size)
    except Exception as error:
        raise ConfigError(f"{shown} gives no policy: {type(error).__name__}: {error}") from error
    if not isinstance(policy, SparsePolicy):
        raise ConfigError(f"{shown} must give a SparsePolicy when it is called with the page size, got {policy!r}")
    return policy


@dataclass(frozen=True, slots=True)
class OffloadSetup:
    """What an engine's offloaded requests need, before any of it is allocated."""

    limits: OffloadLimits
    ring: RingShape
    policy: SparsePolicy
    hidden_size: int

    @classmethod
    def of(
        cls, config: OffloadConfig, limits: OffloadLimits, page_size: int, hidden_size: int, kernels: Kernels | None
    ) -> OffloadSetup:
        """Return the setup of a resolved config."""
        assert config.ring_blocks is not None, f"not resolved: {config}"
        ring = RingShape(
            config.ring_blocks,
            limits.block_pages,
            limits.group_blocks,
            limits.group_of(is_decode=True).blocks,
            limits.block_parts,
            limits.decode_lag,
        )
        return cls(limits, ring, policy_of(config, page_size, kernels), hidden_size)

    def sizes(self, page_size: int, kv: KVSizes) -> OffloadSizes:
        """Return the sizes of the memory that they take on the device."""
        limits = self.limits
        return OffloadSizes(
            self.ring.num_blocks,
            self.ring.group_blocks,
            limits.block_pages * page_size,
            limits.window_pages * page_size,
            page_size,
            self.policy.page_bytes(kv),
        )

    def open(
        self,
        model: Model,
        state: DeviceState,
        attention: Attention,
        new_kv: KVMaker,
        tiers: OpenTiers,
        transport: Transport,
        report: Report | None,
    ) -> Offloader:
        """Allocate the ring, and make what loads it and computes with it.

        Args:
            attention: attends to pages on the device and of the ring, in calls that no plan announces.
            new_kv: makes the ring's pages, as the attention reads them.
            tiers: the open tiers, among them the one that the limits name.
            report: called with blocks that were read ahead from a disk.
        """

        def new_loader(ring: PagedKV, block_pages: int) -> Loader[Any, Any]:
            if self.limits.tier is Tier.DISK:
                assert tiers.file is not None and report is not None, "no tier holds offloaded contexts"
                return DiskLoader(tiers.file, ring, block_pages, report)
            assert tiers.host is not None, "no tier holds offloaded contexts"
            device = state.shape.device
            loading = CudaQueue(torch.cuda.Stream(device)) if device.type == "cuda" else InlineQueue()
            return QueueLoader(tiers.host, ring, block_pages, loading, transport.queues.compute)

        return Offloader(
            model,
            state,
            attention,
            new_kv,
            new_loader,
            self.ring,
            self.hidden_size,
            self.policy,
        )
