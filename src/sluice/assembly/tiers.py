"""From options to the tiers behind the device: their sizes, their contents, and the copies between them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from sluice.assembly.ranks import layout_of, ranks_per_node
from sluice.attention.spec import scale_bytes, stored_as
from sluice.config import CacheConfig, ConfigError, EngineConfig, MemoryShortage, OffloadConfig
from sluice.device.background import Background
from sluice.device.machine import free_memory
from sluice.device.pages import DevicePages
from sluice.device.queues import CudaQueue, pinned_host_buffer, plain_host_buffer
from sluice.models.spec import ModelSpec
from sluice.models.weights import fingerprint
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.storage.checksums import best_checksum
from sluice.storage.copies import Copies, NoTiers, PageCopies
from sluice.storage.disk_tier import DiskTier
from sluice.storage.host_tier import HostTier
from sluice.storage.opening import check_path, open_page_file
from sluice.storage.page_file import PageFile
from sluice.storage.page_file_format import FileLayout, PageFileError, PageGeometry
from sluice.storage.remote_pages import RemotePages
from sluice.types import CopyDone, StoredPage, Tier, TierLimits
from sluice.version import VERSION

LOGGER = logging.getLogger("sluice.disk")

STEP_BYTES = {"cpu": 16 << 20, "cuda": 256 << 20}
"""Most bytes that one step copies: about ten milliseconds of a core on a CPU, and of PCIe on a GPU."""
STEP_COPIES = 64
"""Most pages that one step copies: each costs the host some tens of microseconds."""
LOAD_BACK_PAGES = 2
"""Smallest number of pages to load. Fewer are computed again: a load costs a step of its own, in which so few tokens
are computed nearly for free. Measured in `docs/tiers.md`."""
FLIGHT_BYTES = 256 << 20
"""Most bytes being copied to and from a disk, which are held in memory meanwhile."""
IN_USE_SECONDS = 5.0
"""How long to wait for a file in use: an engine that was closed may be in the middle of a copy."""
ANSWER_SECONDS = 30.0
"""How long a disk may take to return a file's header before it counts as hanging."""


class RankPages(NamedTuple):
    """How many pages a rank has room for, or how many each has."""

    device: int
    host: int
    """Pages of the host tier; 0 without one."""

    def common(self, other: RankPages) -> RankPages:
        """Return what both have room for."""
        return RankPages(min(self.device, other.device), min(self.host, other.host))


@dataclass(frozen=True, slots=True)
class TierSetup:
    """The tiers of an engine, before they are opened."""

    limits: TierLimits
    geometry: PageGeometry | None = None
    """Geometry of pages on the disk."""
    disk: Path | None = None
    disk_bytes: int = 0
    is_part: bool = False
    """Other ranks hold the rest of each page."""
    remote: Path | None = None
    """Folder of the page files of other engines, whose pages the disk tier holds. It has no file of its own then."""

    def open(
        self, state: DeviceState, report: Callable[[tuple[CopyDone, ...]], None], *, must_exist: bool = False
    ) -> OpenTiers:
        """Open the tiers. The disk's file is locked until the copies are closed.

        Args:
            state: the device's.
            report: called from another thread with copies from and to the disk that have ended.
            must_exist: whether the disk's file must be as an engine before has left it.

        Raises:
            DiskUnusable: the file cannot be used.
        """
        if not self.limits.host_pages and self.disk is None and self.remote is None:
            return OpenTiers(NoTiers(), ())
        pages, device = DevicePages(state.kv), state.shape.device
        is_cuda = device.type == "cuda"
        host_buffer = pinned_host_buffer if is_cuda else plain_host_buffer
        host = HostTier(self.limits.host_pages, pages, host_buffer) if self.limits.host_pages else None
        loading = CudaQueue(torch.cuda.Stream(device)) if is_cuda else None
        stored: tuple[StoredPage, ...] = ()
        file: PageFile | None = None
        remote: RemotePages | None = None
        disk = None
        if self.disk is not None:  # last, as it has to be closed after any error
            file, stored = self._open_disk(self.disk, state, must_exist=must_exist)
        elif self.remote is not None:
            assert self.geometry is not None, f"{self.remote} without a geometry"
            remote = RemotePages(self.geometry, self.limits.disk_pages, self.remote)
            disk = DiskTier(remote, report)
        if file is not None:
            disk = _disk_tier(file, report)
        copies = PageCopies(pages, host, disk, host_buffer, loading, is_part=self.is_part)
        return OpenTiers(copies, stored, host, file, remote)

    def _open_disk(
        self, path: Path, state: DeviceState, *, must_exist: bool
    ) -> tuple[PageFile, tuple[StoredPage, ...]]:
        assert self.geometry is not None, f"{path} without a geometry"
        assert self.geometry.layout == state.kv[0].layout, f"pages are {state.kv[0].layout}"
        try:
            opened = open_page_file(path, self.disk_bytes, self.geometry, IN_USE_SECONDS, must_exist=must_exist)
        except PageFileError as error:
            raise DiskUnusable(str(error)) from error
        if opened.discarded is not None:
            LOGGER.warning("--kv-disk %s starts empty: it %s", path, opened.discarded)
        if opened.num_damaged:
            LOGGER.warning("--kv-disk %s has lost %d pages, whose entries are damaged", path, opened.num_damaged)
        if opened.pages:
            LOGGER.info("--kv-disk %s holds %d pages of an earlier engine", path, len(opened.pages))
        return opened.file, opened.pages


def _disk_tier(file: PageFile, report: Callable[[tuple[CopyDone, ...]], None]) -> DiskTier:
    """Return the tier of a page file, which is closed if that fails."""
    try:
        return DiskTier(file, report)
    except BaseException:
        file.close()
        raise


@dataclass(frozen=True, slots=True)
class OpenTiers:
    """The tiers of a running engine."""

    copies: Copies
    stored: tuple[StoredPage, ...]
    """Pages that the disk held when it was opened."""
    host: HostTier | None = None
    file: PageFile | None = None
    """The disk's file, for reading layer by layer."""
    remote: RemotePages | None = None
    """The pages of other engines, where the disk tier has these alone."""


NO_TIERS = OpenTiers(NoTiers(), ())


class DiskUnusable(ConfigError):
    """The file of the disk tier cannot be used. An engine that follows another one then serves without the tier."""


def check_disk(cache: CacheConfig, *, must_exist: bool = False) -> None:
    """Check that the disk's file can be used, before minutes of loading. Waits for an engine that is closing.

    Args:
        must_exist: whether the file must be as an engine before has left it.

    Raises:
        DiskUnusable: it cannot be used, another engine uses it, or its disk hangs.
    """
    if cache.kv_disk is None:
        return
    path, looking = Path(cache.kv_disk), Background("kv-disk-check")
    try:
        looking.submit(partial(check_path, path, IN_USE_SECONDS, must_exist=must_exist)).result(ANSWER_SECONDS)
    except PageFileError as error:
        raise DiskUnusable(str(error)) from error
    except TimeoutError as error:
        raise DiskUnusable(
            f"--kv-disk {path} cannot be used: its disk gave no answer for {ANSWER_SECONDS:g} s"
        ) from error
    finally:
        looking.close(0.0)


def without_disk(config: EngineConfig) -> EngineConfig:
    """Return a config without the disk tier and without options that need one."""
    cache = replace(config.cache, kv_disk=None, kv_disk_bytes=None)
    if cache.kv_host_bytes is not None:
        return replace(config, cache=cache)
    return replace(config, cache=replace(cache, kv_write_policy=None), offload=OffloadConfig())


def tier_setup(
    config: EngineConfig,
    spec: ModelSpec,
    shape: DeviceShape,
    folder: Path,
    *,
    layout: str,
    disabled: Collection[Tier] = (),
) -> TierSetup:
    """Return the tiers of a resolved config for a loaded model.

    Args:
        folder: the checkpoint's.
        layout: of pages in memory, by name.
        disabled: tiers that the config lacks because they could not be opened.

    Raises:
        ConfigError: a tier that holds not even one page.
        MemoryShortage: a tier that does not fit into memory.
    """
    cache = config.cache
    geometry, disk, disk_bytes, disk_pages = None, None, 0, 0
    page_bytes = page_geometry(spec, shape, "", layout=layout).page_bytes
    host_pages = _host_pages(cache, page_bytes, ranks_per_node(config.parallel))
    if cache.kv_disk is not None:
        assert cache.kv_disk_bytes is not None, f"not resolved: {cache}"
        geometry = page_geometry(spec, shape, fingerprint(folder), layout=layout)
        disk, disk_bytes = Path(cache.kv_disk), cache.kv_disk_bytes
        try:
            disk_pages = FileLayout.within(geometry, disk_bytes).num_pages
        except PageFileError as error:
            raise ConfigError(str(error)) from error
    if not host_pages and disk is None:
        return TierSetup(TierLimits(disabled=tuple(disabled)))
    assert cache.kv_write_policy is not None, f"not resolved: {cache}"
    per_step, in_flight = copy_limits(config, shape, page_bytes)
    limits = TierLimits(
        host_pages=host_pages,
        disk_pages=disk_pages,
        write_policy=cache.kv_write_policy,
        copies_per_step=per_step,
        copies_in_flight=in_flight,
        load_back_pages=LOAD_BACK_PAGES,
        disabled=tuple(disabled),
    )
    return TierSetup(limits, geometry, disk, disk_bytes, is_part=layout_of(config.parallel).size > 1)


def copy_limits(config: EngineConfig, shape: DeviceShape, page_bytes: int) -> tuple[int, int]:
    """Return the most copies that a step may have, and that may be in flight."""
    # At least what a step computes: stores that fall behind lose their pages.
    computed = 1 + -(-(config.scheduler.chunked_prefill_size or 0) // shape.page_size)  # a last chunk has a page more
    per_step = max(1, min(STEP_COPIES, max(computed, STEP_BYTES[shape.device.type] // page_bytes)))
    return per_step, max(per_step, min(4 * STEP_COPIES, FLIGHT_BYTES // page_bytes))


def page_geometry(spec: ModelSpec, shape: DeviceShape, model: str, *, layout: str) -> PageGeometry:
    """Return the geometry of a page of this model on this device.

    Layers that differ in size count as so many equal ones as take the same room (`DevicePages`).
    """
    dtype = shape.page_dtype
    keys = [
        shape.page_size * layer.num_kv_heads * (layer.head_dim * dtype.itemsize + scale_bytes(dtype))
        for layer in shape.layers
    ]
    part_bytes = math.gcd(*keys)
    return PageGeometry(
        model=model,
        code=_code(spec),
        dtype=stored_as(dtype),
        layout=layout,
        page_size=shape.page_size,
        num_layers=sum(keys) // part_bytes,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        part_bytes=part_bytes,
        checksum=best_checksum(),
    )


def _code(spec: ModelSpec) -> str:
    """Return what computes a model's KV. Quantised weights compute other values."""
    code = f"sluice {VERSION} {spec.implementation} in {str(spec.dtype).removeprefix('torch.')}"
    return code if spec.quantization == "none" else f"{code}, {spec.quantization} weights"


def _host_pages(cache: CacheConfig, page_bytes: int, ranks: int) -> int:
    """Return how many pages the host tier has, or a rank's share of it.

    Args:
        page_bytes: of a page, or of the rank's part of one.
        ranks: that share the host's memory evenly.
    """
    if cache.kv_host_bytes is None:
        return 0
    least = page_bytes * ranks
    if cache.kv_host_bytes < least:
        shared = f" on each of {ranks} ranks" if ranks > 1 else ""
        raise ConfigError(
            f"--kv-host-bytes must be at least one page{shared}, {least} bytes, got {cache.kv_host_bytes}"
        )
    free = free_memory(torch.device("cpu"))
    if cache.kv_host_bytes > free:
        raise MemoryShortage(
            f"--kv-host-bytes must fit into the host's free memory, {free} bytes, got {cache.kv_host_bytes}"
        )
    return cache.kv_host_bytes // least
