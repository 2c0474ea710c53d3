"""The blocks of the ring, sized by how fast this machine loads and computes.

Whatever its size, a block takes some tens of microseconds of Python to load, to report, to plan and to merge. So blocks
are so large that this is little beside the load. A chunk of a prompt computes long with such a block, and attends to
parts of it, one after the other (`OffloadLimits.block_parts`). The rate is measured when an engine starts, which takes
some milliseconds. Page sizes never depend on it: a page file holds pages of one size, and would start empty.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from sluice.assembly.kv_sizes import kv_sizes_of
from sluice.assembly.resolve import Resolution
from sluice.attention.backend import AttentionBackend
from sluice.config import ConfigError, OffloadConfig, flag
from sluice.models.spec import ModelSpec
from sluice.storage.blocks import FileBlocks
from sluice.storage.checksums import PageRun, best_checksum, find_checksum
from sluice.types.footprint import KVSizes

LOAD_SECONDS = 2e-4
"""Least time that a block should take to load."""
LEAST_BLOCK, MOST_BLOCK = 1024, 16384
"""Tokens of a block."""
MEASURED_BYTES, PARTS, TIMES = 4 << 20, 32, 3
"""What is loaded to measure: bytes, in so many parts, so many times."""
ASSUMED_LOADING = 5e9
"""Bytes per second, where no file can be written to measure: a full disk must not keep an engine from starting."""
SIDE = 512
"""Rows and columns of the matrices that are multiplied to measure."""


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """How fast a machine is."""

    loading: float
    """Bytes per second that one thread reads from the system's page cache and checks."""
    flops: float
    """FLOP per second of a matrix product, on the threads that compute."""


def measured_rates(threads: int) -> MeasuredRates:
    """Measure this machine for some milliseconds.

    Raises:
        OSError: no temporary file can be written.
    """
    return MeasuredRates(_loading_rate(), _matrix_rate(threads))


def _loading_rate() -> float:
    checksum = find_checksum(best_checksum())
    target = memoryview(bytearray(MEASURED_BYTES))
    with tempfile.TemporaryFile() as unnamed:
        unnamed.write(target)
        unnamed.flush()
        file = FileBlocks(os.dup(unnamed.fileno()))
    try:
        half = MEASURED_BYTES // 2
        k, v = target[:half], target[half:]
        size = half // PARTS
        run = PageRun(
            np.arange(PARTS, dtype=np.int64) * 2 * size,
            np.full(PARTS, checksum.of(k[:size], v[:size]), dtype=np.uint32),
            k,
            v,
        )
        return MEASURED_BYTES / min(_seconds(lambda: file.read_run(checksum, run)) for _ in range(TIMES))
    finally:
        file.close()


def _matrix_rate(threads: int) -> float:
    """Multiply in float32: torch takes several times as long in bfloat16 where oneDNN has no kernel for it, and the
    compiled kernels do not."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        matrix = torch.ones((SIDE, SIDE), dtype=torch.float32)
        return 2.0 * SIDE**3 / min(_seconds(lambda: matrix @ matrix) for _ in range(TIMES))
    finally:
        torch.set_num_threads(before)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def block_tokens(loading: float, kv: KVSizes, page_size: int) -> int:
    """Return the tokens of a block, a multiple of the page size.

    Args:
        loading: as in `MeasuredRates`.
    """
    wanted = loading * LOAD_SECONDS / kv.layer_token_bytes
    rounded = 1 << round(math.log2(max(LEAST_BLOCK, min(wanted, MOST_BLOCK))))
    return -(-rounded // page_size) * page_size


def resolve_ring(
    resolved: Resolution, asked: OffloadConfig, spec: ModelSpec, backend: AttentionBackend, device: torch.device
) -> Resolution:
    """Return the options with a ring for this machine and model, where it was not given; without one for a model whose
    layers differ in size.

    Args:
        asked: the options as they were given.

    Raises:
        ConfigError: an option of long contexts, for such a model.
    """
    if spec.unequal_kv:
        return _without_ring(resolved, asked, spec.architecture)
    config = resolved.config
    threads, page_size = config.model.threads, config.cache.page_size
    is_open = asked.ring_block_tokens is None and config.offload.ring_block_tokens is not None
    if not is_open or device.type != "cpu":
        return resolved
    assert page_size is not None and threads is not None, f"not resolved: {config}"
    kv = kv_sizes_of(config, spec, backend)
    tokens, why = _measured_blocks(threads, kv, page_size)
    offload = replace(config.offload, ring_block_tokens=tokens)
    return resolved.because(replace(config, offload=offload), ring_block_tokens=why)


def _measured_blocks(threads: int, kv: KVSizes, page_size: int) -> tuple[int, str]:
    """Return the tokens of a block, and the reason."""
    try:
        rates = measured_rates(threads)
    except OSError as error:
        what = f"no temporary file could be written to measure: {error.strerror or error}"
        return block_tokens(ASSUMED_LOADING, kv, page_size), f"for {ASSUMED_LOADING / 1e9:g} GB/s; {what}"
    tokens = block_tokens(rates.loading, kv, page_size)
    return tokens, (
        f"blocks load in {1e3 * tokens * kv.layer_token_bytes / rates.loading:.2g} ms, measured at the start:"
        f" {rates.loading / 1e9:.2g} GB/s read and checked beside {rates.flops / 1e9:.3g} GFLOP/s"
    )


def _without_ring(resolved: Resolution, asked: OffloadConfig, architecture: str) -> Resolution:
    names = [item.name for item in fields(asked)]
    for name in names:
        if (value := getattr(asked, name)) is not None:
            raise ConfigError(
                f"{flag(name)} {value} is not supported by {architecture}, whose layers differ in the size of their"
                " keys and values: all of a context is on the device"
            )
    reasons = {name: why for name, why in resolved.reasons.items() if name not in names}
    return replace(resolved, config=replace(resolved.config, offload=OffloadConfig()), reasons=reasons)
