"""The second stage of loading: a checkpoint's weights, on their device and packed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from sluice.assembly.devices import TORCH
from sluice.assembly.diffusion import check_architecture
from sluice.assembly.refusals import check_context
from sluice.assembly.resolve import Resolution
from sluice.assembly.small_operations import fuse_small_operations
from sluice.config import MemoryShortage, ModelConfig
from sluice.device.machine import keep_freed_memory
from sluice.engine.heartbeat import Heartbeat, LoadingPart
from sluice.kernels.cpu.library import NAMES, Kernels, Library
from sluice.models.base import PagedLM
from sluice.models.checkpoint import read_config
from sluice.models.loader import load_model
from sluice.models.packers import packer_for
from sluice.models.spec import ModelSpec
from sluice.parallel.member import Member
from sluice.runner.logit_ops import LogitOps
from sluice.runner.parallel.sampling import ShardedLogitOps

LOGGER = logging.getLogger("sluice.engine")


class Weights(NamedTuple):
    """A model on its device, before its options are resolved."""

    kernels: Kernels | None
    device: torch.device
    model: PagedLM
    spec: ModelSpec
    """Description of this rank's part of the model, with the context that requests may have."""
    logit_ops: LogitOps


def load_weights(
    here: Resolution,
    folder: Path,
    name: str,
    device: torch.device,
    heartbeat: Heartbeat,
    member: Member,
    *,
    progress: bool,
) -> Weights:
    """Load a model, or a rank's part of it, onto its device.

    Args:
        here: the options as this machine resolves them.
        folder: of the checkpoint.
        name: of the model, for errors.
        heartbeat: receives how far it is loaded.
        member: the rank.
        progress: show a progress bar on stderr.

    Raises:
        ConfigError: an option that cannot be honoured.
        CheckpointError: a model that cannot be loaded.
    """
    config = here.config.model
    blocks = check_architecture(here.config, read_config(folder).architecture).of_checkpoint
    heartbeat.loading(LoadingPart.WEIGHTS)
    kernels = _load_kernels(config, device, here.reasons)
    model, full = _load_model(config, folder, name, device, kernels, heartbeat, member, blocks, progress=progress)
    heartbeat.loading(LoadingPart.MEMORY)
    spec = _with_context(full, config.context_length).of(member.place)
    logit_ops = _over_shards(fuse_small_operations(model, device, kernels), member, spec.vocab_size)
    return Weights(kernels, device, model, spec, logit_ops)


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
    folder: Path,
    name: str,
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
            folder,
            dtype=config.dtype,
            device=device,
            progress=progress,
            implementation=config.model_impl,
            quantization=config.quantization,
            packer=packer_for(device, kernels),
            report=partial(heartbeat.loading, LoadingPart.WEIGHTS),
            packing=partial(heartbeat.loading, LoadingPart.PACKING),
            member=member,
            blocks=blocks,
            check=lambda spec: check_context(config.context_length, spec.max_model_len),
        )
    except torch.OutOfMemoryError as error:
        raise MemoryShortage(
            f"{name} does not fit into the memory of {device}: serve a smaller one, in"
            f" --dtype bfloat16 if it is wider, or compute on the processor with --device cpu"
        ) from error
    if device.type == "cpu":
        keep_freed_memory()
    return loaded


def _with_context(spec: ModelSpec, length: int | None) -> ModelSpec:
    """Return a model's sizes with a context of at most `length` tokens."""
    check_context(length, spec.max_model_len)
    return spec if length is None else replace(spec, max_model_len=length)


def _over_shards(logit_ops: LogitOps, member: Member, vocab_size: int) -> LogitOps:
    """Return the operations on a shard's part of the logits."""
    place, size = member.place, member.place.layout.tensor_size
    if size == 1:
        return logit_ops
    shards = [replace(place, shard=shard).vocabulary(vocab_size) for shard in range(size)]
    return ShardedLogitOps(logit_ops, member.tensor_group, shards)
