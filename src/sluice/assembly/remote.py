"""Remote pages: an engine whose disk tier has the pages of other engines, and no file of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sluice.assembly.loaded import LoadedModel
from sluice.assembly.ranks import layout_of
from sluice.assembly.tiers import LOAD_BACK_PAGES, TierSetup, copy_limits, page_geometry
from sluice.config import ConfigError, EngineConfig
from sluice.models.weights import fingerprint
from sluice.types import TierLimits

TIMES_THE_POOL = 4
"""Pages of others that an engine knows of at once, for each page of its device. They cost it some bytes each."""


def with_remote_pages(loaded: LoadedModel, folder: Path) -> LoadedModel:
    """Return a model whose engines take pages from the page files in a folder.

    Raises:
        ConfigError: it has tiers of its own, or the folder cannot be used.
    """
    config, shape = loaded.info.config, loaded.shape
    _refuse(config, folder)
    geometry = page_geometry(loaded.spec, shape, fingerprint(loaded.info.folder), layout=loaded.backend.layout)
    per_step, in_flight = copy_limits(config, shape, geometry.page_bytes)
    limits = TierLimits(
        disk_pages=TIMES_THE_POOL * shape.num_pages,
        write_policy="never",
        copies_per_step=per_step,
        copies_in_flight=in_flight,
        load_back_pages=LOAD_BACK_PAGES,
    )
    return replace(loaded, tiers=TierSetup(limits, geometry, remote=folder.absolute()))


def _refuse(config: EngineConfig, folder: Path) -> None:
    shown = f"taking pages from {folder}"
    given = {
        "--kv-disk": config.cache.kv_disk,
        "--kv-host-bytes": config.cache.kv_host_bytes,
        "--trace": config.trace.trace,
    }
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} {value} is not supported beside {shown}")
    if layout_of(config.parallel).size > 1:
        raise ConfigError(f"several ranks are not supported beside {shown}")
    if not config.cache.enable_prefix_caching:
        raise ConfigError(f"{shown} needs the prefix cache, but it is off (--no-enable-prefix-caching)")
    if not folder.is_dir():
        raise ConfigError(f"{shown}: there is no such folder")
