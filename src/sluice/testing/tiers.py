"""The host and the disk behind a shadow runner, with the copies between them and the device."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Protocol

from sluice.engine.messages import Copied
from sluice.types import BatchPlan, CopyDone, PageCopy, StoredPage, Tier

Content = tuple[tuple[int, int] | None, ...]
"""What a page of the shadow model holds: (position, token) in each of its places."""


class DevicePages(Protocol):
    """The pages of a shadow runner's device."""

    def page(self, page: int) -> Content:
        """Return what a page holds."""

    def put_page(self, page: int, content: Content) -> None:
        """Overwrite a page."""


class ShadowTiers:
    """Host and disk of a shadow runner. They outlive it if they are given to the next one.

    The disk takes its time: what was begun ends when `work` is called, in any order. A copy that fails leaves nonsense
    where it went, and so does one that has not ended.

    Args:
        draw: chance, by which copies with the disk end and fail; None: all end with their step, and well.
        post: is told of copies with the disk that have ended.
        fails: share of copies that fail.
    """

    def __init__(
        self, draw: random.Random | None = None, post: Callable[[Copied], None] | None = None, *, fails: float = 0.0
    ) -> None:
        self._draw = draw
        self._post = post
        self._fails = fails
        self._pages: dict[tuple[Tier, int], tuple[Content, int]] = {}
        self._under_way: list[tuple[PageCopy, Content]] = []
        """With the disk, and of stores what is to be written."""
        self.index: dict[int, StoredPage] = {}
        """What a restart finds on the disk."""

    @property
    def is_at_rest(self) -> bool:
        return not self._under_way

    def copy(self, plan: BatchPlan, device: DevicePages) -> tuple[CopyDone, ...]:
        """Run the copies of a plan. Returns those that have ended."""
        done: list[CopyDone] = []
        for slot in plan.dropped:
            self.index.pop(slot, None)
        for copy in plan.copies:
            content = self._read(copy.source, copy.source_page, device)[0]
            self._put(copy, (), device)
            if Tier.DISK in (copy.source, copy.target):
                self._under_way.append((copy, content))
            else:
                done.append(self._end(copy, content, device))
        if self._draw is None:
            done += self._ended(device)
        return tuple(done)

    def page(self, tier: Tier, page: int) -> Content:
        """What a page behind the device holds; nothing while it is being written."""
        return self._pages[tier, page][0]

    def work(self, device: DevicePages) -> None:
        """The disk goes on."""
        done = self._ended(device)
        if done and self._post is not None:
            self._post(Copied(tuple(done)))

    def crash(self) -> tuple[StoredPage, ...]:
        """The process is gone: what is on its way to the disk is not there. Returns what a restart finds."""
        self._under_way.clear()
        self._pages = {key: page for key, page in self._pages.items() if key[0] is Tier.DISK}
        return tuple(self.index[slot] for slot in sorted(self.index))

    def adopt(self, disk: ShadowTiers) -> None:
        """Take over another one's disk."""
        self._pages |= {key: page for key, page in disk._pages.items() if key[0] is Tier.DISK}
        self.index |= disk.index

    def spoil(self, tier: Tier, page: int) -> None:
        """Change what a page holds behind everybody's back."""
        content, checksum = self._pages[tier, page]
        self._pages[tier, page] = content[::-1], checksum

    def _ended(self, device: DevicePages) -> list[CopyDone]:
        draw = self._draw
        ending = [each for each in self._under_way if draw is None or draw.random() < 0.3]
        self._under_way = [each for each in self._under_way if each not in ending]
        if draw is not None:
            draw.shuffle(ending)
        return [self._end(copy, content, device) for copy, content in ending]

    def _end(self, copy: PageCopy, content: Content, device: DevicePages) -> CopyDone:
        if copy.target is Tier.DEVICE:
            content, checksum = self._read(copy.source, copy.source_page, device)
            if checksum != copy.checksum or checksum != zlib.crc32(repr(content).encode()):
                return CopyDone(copy.ticket, error="the page is not what was stored")
        if self._draw is not None and self._draw.random() < self._fails:
            return CopyDone(copy.ticket, error="a fault that was asked for")
        self._put(copy, content, device)
        return CopyDone(copy.ticket, zlib.crc32(repr(content).encode()))

    def _read(self, tier: Tier, page: int, device: DevicePages) -> tuple[Content, int]:
        if tier is Tier.DEVICE:
            return device.page(page), 0
        return self._pages[tier, page]

    def _put(self, copy: PageCopy, content: Content, device: DevicePages) -> None:
        """Content, or nonsense, reaches the target."""
        if copy.target is Tier.DEVICE:
            device.put_page(copy.target_page, content)
            return
        checksum = zlib.crc32(repr(content).encode()) if content else 0
        self._pages[copy.target, copy.target_page] = content, checksum
        if copy.target is Tier.DISK:
            self.index.pop(copy.target_page, None)
            if content and copy.key is not None:
                self.index[copy.target_page] = StoredPage(copy.target_page, copy.key, checksum)
