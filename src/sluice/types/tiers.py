"""Pages of KV behind the device: their tiers, names and copies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Tier(StrEnum):
    """The places where a page of KV may be, fastest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


def why_none_longer(disabled: Tier) -> str:
    """Return why no context may be longer than the device when a tier is disabled, as a clause for an error."""
    return f"the {disabled} tier, which held longer ones, could not be opened when the engine was restarted"


@dataclass(frozen=True, slots=True)
class TierLimits:
    """Sizes of the tiers behind the device, and how pages are copied there. No pages: no such tier."""

    host_pages: int = 0
    disk_pages: int = 0
    write_policy: str = "write-through"
    """write-through: a page is stored when it is published; write-back: when it is evicted from the tier above;
    selective: when it is used again; never: the tier is filled by `LowerTiers.publish` alone."""
    copies_per_step: int = 64
    """Most pages that one plan copies: the byte budget of a step, in pages."""
    copies_in_flight: int = 256
    """Most planned copies that have not ended."""
    load_back_pages: int = 1
    """Smallest number of pages that is loaded; fewer are computed again."""
    disabled: tuple[Tier, ...] = ()
    """Tiers that an engine before had, and that could not be opened again."""

    def pages_on(self, tier: Tier) -> int:
        """Return the pages of a tier behind the device."""
        return self.host_pages if tier is Tier.HOST else self.disk_pages


class PageKey(NamedTuple):
    """The content of a page, in terms that outlive the process: an index of these restores the prefix tree.

    `digest` is a function of `extra_key` and of all tokens from the beginning to the page's end, `parent` the digest of
    the page before it, empty if there is none.
    """

    digest: bytes
    parent: bytes
    token_ids: tuple[int, ...]
    """Tokens of this page, as many as a page holds."""
    extra_key: str


class PageCopy(NamedTuple):
    """One page of KV, all layers, from one tier to another: a *load* if to the device, else a *store*.

    Pages of HOST and DISK are numbered from 0 like those of the device. The source of a store is read in plan order: it
    may be overwritten by what follows in the plan. Until its `CopyDone` has come back, the target of a load is neither
    read nor written, and its source is not overwritten.
    """

    ticket: int
    """Number of the copy; never used twice."""
    source: Tier
    source_page: int
    target: Tier
    target_page: int
    checksum: int = 0
    """The checksum that the store of the page returned, for a load. Other bytes make the copy fail."""
    key: PageKey | None = None
    """The key of the page, for a store to DISK."""


class CopyDone(NamedTuple):
    """How a copy ended. One that failed has an `error`; its target may then hold anything."""

    ticket: int
    checksum: int = 0
    """Checksum of the stored bytes, for a store."""
    error: str | None = None


class StoredPage(NamedTuple):
    """A page that a disk tier held when it was opened."""

    page: int
    key: PageKey
    checksum: int


class PageOffer(NamedTuple):
    """Pages of a context that one engine has stored, as they are described to another one."""

    source: str
    """Where the pages are stored, as the transfer has it; for page files, the path."""
    layout: str
    """What the pages are made of: digest of the weights, layout and sizes. Another engine's must be the same."""
    pages: tuple[StoredPage, ...]
    """Pages from the beginning of the context on, without a gap."""


class TierUse(NamedTuple):
    """How full a tier behind the device is, and its copies since the engine started, in pages."""

    tier: Tier
    total: int
    used: int
    stored: int = 0
    failed_stores: int = 0
    loaded: int = 0
    failed_loads: int = 0
    """Pages that could not be read, or were not as stored, and were computed again."""
    lost: int = 0
    """Pages evicted from the cache altogether; counted on the first tier."""
    retired: int = 0
    """Pages that could not be read, and hold nothing any more: neither used nor free."""
