"""From options to a loaded model, with every option resolved."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from sluice.assembly.devices import TORCH, resolve_here
from sluice.assembly.diffusion import check_architecture, with_diffusion, with_pages_of_blocks
from sluice.assembly.drafting import load_drafter
from sluice.assembly.generation_config import resolved_sampling
from sluice.assembly.graphs import kernels_compute
from sluice.assembly.info import EngineInfo
from sluice.assembly.loaded import LoadedModel
from sluice.assembly.memory import Memory, plan_memory
from sluice.assembly.offloading import OffloadSetup, Sizes, check_effect, costs_of, offload_limits
from sluice.assembly.pacing import pacing_of
from sluice.assembly.ranks import layout_of
from sluice.assembly.resolve import offload_tier
from sluice.assembly.ring_sizes import with_ring
from sluice.assembly.small_operations import fuse_small_operations
from sluice.assembly.tiers import RankPages, TierSetup, tier_setup
from sluice.attention.backend import AttentionBackend
from sluice.attention.packed import STEPS
from sluice.attention.select import REFERENCE, backend_named
from sluice.config import ConfigError, EngineConfig, MemoryShortage, ModelConfig
from sluice.device.machine import keep_freed_memory
from sluice.device.memory import module_bytes
from sluice.engine.heartbeat import Heartbeat, LoadingPart
from sluice.kernels.cpu.library import NAMES, Kernels, Library
from sluice.models.base import PagedLM
from sluice.models.checkpoint import read_config
from sluice.models.hub import BUNDLED, resolve_checkpoint
from sluice.models.loader import check_layout, load_model
from sluice.models.packers import packer_for
from sluice.models.pooling import why_no_embeddings
from sluice.models.spec import AS_STORED, BLOCKS, ON_LOAD, ModelSpec, Quantization, holds
from sluice.parallel.member import ALONE, Member
from sluice.runner.logit_ops import LogitOps
from sluice.runner.parallel.sampling import ShardedLogitOps
from sluice.types import SamplingDefaults, Tier
from sluice.types.footprint import Footprint
from sluice.types.request_limits import Limits

LOGGER = logging.getLogger("sluice.engine")
NO_EMBEDDINGS = "it fills in blocks of tokens, whose last one says nothing about the whole"
NO_HEAD = "the checkpoint has no lm_head.weight, and config.json does not tie it to the embedding"


class Checkpoint(NamedTuple):
    """Where a model's files are."""

    folder: Path
    tokenizer: Path
    """Folder of the tokenizer."""
    name: str
    """The hub id, or the folder's own name."""
    is_bundled: bool


def load(
    config: EngineConfig,
    *,
    progress: bool,
    disabled: Mapping[Tier, str] | None = None,
    heartbeat: Heartbeat | None = None,
    member: Member = ALONE,
    agree: Callable[[RankPages], RankPages] | None = None,
    local_rank: int = 0,
) -> LoadedModel:
    """Load a model, or a rank's part of it, and resolve all options. This is the slow part of `build_engine`; engines
    may share the result.

    Args:
        progress: show a progress bar on stderr while weights load.
        disabled: tiers that the config lacks because they could not be opened -> why.
        heartbeat: receives how far the model is loaded.
        member: the rank.
        agree: returns how many pages every rank has room for, given how many this one has; None: it is alone.
        local_rank: its number among the ranks of this machine.

    Raises:
        ConfigError: an option that cannot be honoured.
        CheckpointError: a model that cannot be found or loaded.
    """
    resolution, device = resolve_here(config, local_rank)
    resolved, reasons, disabled = resolution.config, dict(resolution.reasons), disabled or {}
    if Tier.DISK in disabled:
        reasons["kv_disk"] = f"disabled: {disabled[Tier.DISK]}"
    heartbeat = heartbeat or Heartbeat()
    heartbeat.loading(LoadingPart.FILES)
    checkpoint = find_checkpoint(resolved.model)
    blocks = check_architecture(resolved, read_config(checkpoint.folder).architecture).of_checkpoint
    heartbeat.loading(LoadingPart.WEIGHTS)
    kernels = _load_kernels(resolved.model, device, reasons)
    model, full = _load_model(resolved.model, checkpoint, device, kernels, heartbeat, member, blocks, progress=progress)
    spec = _with_context(full, resolved.model.context_length).of(member.place)
    heartbeat.loading(LoadingPart.MEMORY)
    logit_ops = _over_shards(fuse_small_operations(model, device, kernels), member, spec.vocab_size)
    resolved = with_pages_of_blocks(resolved, spec, reasons)
    backend = _supporting_backend(resolved, spec, device, reasons)
    _leave_cores(backend, spec)
    resolved = with_diffusion(_resolve_for_model(resolved, checkpoint, model, spec, backend, reasons), spec, reasons)
    draft = load_drafter(resolved, model, spec, backend, device, kernels, checkpoint.tokenizer, progress=progress)
    weights_bytes = module_bytes(model)
    resolved = with_ring(resolved, config.offload, spec, backend, device, reasons)
    memory = plan_memory(resolved, model, spec, backend, logit_ops, device, member.place, reasons, draft)
    tiers = tier_setup(resolved, spec, memory.shape, checkpoint.folder, layout=backend.layout, disabled=disabled)
    memory, tiers = _with_pages_of_all(memory, tiers, agree, reasons)
    offload = _offload(resolved, spec, memory, weights_bytes, kernels, reasons)
    check_effect(config.offload, None if offload is None else offload.limits, memory.shape.page_size)
    defaults = resolved_sampling(resolved.model, checkpoint.folder, spec, reasons)
    held = weights_bytes if draft is None else module_bytes(model, draft.module)
    info = _info(resolved, checkpoint, spec, memory, tiers, offload, held, model.has_head, defaults, reasons, disabled)
    pacing = pacing_of(resolved, spec, memory.kv_sizes, weights_bytes, memory.graph_rows)
    shape, rows = memory.shape, memory.graph_rows
    return LoadedModel(
        model, spec, shape, info, kernels, backend, rows, tiers, offload, logit_ops, pacing, member, draft
    )


def _leave_cores(backend: AttentionBackend, spec: ModelSpec) -> None:
    """Leave the cores to the compiled kernels, if they compute the model. What is left to torch is small, and its
    waiting threads would take them."""
    if kernels_compute(backend, spec):
        torch.set_num_threads(1)


def _over_shards(logit_ops: LogitOps, member: Member, vocab_size: int) -> LogitOps:
    """Return the operations on a shard's part of the logits."""
    place, size = member.place, member.place.layout.tensor_size
    if size == 1:
        return logit_ops
    shards = [replace(place, shard=shard).vocabulary(vocab_size) for shard in range(size)]
    return ShardedLogitOps(logit_ops, member.tensor_group, shards)


def _agreed(memory: Memory, pages: int, reasons: dict[str, str]) -> Memory:
    """Return the memory of a rank with the pages that all ranks have room for."""
    shape = memory.shape
    if pages < shape.num_pages:
        reasons["max_total_tokens"] = "what every rank has room for"
    return replace(memory, shape=replace(shape, num_pages=pages, row_pages=min(pages, shape.row_pages)))


def find_checkpoint(config: ModelConfig) -> Checkpoint:
    """Find a checkpoint's files, or download them.

    Raises:
        CheckpointError: they cannot be found.
    """
    cache = None if config.download_dir is None else Path(config.download_dir)
    model, is_bundled = config.model or str(BUNDLED), not config.model
    folder = resolve_checkpoint(model, revision=config.revision, cache=cache)
    tokenizer = folder if config.tokenizer is None else resolve_checkpoint(config.tokenizer, cache=cache, weights=False)
    path = BUNDLED if is_bundled else Path(model).expanduser()
    name = path.stem if path.is_file() else path.resolve().name if path.is_dir() else model
    return Checkpoint(folder, tokenizer, name, is_bundled)


def refuse_parts(config: EngineConfig, checkpoint: Checkpoint) -> None:
    """Check that a model can be cut as the options say, before ranks are waited for and weights are loaded.

    Raises:
        CheckpointError: it cannot; the message says what is accepted.
    """
    check_layout(checkpoint.folder, layout_of(config.parallel), config.model.model_impl)


def _with_context(spec: ModelSpec, length: int | None) -> ModelSpec:
    """Return a model's sizes with a context of at most `length` tokens."""
    if length is None:
        return spec
    if not 2 <= length <= spec.max_model_len:
        raise ConfigError(
            f"--context-length must be from 2 to the model's context of {spec.max_model_len} tokens, got {length}"
        )
    return replace(spec, max_model_len=length)


def _load_kernels(config: ModelConfig, device: torch.device, reasons: Mapping[str, str]) -> Kernels | None:
    """Start the compiled kernels of a CPU and set the number of torch's threads."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.cpu_kernels == TORCH:
        if device.type == "cpu" and "cpu_kernels" in reasons:
            LOGGER.warning("the model runs on torch, which is slower: %s", reasons["cpu_kernels"])
        return None
    assert config.threads is not None, f"not resolved: {config}"
    library = Library()
    if (outdated := library.why_outdated()) is not None:
        LOGGER.warning("%s", outdated)
    return Kernels(library, NAMES[config.cpu_kernels], config.threads)


def _load_model(
    config: ModelConfig,
    checkpoint: Checkpoint,
    device: torch.device,
    kernels: Kernels | None,
    heartbeat: Heartbeat,
    member: Member,
    blocks: Mapping[str, object],
    *,
    progress: bool,
) -> tuple[PagedLM, ModelSpec]:
    try:
        loaded = load_model(
            checkpoint.folder,
            dtype=config.dtype,
            device=device,
            progress=progress,
            implementation=config.model_impl,
            quantization=config.quantization,
            packer=packer_for(device, kernels),
            report=partial(heartbeat.loading, LoadingPart.WEIGHTS),
            member=member,
            blocks=blocks,
        )
    except torch.OutOfMemoryError as error:
        raise MemoryShortage(
            f"{checkpoint.name} does not fit into the memory of {device}: serve a smaller one, in"
            f" --dtype bfloat16 if it is wider, or compute on the processor with --device cpu"
        ) from error
    if device.type == "cpu":
        keep_freed_memory()
    return loaded


def _supporting_backend(
    config: EngineConfig, spec: ModelSpec, device: torch.device, reasons: dict[str, str]
) -> AttentionBackend:
    """Return the backend chosen for the machine if it supports the model, too; otherwise, if not set, the reference."""
    backend, page_size = backend_named(config.model.attention_backend), config.cache.page_size
    assert page_size is not None, f"not resolved: {config}"
    problem = backend.supports(spec.attention, page_size, device)
    if problem is None:
        return backend
    if "attention_backend" not in reasons:
        raise ConfigError(f"--attention-backend {backend.name} cannot serve this model: {problem}")
    if backend.needs_kernels:
        if "cpu_kernels" not in reasons:
            raise ConfigError(f"--cpu-kernels {config.model.cpu_kernels} cannot serve this model: {problem}")
        reasons["cpu_kernels"] = f"attention on torch: {problem}"
    LOGGER.warning("attention runs on torch, not on %s: %s", backend.name, problem)
    reasons["attention_backend"] = f"not {backend.name}: {problem}"
    return REFERENCE


def _resolve_for_model(
    config: EngineConfig,
    checkpoint: Checkpoint,
    model: PagedLM,
    spec: ModelSpec,
    backend: AttentionBackend,
    reasons: dict[str, str],
) -> EngineConfig:
    """Resolve the options that depend on the loaded model."""
    asked = config.model
    if config.scheduler.dynamic_chunking == 0:
        reasons["dynamic_chunking"] = "by measured time"
    if asked.model_impl == "auto":
        has = "a" if spec.implementation == "native" else "no"
        reasons["model_impl"] = f"{spec.architecture} has {has} native implementation"
    if spec.stored_as is not None:
        reasons["quantization"] = f"{spec.stored_as.description}, {_held(spec, spec.stored_as)}"
        LOGGER.info("the checkpoint's weights are quantised: %s", reasons["quantization"])
    resolved = replace(
        asked,
        model=asked.model or checkpoint.name,
        dtype=_name(spec.dtype),
        quantization="none" if asked.quantization == "none" else _quantization(spec),
        model_impl=spec.implementation,
        cpu_kernels=asked.cpu_kernels if spec.dtype in STEPS else TORCH,
        attention_backend=backend.name,
    )
    return replace(config, model=resolved)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _held(spec: ModelSpec, stored_as: Quantization) -> str:
    """Return how a model holds weights that are quantised in its checkpoint, as a log line says it."""
    if spec.quantization == "none":
        return f"dequantised to {_name(spec.dtype)}"
    if holds(spec.quantization, BLOCKS):
        return "computed as stored"
    kind = spec.quantization.removesuffix(AS_STORED)
    return f"{'computed in' if stored_as.kept else 'quantised again to'} {kind}"


def _quantization(spec: ModelSpec) -> str | None:
    """Return the value of `--quantization` that a model has."""
    if spec.quantization in ON_LOAD:
        return spec.quantization
    return None if spec.stored_as is None else spec.stored_as.method


def _with_pages_of_all(
    memory: Memory, tiers: TierSetup, agree: Callable[[RankPages], RankPages] | None, reasons: dict[str, str]
) -> tuple[Memory, TierSetup]:
    """Return memory and tiers with as many pages as every rank has room for."""
    if agree is None:
        return memory, tiers
    pages = agree(RankPages(memory.shape.num_pages, tiers.limits.host_pages))
    limits = replace(tiers.limits, host_pages=pages.host)
    return _agreed(memory, pages.device, reasons), replace(tiers, limits=limits)


def _offload(
    config: EngineConfig,
    spec: ModelSpec,
    memory: Memory,
    weights_bytes: int,
    kernels: Kernels | None,
    reasons: dict[str, str],
) -> OffloadSetup | None:
    """Return how contexts longer than the device are served, if there is a tier for them."""
    shape, kv_sizes = memory.shape, memory.kv_sizes
    tier = offload_tier(config, shape.device.type)
    if tier is None or spec.diffusion is not None:
        return None
    scheduler = config.scheduler.limits()
    sizes = Sizes(
        tier=tier,
        page_bytes=kv_sizes.token_bytes * shape.page_size,
        page_size=shape.page_size,
        num_pages=shape.num_pages,
        num_layers=spec.num_layers,
        step_tokens=scheduler.chunked_prefill_size or scheduler.max_batch_tokens,
        device_type=shape.device.type,
    )
    limits = offload_limits(config.offload, sizes, costs_of(spec, kv_sizes, weights_bytes, shape.device.type))
    if limits is None:
        return None
    if config.offload.offload_above != limits.above:
        reasons["offload_above"] = "what the KV pool holds"
    return OffloadSetup.of(config.offload, limits, shape.page_size, spec.hidden_size, kernels)


def _info(
    config: EngineConfig,
    checkpoint: Checkpoint,
    spec: ModelSpec,
    memory: Memory,
    tiers: TierSetup,
    offload: OffloadSetup | None,
    weights_bytes: int,
    has_head: bool,
    defaults: SamplingDefaults,
    reasons: Mapping[str, str],
    disabled: Mapping[Tier, str],
) -> EngineInfo:
    shape = memory.shape
    pool_tokens = shape.num_pages * shape.page_size
    limits = Limits(
        spec.vocab_size,
        spec.max_model_len,
        pool_tokens,
        config.scheduler.schedule_policy == "priority",
        0 if offload is None else tiers.limits.pages_on(offload.limits.tier) * shape.page_size,
        memory.kv_sizes.token_bytes,
        None if offload is not None else next(iter(disabled), None),
        spec.hidden_size,
        None if has_head else NO_HEAD,
        NO_EMBEDDINGS if spec.diffusion is not None else why_no_embeddings(checkpoint.folder),
        config.scheduler.limits().itl_target,
        config.scheduler.limits().classes,
        0 if spec.diffusion is None else spec.diffusion.block_size,
    )
    cache = replace(config.cache, max_total_tokens=pool_tokens)
    offload_config = replace(config.offload, offload_above=None if offload is None else offload.limits.above)
    return EngineInfo(
        model=checkpoint.name,
        folder=checkpoint.folder,
        tokenizer_folder=checkpoint.tokenizer,
        is_bundled=checkpoint.is_bundled,
        architecture=spec.architecture,
        eos_token_ids=frozenset(spec.eos_token_ids),
        dtype=spec.dtype,
        device=shape.device,
        limits=limits,
        config=replace(config, cache=cache, offload=offload_config),
        reasons=reasons,
        sampling_defaults=defaults,
        kv_sizes=memory.kv_sizes,
        pool_tokens=(shape.num_pages + shape.scratch_pages) * shape.page_size,
        memory=Footprint(weights_bytes=weights_bytes),
        offload_sizes=None if offload is None else offload.sizes(shape.page_size, memory.kv_sizes),
        offload_tier=None if offload is None else offload.limits.tier,
        disabled_tiers=disabled,
    )
