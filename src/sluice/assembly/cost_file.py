"""The file that keeps what engines have learnt of the time that steps take (`--cost-model`).

Several engines may share a file: an entry is written beside those that are there then, under a lock of the file's
folder, and the file is replaced as a whole. A link to a file stays a link.
"""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from sluice.assembly.ranks import layout_of, shown_sizes
from sluice.config import ConfigError, EngineConfig
from sluice.device.machine import processor_name, usable_cores
from sluice.scheduler.cost import KEPT_RATIOS, NUM, LearntRegime
from sluice.scheduler.pacer import LearntPacing

FORMAT = 2
RETRY_SECONDS = 0.02

LARGEST = 1e50
"""Largest number that is accepted. Products of a few are finite, and their reciprocals are not 0."""


class Key(NamedTuple):
    """What costs are learnt for."""

    machine: str
    model: str
    dtype: str
    threads: int | None
    kernels: str

    @classmethod
    def of(cls, config: EngineConfig, device: torch.device) -> Key:
        """Return the key of a resolved config."""
        model = config.model
        if device.type == "cuda":
            machine = torch.cuda.get_device_name(device)
        else:
            machine = f"{processor_name()}, {usable_cores()} cores"
        kernels = f"{model.cpu_kernels}, {model.attention_backend}, {model.kv_cache_dtype}"
        if model.quantization in ("int8", "int4", "fp8", "gguf"):
            kernels += f", {model.quantization} weights"
        if layout_of(config.parallel).size > 1:
            kernels += f", {shown_sizes(config.parallel)}"
        return cls(f"{platform.machine()}: {machine}", model.model, model.dtype, model.threads, kernels)


class LearntEntry(NamedTuple):
    """What was learnt for one key."""

    key: Key
    learnt: LearntPacing


class CostFile(msgspec.Struct, frozen=True):
    """The content of a cost model's file."""

    format: int = FORMAT
    entries: tuple[LearntEntry, ...] = ()


def read_costs(path: Path) -> CostFile:
    """Return what a file holds; nothing if there is none.

    Raises:
        ConfigError: it cannot be read or written, or is no cost model.
    """
    try:
        content = path.read_bytes() if path.exists() else b""
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(0, "it cannot be written")
    except OSError as error:
        raise ConfigError(f"--cost-model {path}: {error.strerror}") from error
    if not content:
        return CostFile()
    try:
        found = msgspec.json.decode(content, type=CostFile)
        if found.format == FORMAT:
            for entry in found.entries:
                check_learnt(entry.learnt)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"--cost-model {path} is no cost model: {error}; name another file, or remove it to begin anew"
        ) from error
    if found.format != FORMAT:
        raise ConfigError(f"--cost-model {path} has format {found.format}, {FORMAT} is accepted; name another file")
    return found


def write_entry(path: Path, entry: LearntEntry, patience: float = 0.0) -> bool:
    """Write an entry, in the place of one of its key, beside the others that the file has now.

    Args:
        patience: seconds to wait for another engine that writes to the same folder.

    Returns:
        Whether it was written. If not, another engine is writing.

    Raises:
        OSError: the file cannot be written.
        ConfigError: as `read_costs`: the file holds something else by now.
    """
    path = path.resolve()
    deadline = time.monotonic() + patience
    with _folder(path) as descriptor:
        while not _lock(descriptor):
            if time.monotonic() >= deadline:
                return False
            time.sleep(RETRY_SECONDS)
        others = (each for each in read_costs(path).entries if each.key != entry.key)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            temporary.write_bytes(msgspec.json.encode(CostFile(FORMAT, (*others, entry))))
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
    return True


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    """Open the folder of a file. Closing it ends the lock."""
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Try to lock a folder. Return whether this engine holds the lock now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def check_learnt(learnt: LearntPacing) -> None:
    """
    Raises:
        ValueError: a number is missing, out of range or one too many; the message names it.
    """
    _check_above_0("prior", learnt.costs.prior.values)
    _check_not_below_0("largest_mixed and largest", (learnt.largest_mixed, learnt.largest))
    for regime, each in learnt.costs.regimes.items():
        try:
            _check_regime(each)
        except ValueError as error:
            raise ValueError(f"{regime.value} steps: {error}") from None


def _check_regime(learnt: LearntRegime) -> None:
    """
    Raises:
        ValueError: as `check_learnt`.
    """
    if learnt.num_steps < 1:
        raise ValueError(f"num_steps is {learnt.num_steps}, it must be above 0")
    for name, values in (("matrix", learnt.matrix), ("vector", learnt.vector), ("factors", learnt.factors)):
        if len(values) != NUM:
            raise ValueError(f"{name} has {len(values)} entries of {NUM}")
    for row in learnt.matrix:
        if len(row) != NUM:
            raise ValueError(f"a row of matrix has {len(row)} entries of {NUM}")
        _check_not_below_0("matrix", row)
    if not 1 <= len(learnt.ratios) <= KEPT_RATIOS:
        raise ValueError(f"ratios has {len(learnt.ratios)} entries, 1 to {KEPT_RATIOS} are accepted")
    _check_not_below_0("vector", learnt.vector)
    _check_not_below_0("factors", learnt.factors)
    _check_above_0("sums", learnt.sums)
    _check_above_0("gain", (learnt.gain,))
    _check_above_0("ratios", learnt.ratios)


def _check_not_below_0(name: str, values: Iterable[float]) -> None:
    for value in values:
        if not 0 <= value <= LARGEST:
            raise ValueError(f"{name} has {value}, from 0 to {LARGEST:g} is accepted")


def _check_above_0(name: str, values: Iterable[float]) -> None:
    for value in values:
        if not 1 / LARGEST <= value <= LARGEST:
            raise ValueError(f"{name} has {value}, from {1 / LARGEST:g} to {LARGEST:g} is accepted")
