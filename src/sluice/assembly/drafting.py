"""The runner's own drafter: loaded beside the model whose tokens it guesses, and checked against it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import tokenizers
import torch
from torch import nn

from sluice.assembly.small_operations import fuse_small_operations
from sluice.attention.backend import AttentionBackend
from sluice.attention.select import REFERENCE
from sluice.config import ConfigError, EngineConfig
from sluice.kernels.cpu.library import Kernels
from sluice.models.base import PagedLM
from sluice.models.decoder import Decoder
from sluice.models.families.eagle3 import Eagle3
from sluice.models.families.eagle3_loader import load_eagle3
from sluice.models.hub import resolve_checkpoint
from sluice.models.loader import load_model
from sluice.models.packers import packer_for
from sluice.models.spec import ModelSpec
from sluice.runner.device_state import DeviceState
from sluice.runner.drafting.drafter import RunnerDrafter
from sluice.runner.drafting.nets import DraftModel, DraftNet, Eagle3Net
from sluice.runner.drafting.pages import DraftPages, DraftSizes
from sluice.runner.drafting.target import DraftedModel, StatesModel
from sluice.runner.forwards import Model
from sluice.runner.logit_ops import LogitOps

LOGGER = logging.getLogger("sluice.engine")
EAGLE3 = "eagle3"


@dataclass(frozen=True, slots=True)
class DraftSetup:
    """A loaded drafter. Several engines may share it."""

    net: DraftNet
    module: nn.Module
    """The drafter's weights."""
    sizes: DraftSizes
    backend: AttentionBackend

    def open(
        self, state: DeviceState, kernels: Kernels | None, tick: Callable[[], None], logit_ops: LogitOps
    ) -> RunnerDrafter:
        """Return the drafter of one runner, over an empty state.

        Args:
            tick: called for every bounded part of the work of a CPU.
        """
        pages = DraftPages(self.sizes, state.shape.layer, partial(self.backend.new_kv, kernels=kernels))
        attention = self.backend.make(state.shape.device, kernels, tick)
        return RunnerDrafter(self.net, pages, state, attention, logit_ops)

    def over(self, target: PagedLM, drafter: RunnerDrafter) -> Model:
        """Return the target with a forward that lets a drafter guess first."""
        if not self.net.layers:
            return DraftedModel(target, drafter)
        assert isinstance(target, Decoder), "checked when the head was loaded"
        return StatesModel(target, drafter)


def load_drafter(
    config: EngineConfig,
    target: PagedLM,
    spec: ModelSpec,
    backend: AttentionBackend,
    device: torch.device,
    kernels: Kernels | None,
    tokenizer: Path,
    *,
    progress: bool,
) -> DraftSetup | None:
    """Load the draft model or head that the options name; None if they name none.

    Args:
        config: resolved.
        spec: the target's, with the context that requests may have.
        backend: the target's attention; the drafter's too, if it supports it.
        tokenizer: folder of the target's.
        progress: draw a progress bar on standard error.

    Raises:
        ConfigError: it does not fit the target; the message names both values.
        CheckpointError: it cannot be found or loaded, or is no head for the target.
    """
    path, downloads = config.speculative.speculative_draft_model, config.model.download_dir
    if path is None:
        return None
    folder = resolve_checkpoint(path, cache=None if downloads is None else Path(downloads))
    packer = packer_for(device, kernels)
    net: DraftNet
    module: PagedLM | Eagle3
    if config.speculative.speculative_algorithm == EAGLE3:
        module = load_eagle3(folder, target, device, packer)
        net, own = Eagle3Net(module), module.config.layer.spec
    else:
        dtype = str(spec.dtype).removeprefix("torch.")
        module, own = load_model(folder, dtype=dtype, device=device, progress=progress, packer=packer)
        _check_draft_model(path, module, own, spec)
        _check_tokens(path, folder, tokenizer)
        net = DraftModel(module)
    fuse_small_operations(module, device, kernels)
    sizes = DraftSizes(own.kv_layers, net.state_size, own.dtype)
    page_size = config.cache.page_size
    assert page_size is not None, f"not resolved: {config}"
    return DraftSetup(net, module, sizes, _supporting(backend, own, page_size, device))


def _check_draft_model(path: str, model: PagedLM, own: ModelSpec, target: ModelSpec) -> None:
    """Check that a model can guess the tokens of another."""
    shown = f"--speculative-draft-model {path}"
    if own.vocab_size != target.vocab_size:
        raise ConfigError(
            f"{shown} has a vocabulary of {own.vocab_size} tokens, but the model has {target.vocab_size}: it must be of"
            f" the same tokenizer"
        )
    if own.diffusion is not None:
        raise ConfigError(f"{shown} is a {own.architecture}, which fills in blocks of tokens, and guesses no next one")
    if own.state is not None:
        raise ConfigError(f"{shown} is a {own.architecture}, whose layers have recurrent states: no draft model may")
    if not model.has_head:
        raise ConfigError(f"{shown} has no lm_head.weight, so it cannot guess tokens")
    if own.max_model_len < target.max_model_len:
        raise ConfigError(
            f"{shown} has a context of {own.max_model_len} tokens, but requests may have {target.max_model_len}: give"
            f" --context-length {own.max_model_len}, or another draft model"
        )


def _check_tokens(path: str, folder: Path, of_target: Path) -> None:
    """Check that a draft model means the same tokens by its ids, where both have a tokenizer."""
    different = first_difference(folder, of_target)
    if different is not None:
        raise ConfigError(
            f"--speculative-draft-model {path} has another vocabulary: token {different.token_id} is"
            f" {different.one!r}, and {different.other!r} for the model"
        )


def _supporting(backend: AttentionBackend, spec: ModelSpec, page_size: int, device: torch.device) -> AttentionBackend:
    """Return the target's backend if it supports the drafter, else the reference."""
    problems = (backend.supports(attention, page_size, device) for attention in spec.attentions)
    problem = next((each for each in problems if each is not None), None)
    if problem is None:
        return backend
    LOGGER.warning("the drafter's attention runs on torch, not on %s: %s", backend.name, problem)
    return REFERENCE


class Difference(NamedTuple):
    """An id of two tokenizers that stands for different tokens."""

    token_id: int
    one: str
    other: str


def first_difference(one: Path, other: Path) -> Difference | None:
    """Return the lowest id that two checkpoints use for different tokens, apart from tokens that were added; None if
    there is none, or one of them has no `tokenizer.json` that can be read.

    Args:
        one, other: their folders.
    """
    files = [folder / "tokenizer.json" for folder in (one, other)]
    if not all(file.is_file() for file in files):
        return None
    try:
        backends = [tokenizers.Tokenizer.from_file(str(file)) for file in files]
    except Exception:  # noqa: BLE001 - the library raises nothing more specific; the model's own is read elsewhere
        return None
    mine, theirs = ({token_id: token for token, token_id in each.get_vocab(False).items()} for each in backends)
    different = min((token_id for token_id in mine.keys() & theirs if mine[token_id] != theirs[token_id]), default=None)
    return None if different is None else Difference(different, mine[different], theirs[different])
