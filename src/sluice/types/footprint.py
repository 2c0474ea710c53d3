"""An engine's memory in bytes by part, computed from sizes: to predict it, and to compare with what was allocated.

device      weights | pool: pages with all layers                | ring: blocks of single layers
                      (an offloaded chunk's own pages among them)  (half compute, half load)
lower tier  host or disk: the pages of offloaded requests, except their chunks'; the only part that grows with a context
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class KVSizes:
    """Sizes of a model's keys and values."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    element_bytes: int
    scale_bytes: int = 0
    """Bytes of scales of a token's key, or value, of one KV head, beside its elements."""

    @property
    def layer_token_bytes(self) -> int:
        """Bytes of a token's keys and values in one layer."""
        return 2 * self.num_kv_heads * (self.head_dim * self.element_bytes + self.scale_bytes)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        return self.num_layers * self.layer_token_bytes


@dataclass(frozen=True, slots=True)
class OffloadSizes:
    """Sizes of the buffers of contexts longer than the device, in tokens."""

    ring_blocks: int
    group_blocks: int
    """Blocks of the ring that are attended to at once."""
    block_tokens: int
    window_tokens: int
    """Tokens of such a context on the device: its chunk, and pages being copied to the tier."""
    page_tokens: int
    page_bounds_bytes: int = 0
    """Bytes that the sparse policy keeps of each page of such a context."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory in bytes, by part."""

    weights_bytes: int = 0
    device_kv_bytes: int = 0
    """All keys and values on the device: `pool_bytes + ring_bytes`."""
    pool_bytes: int = 0
    """Pages of requests, with all layers."""
    window_bytes: int = 0
    """Part of the pool: pages of layers with a window, where these have pages of their own."""
    ring_bytes: int = 0
    """Blocks through which offloaded contexts are read."""
    prefill_buffer_bytes: int = 0
    """Part of the pool: the window of one offloaded request."""
    pipeline_buffer_bytes: int = 0
    """Part of the ring: the blocks that load while the others are attended to."""
    decode_buffer_bytes: int = 0
    """Part of this window: the page of the latest tokens."""
    draft_bytes: int = 0
    """What a draft model or head keeps of each position of the pool, beside `device_kv_bytes`."""
    adapter_bytes: int = 0
    """Slots of adapters, beside `weights_bytes`."""
    state_bytes: int = 0
    """Recurrent states of running requests, of a model that has them."""
    record_bytes: int = 0
    """Records of such states, from which requests with a cached prefix go on."""
    bounds_bytes: int = 0
    """What a sparse policy keeps of the pages of offloaded contexts, beside `device_kv_bytes`; it grows with them."""
    host_bytes: int = 0
    disk_bytes: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def device_footprint(
    kv: KVSizes,
    pool_tokens: int,
    offload: OffloadSizes | None,
    *,
    weights_bytes: int = 0,
    window_bytes: int = 0,
) -> Footprint:
    """Return the memory on the device, which does not depend on the length of contexts.

    Args:
        kv: of all layers, or of those without a window.
        pool_tokens: tokens that the pool holds.
        offload: None if all contexts fit into the pool.
        window_bytes: of the pages of layers with a window.
    """
    pool = pool_tokens * kv.token_bytes + window_bytes
    if offload is None:
        return Footprint(weights_bytes=weights_bytes, device_kv_bytes=pool, pool_bytes=pool, window_bytes=window_bytes)
    block = offload.block_tokens * kv.layer_token_bytes
    ring = offload.ring_blocks * block
    page = offload.page_tokens * kv.token_bytes
    return Footprint(
        weights_bytes=weights_bytes,
        device_kv_bytes=pool + ring,
        pool_bytes=pool,
        ring_bytes=ring,
        prefill_buffer_bytes=_pages(offload.window_tokens, offload.page_tokens) * page,
        pipeline_buffer_bytes=(offload.ring_blocks - offload.group_blocks) * block,
        decode_buffer_bytes=page,
    )


def stored_bytes(kv: KVSizes, length: int, page_tokens: int) -> int:
    """Return the bytes of an offloaded request of `length` tokens on its tier."""
    return _pages(length, page_tokens) * page_tokens * kv.token_bytes


def bounds_bytes(length: int, offload: OffloadSizes) -> int:
    """Return the bytes that the sparse policy keeps of an offloaded request of `length` tokens."""
    return length // offload.page_tokens * offload.page_bounds_bytes


def _pages(tokens: int, page_tokens: int) -> int:
    return -(-tokens // page_tokens)
