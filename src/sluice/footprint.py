"""What an engine holds in memory, part by part: as arithmetic, to plan with and to compare with what was allocated.

device   weights | pool: pages, all layers of them            | ring: blocks of no layer in particular
                   ... a offloaded chunk's own among them        half computes, half loads
beneath  host or disk: all pages of a offloaded request, but for those of its chunk; the only part that grows
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class KVSizes:
    """Of the keys and values of a model."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    element_bytes: int

    @property
    def layer_token_bytes(self) -> int:
        """Keys and values of one token in one layer."""
        return 2 * self.num_kv_heads * self.head_dim * self.element_bytes

    @property
    def token_bytes(self) -> int:
        """The same in all layers."""
        return self.num_layers * self.layer_token_bytes


@dataclass(frozen=True, slots=True)
class OffloadSizes:
    """Of what contexts longer than the device pass through, in tokens."""

    ring_blocks: int
    group_blocks: int
    """Of these, attended to at once."""
    block_tokens: int
    window_tokens: int
    """Of one such context on the device: its chunk, and what is on its way to the tier beneath."""
    page_tokens: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes by part."""

    weights_bytes: int = 0
    device_kv_bytes: int = 0
    """All keys and values on the device: `pool_bytes + ring_bytes`."""
    pool_bytes: int = 0
    """Pages of requests, all layers of them."""
    ring_bytes: int = 0
    """Blocks through which long contexts pass."""
    prefill_buffer_bytes: int = 0
    """Of the pool, the window of one offloaded request: its chunk, and what is on its way to the tier beneath."""
    pipeline_buffer_bytes: int = 0
    """Of the ring, what loads while the rest computes."""
    decode_buffer_bytes: int = 0
    """Of this window, the page that the tokens made last are in."""
    host_bytes: int = 0
    disk_bytes: int = 0

    def as_dict(self) -> dict[str, int]:
        """By the names of the parts."""
        return asdict(self)


def device_footprint(
    kv: KVSizes, pool_tokens: int, offload: OffloadSizes | None, *, weights_bytes: int = 0
) -> Footprint:
    """What is on the device, however long the contexts are.

    Args:
        pool_tokens: that the pool holds.
        stream: None: all contexts fit the pool.
    """
    pool = pool_tokens * kv.token_bytes
    if offload is None:
        return Footprint(weights_bytes=weights_bytes, device_kv_bytes=pool, pool_bytes=pool)
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
    """Of a offloaded request of so many tokens, beneath the device."""
    return _pages(length, page_tokens) * page_tokens * kv.token_bytes


def _pages(tokens: int, page_tokens: int) -> int:
    return -(-tokens // page_tokens)
