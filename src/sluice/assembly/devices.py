"""The device that an option means on this machine, and options resolved for it."""

from __future__ import annotations

from dataclasses import replace

import torch

from sluice.assembly.cpu_kernels import choose_kernels
from sluice.assembly.cuda_kernels import CudaDevice, check_device
from sluice.assembly.resolve import Resolution, resolve
from sluice.attention.select import choose_attention
from sluice.config import ConfigError, EngineConfig, threads_from_environment
from sluice.device.machine import usable_cores, usable_processors


def pick_device(name: str) -> torch.device:
    """The device that an option means.

    Raises:
        ConfigError: it is no device of this machine, or torch cannot compute on it.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if name not in ("auto", "cuda") and not (kind == "cuda" and number.isascii() and number.isdigit()):
        raise ConfigError(f"--device must be auto, cpu, cuda or cuda:N, got {name!r}")
    index = int(number or 0)
    if index >= count:
        raise ConfigError(
            f"--device {name}: this machine has {count} usable CUDA devices; --device cpu computes on the processor"
        )
    device = torch.device("cuda", index)
    check_device(CudaDevice.of(device))
    return device


def resolve_here(config: EngineConfig) -> tuple[Resolution, torch.device]:
    """Fill what is open, the device included, on this machine. What only the loaded model decides stays open.

    Raises:
        ConfigError: as `pick_device`, `resolve` and `choose_kernels`; or threads that this machine or device does not
            have.
    """
    device = pick_device(config.model.device)
    kernels = choose_kernels(config.model.cpu_kernels, device.type)
    resolution = resolve(config, device.type, has_amx=kernels.name == "amx")
    reasons = dict(resolution.reasons)
    if config.model.device == "auto":
        reasons["device"] = "no usable CUDA device" if device.type == "cpu" else "auto: the first CUDA device"
    if config.model.dtype == "auto":
        reasons["dtype"] = "auto: what the checkpoint says"
    if config.cache.max_total_tokens is None:
        reasons["max_total_tokens"] = "from free memory when the model is loaded"
    threads = _threads(config.model.threads, device, reasons)
    if kernels.reason is not None:
        reasons["cpu_kernels"] = kernels.reason
    attention = choose_attention(config.model.attention_backend, device, kernels.name)
    if attention.reason is not None:
        reasons["attention_backend"] = attention.reason
    model = replace(
        config.model,
        device=str(device),
        threads=threads,
        cpu_kernels=kernels.name,
        attention_backend=attention.name,
    )
    resolved = replace(resolution.config, model=model)
    return Resolution(resolved, reasons), device


def _threads(asked: int | None, device: torch.device, reasons: dict[str, str]) -> int | None:
    """How many threads compute on a CPU; None where none do."""
    if device.type != "cpu":
        if asked is not None:
            raise ConfigError(f"--threads {asked} needs --device cpu, got {device}")
        return None
    most = len(usable_processors())
    if asked is not None:
        if asked > most:
            raise ConfigError(f"--threads must be at most {most}, the processors this process may use, got {asked}")
        return asked
    told = threads_from_environment()
    if told is not None:
        reasons["threads"] = "OMP_NUM_THREADS" if told <= most else "OMP_NUM_THREADS, but no more than processors"
        return min(told, most)
    reasons["threads"] = "physical cores that this process may use"
    return usable_cores()
