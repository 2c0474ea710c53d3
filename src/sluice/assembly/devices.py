"""The device, the kernels and the threads that compute, and options resolved for this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import NamedTuple, Self

import torch

from sluice.assembly.ranks import devices_per_node, ranks_per_node, refuse_ranks
from sluice.assembly.resolve import Resolution, resolve
from sluice.attention.select import backend_named, choose_attention, kv_dtype
from sluice.config import ConfigError, EngineConfig, ModelConfig, threads_from_environment
from sluice.device.machine import usable_cores, usable_processors
from sluice.kernels.cpu.library import NAMES, KernelsUnavailable, Library

TORCH = "torch"
OLDEST_FOR_TRITON = (8, 0)


def pick_device(name: str, ranks: int = 1, local_rank: int = 0) -> torch.device:
    """Return the device that `--device` names.

    Args:
        ranks: of this machine; each has a CUDA device of its own.
        local_rank: which of these it is for.

    Raises:
        ConfigError: it is no device of this machine, or torch cannot compute on it, or there are more ranks.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if name not in ("auto", "cuda") and not (kind == "cuda" and number.isascii() and number.isdigit()):
        raise ConfigError(f"--device must be auto, cpu, cuda or cuda:N, got {name!r}")
    index = int(number or local_rank)
    if 0 < count < ranks:
        raise ConfigError(
            f"this machine has {count} usable CUDA devices, and the options ask for {ranks} ranks on it: lower"
            f" --tp-size or --pp-size, or --device cpu computes on the processor"
        )
    if index >= count:
        raise ConfigError(
            f"--device {name}: this machine has {count} usable CUDA devices; --device cpu computes on the processor"
        )
    device = torch.device("cuda", index)
    check_device(CudaDevice.of(device))
    return device


def resolve_here(config: EngineConfig, local_rank: int = 0) -> tuple[Resolution, torch.device]:
    """Resolve open options, the device included, on this machine. What depends on the loaded model stays open.

    Args:
        local_rank: number of the rank among those of this machine.

    Raises:
        ConfigError: as `pick_device`, `resolve`, `choose_kernels`, `choose_attention` and `kv_dtype`; or threads that
            this machine or device does not have.
    """
    refuse_ranks(config)
    ranks = ranks_per_node(config.parallel)
    device = pick_device(config.model.device, devices_per_node(config.parallel), local_rank)
    kernels = choose_kernels(config.model.cpu_kernels, device.type)
    resolution = resolve(config, device.type, has_amx=kernels.name == "amx")
    reasons = dict(resolution.reasons)
    if config.model.device == "auto":
        reasons["device"] = "no usable CUDA device" if device.type == "cpu" else f"auto: CUDA device {device.index}"
    if config.model.dtype == "auto":
        reasons["dtype"] = "auto: what the checkpoint says"
    dtype = _dtype(config.model, device, reasons)
    if config.cache.max_total_tokens is None:
        reasons["max_total_tokens"] = "from free memory when the model is loaded"
    threads = _threads(config.model.threads, device, ranks, reasons)
    if kernels.reason is not None:
        reasons["cpu_kernels"] = kernels.reason
    attention = choose_attention(config.model.attention_backend, device, kernels.name)
    if attention.reason is not None:
        reasons["attention_backend"] = attention.reason
    kv_dtype(config.model.kv_cache_dtype, backend_named(attention.name))  # checked before minutes of loading
    model = replace(
        config.model,
        device=str(device),
        dtype=dtype,
        threads=threads,
        cpu_kernels=kernels.name,
        attention_backend=attention.name,
    )
    resolved = replace(resolution.config, model=model)
    return replace(resolution, config=resolved, reasons=reasons), device


def _dtype(model: ModelConfig, device: torch.device, reasons: dict[str, str]) -> str:
    """Return the dtype to load in, and check that it can be beside quantised weights."""
    asked = model.quantization
    if asked not in ("int8", "int4"):
        return model.dtype
    if device.type != "cpu":
        raise ConfigError(
            f"--quantization {asked} needs --device cpu, got {device}; leave it out, or take --device cpu"
        )
    if model.dtype not in ("auto", "bfloat16"):
        raise ConfigError(f"--quantization {asked} computes in bfloat16, got --dtype {model.dtype}")
    if model.dtype == "auto":
        reasons["dtype"] = f"--quantization {asked}"
    return "bfloat16"


def _threads(asked: int | None, device: torch.device, ranks: int, reasons: dict[str, str]) -> int | None:
    """Return how many threads of a rank compute on a CPU; None on other devices."""
    if device.type != "cpu":
        if asked is not None:
            raise ConfigError(f"--threads {asked} needs --device cpu, got {device}")
        return None
    most = len(usable_processors())
    if asked is not None:
        if asked > most:
            raise ConfigError(f"--threads must be at most {most}, the processors this process may use, got {asked}")
        return asked
    number = threads_from_environment()
    if number is not None:
        reasons["threads"] = "OMP_NUM_THREADS" if number <= most else "OMP_NUM_THREADS, but no more than processors"
        return min(number, most)
    reasons["threads"] = "physical cores that this process may use"
    if ranks > 1:
        reasons["threads"] += f", divided between {ranks} ranks"
    return max(1, usable_cores() // ranks)


class KernelChoice(NamedTuple):
    """The value that `--cpu-kernels` resolved to."""

    name: str
    """A key of `NAMES`, or "torch"."""
    reason: str | None
    """Why, if the option was not set."""


def choose_kernels(asked: str, device_type: str) -> KernelChoice:
    """Resolve `--cpu-kernels`.

    Args:
        asked: the option's value: a key of `NAMES`, "torch" or "auto".
        device_type: "cpu" or "cuda".

    Raises:
        ConfigError: this machine or installation does not have the level.
    """
    if asked == TORCH:
        return KernelChoice(TORCH, None)
    if device_type != "cpu":
        if asked != "auto":
            raise ConfigError(f"--cpu-kernels {asked} needs --device cpu, got {device_type}")
        return KernelChoice(TORCH, f"the device is {device_type}")
    try:
        library = Library()
        level = library.best() if asked == "auto" else NAMES[asked]
    except KernelsUnavailable as error:
        if asked == "auto":
            return KernelChoice(TORCH, f"no compiled kernels: {error}")
        raise ConfigError(f"--cpu-kernels {asked} cannot be had: {error}") from error
    if not library.has(level):
        able = [name for name, known in NAMES.items() if library.has(known)]
        raise ConfigError(f"--cpu-kernels {asked}: this processor lacks it; it has {', '.join(able)}")
    if asked != "auto":
        return KernelChoice(asked, None)
    name = next(name for name, known in NAMES.items() if known == level)
    return KernelChoice(name, "the best that this processor has")


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """The properties of a CUDA device on which the choice of kernels depends."""

    name: str
    capability: tuple[int, int]
    torch_archs: tuple[str, ...]
    """What torch was built for: sm_XY runs on capability X.Y and later ones of the same X; compute_XY is compiled at
    its first use for X.Y and all later ones."""
    has_triton: bool
    """Whether the package is installed."""

    @classmethod
    def of(cls, device: torch.device) -> Self:
        """Return the device as torch sees it."""
        return cls(
            torch.cuda.get_device_name(device),
            torch.cuda.get_device_capability(device),
            tuple(torch.cuda.get_arch_list()),
            find_spec("triton") is not None,
        )


def check_device(device: CudaDevice) -> None:
    """Check that torch can compute on a device.

    Raises:
        ConfigError: it cannot.
    """
    if any(_runs(arch, device.capability) for arch in device.torch_archs):
        return
    built_for = ", ".join(device.torch_archs) or "no CUDA device"
    raise ConfigError(
        f"{device.name} has compute capability {_dotted(device.capability)}, and torch {torch.__version__} was built"
        f" for {built_for}: install a torch that was built for it, or compute on"
        f" the processor with --device cpu"
    )


def why_no_triton(device: CudaDevice) -> str | None:
    """Return why Triton's kernels cannot be used, or None if they can."""
    if device.capability < OLDEST_FOR_TRITON:
        return (
            f"Triton's kernels need compute capability {_dotted(OLDEST_FOR_TRITON)} or newer,"
            f" {device.name} has {_dotted(device.capability)}"
        )
    if not device.has_triton:
        return "the package triton is not installed (pip install 'sluice-llm[gpu]')"
    return None


def _runs(arch: str, capability: tuple[int, int]) -> bool:
    """Return whether code for `arch` runs. One that ends in a letter, as sm_90a, runs on exactly that capability."""
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", arch)
    if found is None:
        return False
    kind, major, minor, is_special = found.groups()
    built = (int(major), int(minor))
    if is_special:
        return built == capability
    return built <= capability and (kind == "compute" or built[0] == capability[0])


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
