"""From options to a loaded model, with every option resolved."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from sluice.assembly.devices import TORCH, CudaDevice, resolve_here, why_no_triton
from sluice.assembly.graphs import kernels_compute
from sluice.assembly.info import EngineInfo
from sluice.assembly.loaded import LoadedModel
from sluice.assembly.memory import Memory, plan_memory
from sluice.assembly.offloading import OffloadSetup, Sizes, check_effect, costs_of, offload_limits
from sluice.assembly.resolve import offload_tier
from sluice.assembly.tiers import TierSetup, tier_setup
from sluice.attention.backend import AttentionBackend
from sluice.attention.packed import STEPS
from sluice.attention.select import REFERENCE, backend_named
from sluice.config import ConfigError, EngineConfig, ModelConfig
from sluice.device.machine import keep_freed_memory
from sluice.device.memory import module_bytes
from sluice.footprint import Footprint
from sluice.limits import Limits
from sluice.models.base import CausalLM, PagedLM
from sluice.models.hub import BUNDLED, resolve_checkpoint
from sluice.models.loader import load_model
from sluice.models.native_ops import NativeOps
from sluice.models.packers import packer_for
from sluice.models.spec import ModelSpec
from sluice.native.library import NAMES, Kernels, Library
from sluice.runner.logit_ops import TORCH_LOGIT_OPS, LogitOps

LOGGER = logging.getLogger("sluice.engine")


class Checkpoint(NamedTuple):
    """Where a model's files are."""

    folder: Path
    name: str
    """The hub id, or the folder's own name."""
    is_bundled: bool


def load(config: EngineConfig, *, progress: bool) -> LoadedModel:
    """Load a model and resolve all options. This is the slow part of `build_engine`; engines may share the result.

    Raises:
        ConfigError: an option that cannot be honoured.
        CheckpointError: a model that cannot be found or loaded.
    """
    resolution, device = resolve_here(config)
    resolved, reasons = resolution.config, dict(resolution.reasons)
    checkpoint = _find_checkpoint(resolved.model.model)
    kernels = _load_kernels(resolved.model, device, reasons)
    model, spec = _load_model(resolved.model, checkpoint, device, kernels, progress=progress)
    logit_ops = _fuse_small_operations(model, device, kernels)
    backend = _supporting_backend(resolved, spec, device, reasons)
    if kernels_compute(backend, spec):
        # What is left to torch is small, and its waiting threads would take the kernels' cores.
        torch.set_num_threads(1)
    resolved = _resolve_for_model(resolved, checkpoint, model, spec, backend, reasons)
    memory = plan_memory(resolved, model, spec, backend, logit_ops, device, reasons)
    tiers = tier_setup(resolved, spec, memory.shape, checkpoint.folder, layout=backend.layout)
    weights_bytes = module_bytes(model)
    offload = _offload(resolved, spec, memory, weights_bytes)
    check_effect(config.offload, None if offload is None else offload.limits, memory.shape.page_size)
    if offload is not None and resolved.offload.offload_above != offload.limits.above:
        reasons["offload_above"] = "what the KV pool holds"
    info = _info(resolved, checkpoint, spec, memory, tiers, offload, weights_bytes, reasons)
    return LoadedModel(model, spec, memory.shape, info, kernels, backend, memory.graph_rows, tiers, offload, logit_ops)


def _find_checkpoint(model: str) -> Checkpoint:
    if not model:
        return Checkpoint(BUNDLED, BUNDLED.resolve().name, True)
    folder = resolve_checkpoint(model)
    return Checkpoint(folder, folder.resolve().name if Path(model).is_dir() else model, False)


def _load_kernels(config: ModelConfig, device: torch.device, reasons: Mapping[str, str]) -> Kernels | None:
    """Start the compiled kernels of a CPU and set the number of torch's threads."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.cpu_kernels == TORCH:
        if device.type == "cpu" and "cpu_kernels" in reasons:
            LOGGER.warning("the model runs on torch, which is slower: %s", reasons["cpu_kernels"])
        return None
    assert config.threads is not None, f"not resolved: {config}"
    return Kernels(Library(), NAMES[config.cpu_kernels], config.threads)


def _load_model(
    config: ModelConfig, checkpoint: Checkpoint, device: torch.device, kernels: Kernels | None, *, progress: bool
) -> tuple[PagedLM, ModelSpec]:
    try:
        loaded = load_model(
            checkpoint.folder,
            dtype=config.dtype,
            device=device,
            progress=progress,
            implementation=config.model_impl,
            packer=packer_for(device, kernels),
        )
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"{checkpoint.name} does not fit into the memory of {device}: serve a smaller one, in"
            f" --dtype bfloat16 if it is wider, or compute on the processor with --device cpu"
        ) from error
    if device.type == "cpu":
        keep_freed_memory()
    return loaded


def _fuse_small_operations(model: PagedLM, device: torch.device, kernels: Kernels | None) -> LogitOps:
    """Let fused kernels do a model's small operations where there are any. Return what does those on logits."""
    if kernels is not None and isinstance(model, CausalLM):
        model.use(NativeOps(kernels))
    if device.type != "cuda":
        return TORCH_LOGIT_OPS
    problem = why_no_triton(CudaDevice.of(device))
    if problem is not None:
        LOGGER.warning("the model runs on torch, which is slower: %s", problem)
        return TORCH_LOGIT_OPS
    return use_triton(model)


def use_triton(model: PagedLM) -> LogitOps:
    """Let Triton do the small operations of one of our own models. Return what does those on its logits."""
    # Importing them needs the package, which machines without a GPU need not have.
    from sluice.models.triton_ops import TritonOps
    from sluice.runner.triton_logit_ops import TritonLogitOps

    if isinstance(model, CausalLM):
        model.use(TritonOps())
    return TritonLogitOps()


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
    asked, scheduler = config.model, config.scheduler
    if scheduler.dynamic_chunking == 0:
        scheduler = replace(scheduler, dynamic_chunking=spec.dynamic_chunking_position(_layer_weights(model, spec)))
        reasons["dynamic_chunking"] = "there attention takes as much as the weights of this model"
    if asked.model_impl == "auto":
        has = "a" if spec.implementation == "native" else "no"
        reasons["model_impl"] = f"{spec.architecture} has {has} native implementation"
    resolved = replace(
        asked,
        model=asked.model or checkpoint.name,
        dtype=str(spec.dtype).removeprefix("torch."),
        model_impl=spec.implementation,
        cpu_kernels=asked.cpu_kernels if spec.dtype in STEPS else TORCH,
        attention_backend=backend.name,
    )
    return replace(config, model=resolved, scheduler=scheduler)


def _layer_weights(model: PagedLM, spec: ModelSpec) -> int:
    """Return how many numbers a model's layers hold."""
    tables = 1 if isinstance(model, CausalLM) and model.tied else 2
    return max(0, module_bytes(model) // spec.dtype.itemsize - tables * spec.vocab_size * spec.hidden_size)


def _offload(config: EngineConfig, spec: ModelSpec, memory: Memory, weights_bytes: int) -> OffloadSetup | None:
    """Return how contexts longer than the device are served, if there is a tier for them."""
    shape, kv_sizes = memory.shape, memory.kv_sizes
    tier = offload_tier(config.cache, shape.device.type)
    if tier is None:
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
    return None if limits is None else OffloadSetup.of(config.offload, limits, shape.page_size, spec.hidden_size)


def _info(
    config: EngineConfig,
    checkpoint: Checkpoint,
    spec: ModelSpec,
    memory: Memory,
    tiers: TierSetup,
    offload: OffloadSetup | None,
    weights_bytes: int,
    reasons: Mapping[str, str],
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
    )
    cache = replace(config.cache, max_total_tokens=pool_tokens)
    offload_config = replace(config.offload, offload_above=None if offload is None else offload.limits.above)
    return EngineInfo(
        model=checkpoint.name,
        folder=checkpoint.folder,
        is_bundled=checkpoint.is_bundled,
        architecture=spec.architecture,
        eos_token_ids=frozenset(spec.eos_token_ids),
        dtype=spec.dtype,
        device=shape.device,
        limits=limits,
        config=replace(config, cache=cache, offload=offload_config),
        reasons=reasons,
        kv_sizes=memory.kv_sizes,
        pool_tokens=(shape.num_pages + shape.scratch_pages) * shape.page_size,
        memory=Footprint(weights_bytes=weights_bytes),
        offload_sizes=None if offload is None else offload.sizes(shape.page_size),
        offload_tier=None if offload is None else offload.limits.tier,
    )
