"""The sizes of the keys and values of a token, of all layers or of those with a window apart from the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sluice.attention.backend import AttentionBackend
from sluice.attention.select import kv_dtype
from sluice.attention.spec import LayerHeads, scale_bytes
from sluice.config import EngineConfig
from sluice.models.spec import ModelSpec
from sluice.models.windows import WindowedLayers
from sluice.types.footprint import KVSizes


class GroupSizes(NamedTuple):
    """The sizes of layers with pages of their own."""

    others: KVSizes
    """Of all layers, or of those without a window."""
    window: KVSizes | None
    """Of those with a window; None: they have the same pages as the others."""


def group_sizes(
    config: EngineConfig, spec: ModelSpec, backend: AttentionBackend, windowed: WindowedLayers | None
) -> GroupSizes:
    """Return the sizes of a model's keys and values.

    Args:
        windowed: layers with a window that have pages of their own; None: there are none.
    """
    if windowed is None:
        return GroupSizes(kv_sizes_of(config, spec, backend), None)
    parts: dict[bool, list[LayerHeads]] = {False: [], True: []}
    for heads, has_window in zip(spec.kv_layers, windowed.are_windowed, strict=True):
        parts[has_window].append(heads)
    others, window = (_sizes(parts[has_window], config, spec, backend) for has_window in (False, True))
    return GroupSizes(others, window)


def kv_sizes_of(config: EngineConfig, spec: ModelSpec, backend: AttentionBackend) -> KVSizes:
    """Return the sizes of the keys and values of a token in all layers."""
    return _sizes(spec.kv_layers, config, spec, backend)


def _sizes(layers: Sequence[LayerHeads], config: EngineConfig, spec: ModelSpec, backend: AttentionBackend) -> KVSizes:
    dtype = kv_dtype(config.model.kv_cache_dtype, backend) or spec.dtype
    if len(set(layers)) > 1:  # as one layer with one head, which is as large as all
        size = sum(heads.num_kv_heads * heads.head_dim for heads in layers)
        heads_of_all = sum(heads.num_kv_heads for heads in layers)
        return KVSizes(1, 1, size, dtype.itemsize, heads_of_all * scale_bytes(dtype))
    heads = layers[0] if layers else LayerHeads(spec.num_kv_heads, spec.head_dim)
    return KVSizes(len(layers), heads.num_kv_heads, heads.head_dim, dtype.itemsize, scale_bytes(dtype))
