"""Whether layers with a window have pages of their own, and how many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sluice.attention.backend import AttentionBackend
from sluice.config import EngineConfig
from sluice.device.memory import WindowRequest
from sluice.models.base import PagedLM
from sluice.models.decoder import Decoder
from sluice.models.spec import ModelSpec
from sluice.models.windows import WindowedLayers
from sluice.runner.device_state import DeviceShape
from sluice.runner.windows import WindowShape
from sluice.scheduler.window_reserve import window_reserve
from sluice.types import CACHED_SHARE
from sluice.types.footprint import KVSizes


def windows_of(
    config: EngineConfig, model: PagedLM, spec: ModelSpec, backend: AttentionBackend, *, shares_pages: bool
) -> tuple[WindowedLayers | None, str | None]:
    """Return the layers that are to have pages of their own, or why those with a window have none.

    Args:
        config: resolved.
        shares_pages: whether the engine takes pages of others.
    """
    layers = model.windowed_layers if isinstance(model, Decoder) else None
    if layers is None:
        return None, None
    problem = _problem(config, spec, backend, layers.length, shares_pages=shares_pages)
    if problem is None:
        return layers, None
    return None, f"layers with a window keep the whole context: {problem}"


def _problem(
    config: EngineConfig, spec: ModelSpec, backend: AttentionBackend, length: int, *, shares_pages: bool
) -> str | None:
    cache = config.cache
    if spec.max_model_len <= length:
        return f"no request is longer than the window of {length}"
    if not backend.takes_windows:
        return f"the {backend.name} attention has one page table"
    if cache.kv_disk is not None or cache.kv_host_bytes is not None:
        return "tiers copy pages of all layers"
    if shares_pages:
        return "pages of other engines have all layers"
    if config.parallel.pp_size > 1:
        return f"--pp-size {config.parallel.pp_size}"
    return None if spec.diffusion is None else "a model of block diffusion"


def window_request(
    config: EngineConfig, spec: ModelSpec, layers: WindowedLayers | None, sizes: KVSizes | None
) -> WindowRequest | None:
    """Return the pages that layers with a window are to have, beside those of the others.

    Args:
        sizes: of the keys and values of these layers.
    """
    if layers is None or sizes is None:
        return None
    limits, depth, page_size = config.scheduler.limits(), config.scheduler.depth, config.cache.page_size
    assert depth is not None and page_size is not None, f"not resolved: {config}"
    reserve = window_reserve(limits, layers.length, page_size, depth, spec.max_model_len)
    return WindowRequest(page_size * sizes.token_bytes, reserve, CACHED_SHARE)


def with_windows(shape: DeviceShape, layers: WindowedLayers | None, request: WindowRequest | None) -> DeviceShape:
    """Return the shape with the pages of layers with a window, by the number of its other pages."""
    if layers is None or request is None:
        return replace(shape, window=None)
    window = WindowShape(layers.length, request.pages_beside(shape.num_pages), layers.are_windowed)
    return replace(shape, window=window)


def shown_windows(window: WindowShape, page_size: int) -> str:
    """Return what `explain` says of them."""
    return f"layers with a window of {window.length} have {window.num_pages * page_size} tokens of their own"


def because(why_pool: Mapping[str, str], why_windows: str | None) -> Mapping[str, str]:
    """Return why the pool is as large as it is, with what there is to say of layers with a window."""
    if why_windows is None:
        return why_pool
    own = why_pool.get("max_total_tokens")
    return {"max_total_tokens": why_windows if own is None else f"{own}; {why_windows}"}
