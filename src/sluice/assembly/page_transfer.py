"""The transfer by page files: what one engine stores in its file, another one reads there, on a path that both see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sluice.assembly.tiers import OpenTiers, TierSetup
from sluice.kv.handover import Taking, stored_pages
from sluice.kv.manager import KVManager
from sluice.storage.page_file_format import PageGeometry
from sluice.storage.remote_pages import RemotePages
from sluice.types import PageOffer

PAGES_AT_ONCE = 128
"""Pages that are taken between two steps: 4 ms, for which streams stand still."""


class PageFileTransfer:
    """Carries pages by page files (`engine.transfer.Transfer`).

    Args:
        kv: of the engine.
        geometry: of its pages.
        own: its page file; None: it offers no pages.
        remote: the pages of others; None: it takes none.
    """

    def __init__(self, kv: KVManager, geometry: PageGeometry, own: Path | None, remote: RemotePages | None) -> None:
        self._kv = kv
        self._layout = geometry.fingerprint
        self._own = own
        self._remote = remote

    def offer(self, tokens: Sequence[int], extra_key: str) -> PageOffer:
        if self._own is None:
            raise ValueError("this engine offers no pages: it has no page file (--kv-disk)")
        return PageOffer(str(self._own.absolute()), self._layout, stored_pages(self._kv, tokens, extra_key))

    def take(self, offer: PageOffer) -> PageIntake:
        if self._remote is None:
            raise ValueError("this engine takes no pages of others")
        if offer.layout != self._layout:
            raise ValueError(f"pages of {offer.source} are of other weights, another layout or another release")
        path = self._remote.check(offer.source)
        return PageIntake(Taking(self._kv, offer.pages), self._remote, path)


class PageIntake:
    """Pages of another engine's file that are being made loadable (`engine.transfer.Intake`).

    Args:
        path: of the file.
    """

    def __init__(self, taking: Taking, remote: RemotePages, path: Path) -> None:
        self._taking = taking
        self._remote = remote
        self._path = path

    def go_on(self) -> int | None:
        for placed in self._taking.go_on(PAGES_AT_ONCE):
            self._remote.place(placed.page, self._path, placed.stored)
        return self._taking.num_tokens if self._taking.is_over else None


def transfer_of(kv: KVManager, setup: TierSetup, tiers: OpenTiers) -> PageFileTransfer | None:
    """Return what carries the pages of an engine; None if it has no tier for them."""
    if setup.geometry is None:
        return None
    return PageFileTransfer(kv, setup.geometry, setup.disk, tiers.remote)
