"""From options to a running engine: the one place where the runner meets the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sluice.attention.reference import ReferenceAttention
from sluice.config import ConfigError, EngineConfig, cache_folder
from sluice.engine.engine import Engine
from sluice.engine.protocols import Link, Runner
from sluice.kv.manager import KVManager
from sluice.limits import Limits
from sluice.models.default import default_model_folder
from sluice.models.hub import resolve_checkpoint
from sluice.models.loader import load_model
from sluice.models.spec import ModelSpec
from sluice.resolve import resolve
from sluice.runner.device import DeviceShape, DeviceState
from sluice.runner.memory import PoolRequest, free_memory, pool_pages
from sluice.runner.runner import Model, TorchRunner
from sluice.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine turned out to be, for whoever faces the user."""

    model: str
    """Name: the hub id, or the folder's own name."""
    folder: Path
    """Where the checkpoint is, its tokenizer included."""
    babbles: bool
    """The bundled model, whose weights are random."""
    architecture: str
    eos_token_ids: frozenset[int]
    """Of the model; the tokenizer may know more."""
    dtype: torch.dtype
    device: torch.device
    limits: Limits
    config: EngineConfig
    """Resolved, the size of the pool included."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, and the sizes and limits that follow from it and the options."""

    model: Model
    spec: ModelSpec
    shape: DeviceShape
    info: EngineInfo

    def runner(self) -> TorchRunner:
        """A runner with device state of its own, all of it empty."""
        return TorchRunner(self.model, DeviceState(self.shape), ReferenceAttention())

    def scheduler(self) -> Scheduler:
        config = self.info.config
        kv = KVManager(
            num_pages=self.shape.num_pages,
            page_size=self.shape.page_size,
            prefix_caching=config.cache.enable_prefix_caching,
        )
        return Scheduler(config.scheduler.limits(), kv)

    def engine(self, link: Link, runner: Runner | None = None) -> Engine:
        """An engine over a new scheduler.

        Args:
            runner: if not one of our own; it must be as empty as the scheduler.
        """
        return Engine(self.scheduler(), runner or self.runner(), link, depth=self.info.config.scheduler.depth)


def build_engine(config: EngineConfig, link: Link, *, progress: bool) -> tuple[Engine, EngineInfo]:
    """Load a model and join it with a scheduler.

    Args:
        config: as the user gave it; open options are filled here.
        link: where messages come from and outputs go.
        progress: show a progress bar on stderr while weights load.

    Raises:
        ConfigError: an option that cannot be honoured.
        CheckpointError: a model that cannot be found or loaded.
    """
    loaded = load(config, progress=progress)
    return loaded.engine(link), loaded.info


def load(config: EngineConfig, *, progress: bool) -> LoadedModel:
    """The part of `build_engine` that takes long; several engines may share what it returns."""
    device = pick_device(config.model.device)
    config = resolve(config, device.type).config
    folder, babbles = _checkpoint(config.model.model)
    model, spec = load_model(folder, dtype=config.model.dtype, device=device, progress=progress)
    shape = _device_shape(config, spec, device)
    total = shape.num_pages * shape.page_size
    info = EngineInfo(
        model=folder.resolve().name if babbles or Path(config.model.model).is_dir() else config.model.model,
        folder=folder,
        babbles=babbles,
        architecture=spec.architecture,
        eos_token_ids=frozenset(spec.eos_token_ids),
        dtype=spec.dtype,
        device=device,
        limits=Limits(spec.vocab_size, spec.max_model_len, total),
        config=replace(config, cache=replace(config.cache, max_total_tokens=total)),
    )
    return LoadedModel(model, spec, shape, info)


def pick_device(name: str) -> torch.device:
    """The device that an option means.

    Raises:
        ConfigError: it is no device of this machine.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if name not in ("auto", "cuda") and not (kind == "cuda" and number.isascii() and number.isdigit()):
        raise ConfigError(f"--device must be auto, cpu, cuda or cuda:N, got {name!r}")
    index = int(number or 0)
    if index >= count:
        raise ConfigError(f"--device {name}: this machine has {count} usable CUDA devices")
    return torch.device("cuda", index)


def _checkpoint(model: str) -> tuple[Path, bool]:
    """The folder of a model, and whether it is the bundled one."""
    if not model:
        return default_model_folder(cache_folder()), True
    return resolve_checkpoint(model), False


def _device_shape(config: EngineConfig, spec: ModelSpec, device: torch.device) -> DeviceShape:
    page_size, running = config.cache.page_size, config.scheduler.max_running_requests
    assert page_size is not None and running is not None, f"not resolved: {config}"
    wanted = PoolRequest(
        page_size=page_size,
        bytes_per_token=spec.kv_bytes_per_token,
        max_model_len=spec.max_model_len,
        max_running_requests=running,
        max_total_tokens=config.cache.max_total_tokens,
    )
    num_pages = pool_pages(wanted, free_memory(device), device.type)
    return DeviceShape(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        num_slots=running,
        num_pages=num_pages,
        page_size=page_size,
        row_pages=min(num_pages, -(-spec.max_model_len // page_size)),
        dtype=spec.dtype,
        device=device,
    )
