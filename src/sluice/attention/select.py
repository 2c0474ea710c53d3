"""All attention backends, and the choice among them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from sluice.attention.backend import AttentionBackend
from sluice.attention.flashinfer.backend import FlashInferBackend
from sluice.attention.native import NativeBackend
from sluice.attention.reference import ReferenceBackend
from sluice.attention.triton.backend import TritonBackend
from sluice.config import ConfigError

AUTO = "auto"
REFERENCE = ReferenceBackend()
BACKENDS: tuple[AttentionBackend, ...] = (
    NativeBackend(),
    TritonBackend(),
    FlashInferBackend(),
    REFERENCE,
)


class AttentionChoice(NamedTuple):
    """The value that `--attention-backend` resolved to."""

    name: str
    reason: str | None
    """Why, if the option was not set."""


def choose_attention(asked: str, device: torch.device, cpu_kernels: str) -> AttentionChoice:
    """Resolve `--attention-backend`.

    Args:
        asked: the option's value.
        cpu_kernels: resolved `--cpu-kernels`.

    Raises:
        ConfigError: there is no such backend, or it cannot run on this device or in this installation; the message says
            what can.
    """
    if asked != AUTO:
        problem = backend_named(asked).missing(device, cpu_kernels)
        if problem is not None:
            raise ConfigError(f"--attention-backend {asked}: {problem}")
        return AttentionChoice(asked, None)
    problems = []
    for backend in BACKENDS:
        reason = backend.default_reason(device, cpu_kernels)
        if reason is None:
            continue
        problem = backend.missing(device, cpu_kernels)
        if problem is None:
            return AttentionChoice(backend.name, reason)
        problems.append(f"not {backend.name}: {problem}")
    return AttentionChoice(REFERENCE.name, "; ".join(problems))


def backend_named(name: str) -> AttentionBackend:
    """Return a backend by its name.

    Raises:
        ConfigError: there is none of that name.
    """
    for backend in BACKENDS:
        if backend.name == name:
            return backend
    names = ", ".join(backend.name for backend in BACKENDS)
    raise ConfigError(f"--attention-backend must be one of {AUTO}, {names}, got {name!r}")


def kv_dtype(asked: str, backend: AttentionBackend) -> torch.dtype | None:
    """Resolve `--kv-cache-dtype` to what pages hold; None: the model's dtype.

    Raises:
        ConfigError: the backend cannot read such pages.
    """
    if asked == AUTO:
        return None
    if asked not in backend.kv_dtypes:
        able = " or ".join(other.name for other in BACKENDS if asked in other.kv_dtypes)
        if not able:
            known = dict.fromkeys(name for other in BACKENDS for name in other.kv_dtypes)
            raise ConfigError(f"--kv-cache-dtype must be one of {AUTO}, {', '.join(known)}, got {asked!r}")
        raise ConfigError(
            f"--kv-cache-dtype {asked} needs --attention-backend {able}, got {backend.name}; use --kv-cache-dtype auto"
        )
    return backend.kv_dtypes[asked]
