"""From options to a loaded model, with every option resolved."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from sluice.assembly.adapter_loader import bank_of
from sluice.assembly.devices import TORCH, resolve_here
from sluice.assembly.diffusion import with_diffusion, with_pages_of_blocks
from sluice.assembly.drafting import DraftSetup, load_drafter
from sluice.assembly.generation_config import resolved_sampling
from sluice.assembly.graphs import kernels_compute
from sluice.assembly.info import EngineInfo
from sluice.assembly.loaded import LoadedModel
from sluice.assembly.memory import Memory, plan_memory
from sluice.assembly.offloading import OffloadSetup, Sizes, check_effect, costs_of, offload_limits
from sluice.assembly.pacing import pacing_of
from sluice.assembly.ranks import layout_of
from sluice.assembly.resolve import Resolution, offload_tier
from sluice.assembly.ring_sizes import resolve_ring
from sluice.assembly.slices import with_slices
from sluice.assembly.states import refuse_beside_states, with_slots
from sluice.assembly.tiers import RankPages, TierSetup, tier_setup
from sluice.assembly.torch_dtype import with_fast_dtype
from sluice.assembly.weights import Weights, load_weights
from sluice.attention.backend import AttentionBackend
from sluice.attention.packed import STEPS
from sluice.attention.select import REFERENCE, backend_named
from sluice.config import ConfigError, EngineConfig, ModelConfig, OffloadConfig
from sluice.device.memory import module_bytes
from sluice.engine.heartbeat import Heartbeat, LoadingPart
from sluice.kernels.cpu.library import Kernels
from sluice.models import default_model
from sluice.models.hub import resolve_checkpoint
from sluice.models.loader import check_layout
from sluice.models.package_index import Report
from sluice.models.pooling import why_no_embeddings
from sluice.models.spec import AS_STORED, BLOCKS, ON_LOAD, ModelSpec, Quantization, holds
from sluice.models.weights import GGUF, weight_files
from sluice.parallel.member import ALONE, Member
from sluice.text.token_ids import num_token_ids
from sluice.types import Tier
from sluice.types.footprint import Footprint
from sluice.types.request_limits import Limits
from sluice.types.stored_weights import StoredWeights

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
    is_default: bool
    """None was named."""


class _ForModel(NamedTuple):
    """What is decided when a model is loaded."""

    resolved: Resolution
    backend: AttentionBackend
    draft: DraftSetup | None


class _Sizes(NamedTuple):
    """What a model allocates beside its weights, and how its contexts are held."""

    resolved: Resolution
    memory: Memory
    tiers: TierSetup
    offload: OffloadSetup | None
    weights_bytes: int
    """Bytes of the model's weights, without its drafter."""


def load(
    config: EngineConfig,
    *,
    progress: bool,
    disabled: Mapping[Tier, str] | None = None,
    heartbeat: Heartbeat | None = None,
    member: Member = ALONE,
    agree: Callable[[RankPages], RankPages] | None = None,
    local_rank: int = 0,
    shares_pages: bool = False,
) -> LoadedModel:
    """Load a model, or a rank's part of it, and resolve all options. This is the slow part of `build_engine`; engines
    may share the result.

    There are four stages: the options are resolved for this machine, the weights are loaded, the other options are
    resolved for the model, and sizes are decided on. None changes what the one before it returned.

    Args:
        progress: show a progress bar on stderr while weights load.
        disabled: tiers that the config lacks because they could not be opened -> why.
        heartbeat: receives how far the model is loaded.
        member: the rank.
        agree: returns how many pages every rank has room for, given how many this one has; None: it is alone.
        local_rank: its number among the ranks of this machine.
        shares_pages: whether its engine takes pages of others.

    Raises:
        ConfigError: an option that cannot be honoured.
        CheckpointError: a model that cannot be found or loaded.
    """
    disabled, heartbeat = disabled or {}, heartbeat or Heartbeat()
    here, device = resolve_here(config, local_rank)
    heartbeat.loading(LoadingPart.FILES)
    checkpoint = find_checkpoint(here.config.model, partial(heartbeat.loading, LoadingPart.FILES))
    here = with_fast_dtype(here, checkpoint.folder, device)
    weights = load_weights(here, checkpoint.folder, checkpoint.name, device, heartbeat, member, progress=progress)
    adapters = bank_of(here.config, weights.model, checkpoint.folder)
    adapter_bytes = 0 if adapters is None else adapters.num_bytes
    for_model = _resolve_for_model(here, checkpoint, weights, progress=progress)
    planned = partial(plan_memory, place=member.place, adapter_bytes=adapter_bytes, shares_pages=shares_pages)
    sizes = _size(for_model, weights, config.offload, checkpoint.folder, disabled, agree, planned)
    info = _info(sizes, checkpoint, weights, for_model.draft, disabled)
    memory = sizes.memory
    return LoadedModel(
        weights.model,
        weights.spec,
        memory.shape,
        info,
        weights.kernels,
        for_model.backend,
        memory.graph_rows,
        sizes.tiers,
        sizes.offload,
        weights.logit_ops,
        pacing_of(sizes.resolved.config, weights.spec, memory.kv_sizes, sizes.weights_bytes, memory.graph_rows),
        member,
        for_model.draft,
        _num_token_ids(checkpoint.tokenizer, info.eos_token_ids),
        adapters,
    )


def _num_token_ids(folder: Path, eos_token_ids: Collection[int]) -> int | None:
    """Return the ids that a tokenizer has, with those that end an answer; None if that is not known."""
    known = num_token_ids(folder)
    return None if known is None else max([known, *(id + 1 for id in eos_token_ids)])


def _size(
    for_model: _ForModel,
    weights: Weights,
    asked: OffloadConfig,
    folder: Path,
    disabled: Mapping[Tier, str],
    agree: Callable[[RankPages], RankPages] | None,
    planned: Callable[..., Memory],
) -> _Sizes:
    """Decide on the sizes of the ring, the KV pool and the tiers."""
    (resolved, backend, draft), (kernels, device, model, spec, logit_ops) = for_model, weights
    weights_bytes = module_bytes(model)
    with_ring = resolve_ring(resolved, asked, spec, backend, device)
    config = with_ring.config
    lower = "max_running_requests" in resolved.reasons
    memory = planned(config, model, spec, backend, logit_ops, device, draft=draft, may_lower=lower)
    with_ring = with_ring.because(with_slots(config, memory.shape.num_slots, memory.reasons))
    config = with_ring.config
    tiers = tier_setup(config, spec, memory.shape, folder, layout=backend.layout, disabled=disabled)
    memory, tiers = _with_pages_of_all(memory, tiers, agree)
    offload = _offload(config, spec, memory, weights_bytes, kernels)
    check_effect(asked, None if offload is None else offload.limits, memory.shape.page_size)
    why = dict(memory.reasons)
    if offload is not None and config.offload.offload_above != offload.limits.above:
        why["offload_above"] = "what the KV pool holds"
    return _Sizes(with_ring.because(**why), memory, tiers, offload, weights_bytes)


def find_checkpoint(config: ModelConfig, report: Report | None = None) -> Checkpoint:
    """Find a checkpoint's files, or download them.

    Args:
        report: called several times a second while the default model is downloaded.

    Raises:
        CheckpointError: they cannot be found.
    """
    cache, model = config.cache, config.model
    folder = resolve_checkpoint(model, revision=config.revision, cache=cache, report=report)
    tokenizer = folder if config.tokenizer is None else resolve_checkpoint(config.tokenizer, cache=cache, weights=False)
    if not model:
        return Checkpoint(folder, tokenizer, default_model.NAME, is_default=True)
    path = Path(model).expanduser()
    name = path.stem if path.is_file() else path.resolve().name if path.is_dir() else model
    return Checkpoint(folder, tokenizer, name, is_default=False)


def refuse_parts(config: EngineConfig, checkpoint: Checkpoint) -> None:
    """Check that a model can be cut as the options say, before ranks are waited for and weights are loaded.

    Raises:
        CheckpointError: it cannot; the message says what is accepted.
    """
    check_layout(checkpoint.folder, layout_of(config.parallel), config.model.model_impl)


def _resolve_for_model(here: Resolution, checkpoint: Checkpoint, weights: Weights, *, progress: bool) -> _ForModel:
    """Resolve the options that depend on the loaded model, and load its drafter."""
    kernels, device, model, spec, _ = weights
    paged = with_pages_of_blocks(here, spec)
    backend, why_backend = _supporting_backend(paged, spec, device)
    if kernels_compute(backend, spec):
        # What is left to torch is small, and its waiting threads would take the cores of the compiled kernels.
        torch.set_num_threads(1)
    asked = paged.config.model
    options = replace(
        asked,
        model=asked.model or checkpoint.name,
        dtype=_name(spec.dtype),
        quantization="none" if asked.quantization == "none" else _quantization(spec),
        model_impl=spec.implementation,
        cpu_kernels=asked.cpu_kernels if spec.dtype in STEPS else TORCH,
        attention_backend=backend.name,
    )
    why = _reasons_of_model(paged.config, spec) | why_backend
    refuse_beside_states(paged.config, spec)
    resolved = with_diffusion(paged.because(replace(paged.config, model=options), **why), spec)
    tokenizer = checkpoint.tokenizer
    draft = load_drafter(resolved.config, model, spec, backend, device, kernels, tokenizer, progress=progress)
    return _ForModel(with_slices(resolved, model, draft, device.type), backend, draft)


def _supporting_backend(
    resolved: Resolution, spec: ModelSpec, device: torch.device
) -> tuple[AttentionBackend, dict[str, str]]:
    """Return the backend chosen for the machine if it supports the model, too; otherwise, if not set, the reference,
    and why."""
    config, reasons = resolved.config, resolved.reasons
    backend, page_size = backend_named(config.model.attention_backend), config.cache.page_size
    assert page_size is not None, f"not resolved: {config}"
    problems = (backend.supports(attention, page_size, device) for attention in spec.attentions)
    problem = next((each for each in problems if each is not None), None)
    if problem is None:
        return backend, {}
    if "attention_backend" not in reasons:
        raise ConfigError(f"--attention-backend {backend.name} cannot serve this model: {problem}")
    why = {"attention_backend": f"not {backend.name}: {problem}"}
    if backend.needs_kernels:
        if "cpu_kernels" not in reasons:
            raise ConfigError(f"--cpu-kernels {config.model.cpu_kernels} cannot serve this model: {problem}")
        why["cpu_kernels"] = f"attention on torch: {problem}"
    LOGGER.warning("attention runs on torch, not on %s: %s", backend.name, problem)
    return REFERENCE, why


def _reasons_of_model(config: EngineConfig, spec: ModelSpec) -> dict[str, str]:
    """Return why options have the values that a model decides."""
    why: dict[str, str] = {}
    if config.scheduler.dynamic_chunking == 0:
        why["dynamic_chunking"] = "by measured time"
    if config.model.model_impl == "auto":
        has = "a" if spec.implementation == "native" else "no"
        why["model_impl"] = f"{spec.architecture} has {has} native implementation"
    if spec.stored_as is not None:
        why["quantization"] = f"{spec.stored_as.description}, {how_held(spec, spec.stored_as)}"
        LOGGER.info("the checkpoint's weights are quantised: %s", why["quantization"])
    return why


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def how_held(spec: ModelSpec, stored_as: Quantization) -> str:
    """Return how a model holds weights that are quantised in its checkpoint, as a log line says it."""
    is_in_blocks = holds(spec.quantization, BLOCKS)
    if spec.quantization == "none" or (is_in_blocks and not stored_as.kept):
        return f"dequantised to {_name(spec.dtype)}"
    if is_in_blocks:
        return "computed as stored"
    kind = spec.quantization.removesuffix(AS_STORED)
    return f"{'computed in' if stored_as.kept else 'quantised again to'} {kind}"


def _quantization(spec: ModelSpec) -> str | None:
    """Return the value of `--quantization` that a model has."""
    if spec.quantization in ON_LOAD:
        return spec.quantization
    return None if spec.stored_as is None else spec.stored_as.method


def _with_pages_of_all(
    memory: Memory, tiers: TierSetup, agree: Callable[[RankPages], RankPages] | None
) -> tuple[Memory, TierSetup]:
    """Return memory and tiers with as many pages as every rank has room for."""
    if agree is None:
        return memory, tiers
    pages = agree(RankPages(memory.shape.num_pages, tiers.limits.host_pages))
    limits = replace(tiers.limits, host_pages=pages.host)
    why = {"max_total_tokens": "what every rank has room for"} if pages.device < memory.shape.num_pages else {}
    agreed = replace(memory.with_pages(pages.device), reasons={**memory.reasons, **why})
    return agreed, replace(tiers, limits=limits)


def _offload(
    config: EngineConfig, spec: ModelSpec, memory: Memory, weights_bytes: int, kernels: Kernels | None
) -> OffloadSetup | None:
    """Return how contexts longer than the device are served, if there is a tier for them."""
    shape, kv_sizes = memory.shape, memory.kv_sizes
    tier = offload_tier(config, shape.device.type)
    if tier is None or spec.diffusion is not None or spec.unequal_kv:
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
    return OffloadSetup.of(config.offload, limits, shape.page_size, spec.hidden_size, kernels)


def _stored(folder: Path, spec: ModelSpec) -> StoredWeights:
    files = weight_files(folder)
    kind = "gguf" if files[0].name == GGUF else "safetensors"
    level = _name(spec.dtype) if spec.stored_as is None else spec.stored_as.level
    return StoredWeights(kind, level, spec.num_parameters, sum(file.stat().st_size for file in files))


def _info(
    sizes: _Sizes, checkpoint: Checkpoint, weights: Weights, draft: DraftSetup | None, disabled: Mapping[Tier, str]
) -> EngineInfo:
    """Return what others may know of a model."""
    (resolved, memory, tiers, offload, weights_bytes), spec = sizes, weights.spec
    held = weights_bytes if draft is None else module_bytes(weights.model, draft.module)
    config = resolved.config
    defaults, why = resolved_sampling(config.model, checkpoint.folder, spec)
    if Tier.DISK in disabled:
        why["kv_disk"] = f"disabled: {disabled[Tier.DISK]}"
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
        None if weights.model.has_head else NO_HEAD,
        NO_EMBEDDINGS if spec.diffusion is not None else why_no_embeddings(checkpoint.folder),
        config.scheduler.limits().itl_target,
        config.scheduler.limits().classes,
        0 if spec.diffusion is None else spec.diffusion.block_size,
        frozenset(spec.media_token_ids),
    )
    cache = replace(config.cache, max_total_tokens=pool_tokens)
    offload_config = replace(config.offload, offload_above=None if offload is None else offload.limits.above)
    return EngineInfo(
        model=checkpoint.name,
        folder=checkpoint.folder,
        tokenizer_folder=checkpoint.tokenizer,
        is_default=checkpoint.is_default,
        architecture=spec.architecture,
        stored=_stored(checkpoint.folder, spec),
        eos_token_ids=frozenset(spec.eos_token_ids),
        dtype=spec.dtype,
        device=shape.device,
        limits=limits,
        config=replace(config, cache=cache, offload=offload_config),
        reasons=resolved.because(**why).reasons,
        sampling_defaults=defaults,
        kv_sizes=memory.kv_sizes,
        pool_tokens=(shape.num_pages + shape.scratch_pages) * shape.page_size,
        window_bytes=memory.window_bytes,
        window_token_bytes=0 if memory.window_sizes is None else memory.window_sizes.token_bytes,
        memory=Footprint(weights_bytes=held),
        offload_sizes=None if offload is None else offload.sizes(shape.page_size, memory.kv_sizes),
        offload_tier=None if offload is None else offload.limits.tier,
        disabled_tiers=disabled,
    )
