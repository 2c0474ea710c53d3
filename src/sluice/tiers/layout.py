"""Where what lies in a page file.

    [ header, 4 KiB | index: an entry a slot | record | record | ... ]

A *record* is one page of all layers, one after the other, the keys of a layer before its values, so that one layer of
one page is contiguous; records begin at multiples of 4 KiB, so that they can be mapped and read past the page cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.tiers.errors import PageFileError

BLOCK = 4096
SALT_BYTES = 1024
"""Room for an `extra_key` in UTF-8: 256 characters of any kind."""
ENTRY_HEAD_BYTES = 96
TOKEN_BYTES = CHECKSUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class PageGeometry:
    """What a record is made of. Files of another geometry hold nothing that could be used."""

    model: str
    """Digest of the weights and the config."""
    code: str
    """Which code computes keys and values: a release, and an implementation."""
    dtype: str
    layout: str
    """How a page of one layer lies in memory, by name."""
    page_size: int
    """Tokens."""
    num_layers: int
    num_kv_heads: int
    head_dim: int
    part_bytes: int
    """Bytes of the keys of one layer of a page; the values take as many."""

    @property
    def page_bytes(self) -> int:
        """Bytes of a page that carry something."""
        return 2 * self.num_layers * self.part_bytes

    @property
    def record_bytes(self) -> int:
        """From the beginning of a record to that of the next."""
        return round_up(self.page_bytes, BLOCK)

    @property
    def entry_bytes(self) -> int:
        return ENTRY_HEAD_BYTES + SALT_BYTES + self.page_size * TOKEN_BYTES + self.num_layers * CHECKSUM_BYTES

    def difference(self, other: PageGeometry) -> str | None:
        """The first thing that differs, in words; None if nothing does."""
        for name, words in NAMES:
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                return words if name == "model" else f"{words} {theirs}, not {ours}"
        return None


NAMES = (
    ("model", "the KV of other weights"),
    ("dtype", "KV in"),
    ("page_size", "pages of"),
    ("num_layers", "layers:"),
    ("num_kv_heads", "KV heads:"),
    ("head_dim", "a head size of"),
    ("layout", "the layout"),
    ("code", "what was computed by"),
    ("part_bytes", "bytes of a layer's keys:"),
)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Offsets in a file of `num_slots` records, in bytes."""

    geometry: PageGeometry
    num_slots: int

    @classmethod
    def within(cls, geometry: PageGeometry, size: int) -> FileLayout:
        """As many records as fit into `size` bytes.

        Raises:
            PageFileError: not even one does.
        """
        rest = size - 2 * BLOCK  # the header, and what rounds up the index
        slots = rest // (geometry.record_bytes + geometry.entry_bytes)
        if slots < 1:
            least = cls(geometry, 1).file_bytes
            raise PageFileError(
                f"--kv-disk-bytes must be at least {least + BLOCK}, room for one page of {geometry.page_size} tokens,"
                f" got {size}"
            )
        return cls(geometry, slots)

    @property
    def index_bytes(self) -> int:
        return self.num_slots * self.geometry.entry_bytes

    @property
    def records_at(self) -> int:
        return BLOCK + round_up(self.index_bytes, BLOCK)

    @property
    def file_bytes(self) -> int:
        return self.records_at + self.num_slots * self.geometry.record_bytes

    def entry_at(self, slot: int) -> int:
        return BLOCK + slot * self.geometry.entry_bytes

    def record_at(self, slot: int) -> int:
        return self.records_at + slot * self.geometry.record_bytes

    def part_at(self, slot: int, layer: int) -> int:
        """Where the keys of a layer of a page begin; its values follow them."""
        return self.record_at(slot) + 2 * layer * self.geometry.part_bytes


def round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
