"""The host and the disk behind a shadow runner, with the copies between them and the device."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.engine.messages import BlocksLoaded, Copied
from sluice.types import BatchPlan, CopyDone, PageCopy, StoredPage, Tier

Content = tuple[tuple[int, int] | None, ...]
"""The content of a page of the shadow model: for each token a (position, token) pair, or None."""


@dataclass(slots=True, eq=False)
class _ReadAhead:
    """A chunk whose blocks are read ahead."""

    step: int
    """The step that began it."""
    total: int
    """Work items of the chunk."""
    pages: tuple[int, ...]
    """Pages of the disk that it attends to."""
    ready: int = 0
    """Work items that were reported."""


class ShadowPages(Protocol):
    """The pages of a shadow runner's device."""

    def page(self, page: int) -> Content:
        """Return the content of a page."""

    def put_page(self, page: int, content: Content) -> None:
        """Overwrite a page. Positions that `content` lacks become invalid."""


class ShadowTiers:
    """The host and the disk of a shadow runner. They outlive it if they are given to the next one.

    A disk is slow: with `draw`, copies with the disk end when `work` is called, in any order. The target of a copy
    that has failed, or that has not ended, holds no valid content.

    Args:
        draw: decides which copies with the disk end at a call of `work`, and which fail. None: all copies end with
            their step, and none fails.
        post: receives a message when copies with the disk have ended, or blocks were read ahead.
        fails: share of copies that fail, 0 to 1.
        reads_fail: share of the reports of blocks that say that one cannot be read, 0 to 1.
        reads_late: share of the calls of `work` in which no block of a chunk comes, 0 to 1.
        flips: share of the same reports before which a page that is to be read is damaged, 0 to 1.

    >>> from sluice.testing import ShadowRunner
    >>> from sluice.types import BatchPlan, PageCopy
    >>> tiers = ShadowTiers()
    >>> device = ShadowRunner(page_size=2, tiers=tiers)
    >>> device.put_page(0, ((0, 17), (1, 18)))
    >>> store = PageCopy(ticket=1, source=Tier.DEVICE, source_page=0, target=Tier.HOST, target_page=5)
    >>> [done] = device.launch(BatchPlan(step=0, new_slots=(), chunks=(), copies=(store,))).wait().copies
    >>> done.ticket, done.error, tiers.page(Tier.HOST, 5)
    (1, None, ((0, 17), (1, 18)))
    """

    def __init__(
        self,
        draw: random.Random | None = None,
        post: Callable[[Copied | BlocksLoaded], None] | None = None,
        *,
        fails: float = 0.0,
        reads_fail: float = 0.0,
        reads_late: float = 0.0,
        flips: float = 0.0,
    ) -> None:
        self._draw = draw
        self._post = post
        self._fails = fails
        self._reads_fail = reads_fail
        self._reads_late = reads_late
        self._flips = flips
        self.num_lost = 0
        """Reports of pages that are not what was stored."""
        self._reads: list[_ReadAhead] = []
        """Chunks whose blocks are read ahead."""
        self._pages: dict[tuple[Tier, int], tuple[Content, int]] = {}
        self._under_way: list[tuple[PageCopy, Content]] = []
        """Copies with the disk that have not ended, and the content of their sources."""
        self.index: dict[int, StoredPage] = {}
        """The pages that a restart finds on the disk."""

    def copy(self, plan: BatchPlan, device: ShadowPages) -> tuple[CopyDone, ...]:
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
        """Return the content of a page; empty while it is being written."""
        return self._pages[tier, page][0]

    def work(self, device: ShadowPages) -> None:
        """Let the disk end some of its copies, and post the message."""
        done = self._ended(device)
        if self._post is None:
            return
        if done:
            self._post(Copied(tuple(done)))
        reads, self._reads = self._reads, []
        for read in reads:
            self._go_on(read, self._post, is_latest=read is reads[-1])

    def _go_on(self, read: _ReadAhead, post: Callable[[BlocksLoaded], None], *, is_latest: bool) -> None:
        """Read some blocks of a chunk, or none, and report them."""
        draw = self._draw
        if draw is not None and draw.random() < self._reads_late:
            self._reads.append(read)
            return
        if draw is not None and draw.random() < self._reads_fail:
            post(BlocksLoaded(read.step, 0, "a page cannot be read"))
            return
        # Blocks that were reported are in the ring, where no disk can damage them.
        may_flip = self._flips > 0 and is_latest and read.ready == 0 and len(read.pages) > 0
        if may_flip and draw is not None and draw.random() < self._flips:
            self.corrupt(Tier.DISK, draw.choice(read.pages))
        damaged = [page for page in read.pages if not read.ready and self._is_damaged(page)]
        if damaged:
            self.num_lost += 1
            post(BlocksLoaded(read.step, 0, f"page {damaged[0]} is not what was stored", damaged[0]))
            return
        read.ready = read.total if draw is None else draw.randint(read.ready + 1, read.total)
        post(BlocksLoaded(read.step, read.ready))
        self._reads += [read] if read.ready < read.total else []

    def _is_damaged(self, page: int) -> bool:
        """Return whether a page of the disk is not what was stored. One that is being written is another chunk's."""
        content, checksum = self._pages[Tier.DISK, page]
        return bool(content) and checksum != zlib.crc32(repr(content).encode())

    def read_ahead(self, step: int, total: int, pages: Sequence[int]) -> None:
        """Begin to read the blocks of a chunk of `total` work items, which `step` begins. `work` reports them, also
        when the chunk is over.

        Args:
            pages: of the disk, that it attends to.
        """
        self._reads.append(_ReadAhead(step, total, tuple(pages)))

    def crash(self) -> tuple[StoredPage, ...]:
        """Lose the host, and the copies and reads that have not ended. Returns the pages that a restart finds."""
        self._under_way.clear()
        self._reads.clear()
        self._pages = {key: page for key, page in self._pages.items() if key[0] is Tier.DISK}
        return tuple(self.index[slot] for slot in sorted(self.index))

    def adopt(self, disk: ShadowTiers) -> None:
        """Take over the disk of other tiers."""
        self._pages |= {key: page for key, page in disk._pages.items() if key[0] is Tier.DISK}
        self.index |= disk.index

    def corrupt(self, tier: Tier, page: int) -> None:
        """Change the content of a page without its checksum, as a faulty disk does."""
        content, checksum = self._pages[tier, page]
        self._pages[tier, page] = content[::-1], checksum

    def _ended(self, device: ShadowPages) -> list[CopyDone]:
        draw = self._draw
        ending = [each for each in self._under_way if draw is None or draw.random() < 0.3]
        self._under_way = [each for each in self._under_way if each not in ending]
        if draw is not None:
            draw.shuffle(ending)
        return [self._end(copy, content, device) for copy, content in ending]

    def _end(self, copy: PageCopy, content: Content, device: ShadowPages) -> CopyDone:
        if copy.target is Tier.DEVICE:
            content, checksum = self._read(copy.source, copy.source_page, device)
            if checksum != copy.checksum or checksum != zlib.crc32(repr(content).encode()):
                return CopyDone(copy.ticket, error="the page is not what was stored")
        if self._draw is not None and self._draw.random() < self._fails:
            return CopyDone(copy.ticket, error="an injected fault")
        self._put(copy, content, device)
        return CopyDone(copy.ticket, zlib.crc32(repr(content).encode()))

    def _read(self, tier: Tier, page: int, device: ShadowPages) -> tuple[Content, int]:
        if tier is Tier.DEVICE:
            return device.page(page), 0
        return self._pages[tier, page]

    def _put(self, copy: PageCopy, content: Content, device: ShadowPages) -> None:
        """Write content to a copy's target; empty content makes the target invalid."""
        if copy.target is Tier.DEVICE:
            device.put_page(copy.target_page, content)
            return
        checksum = zlib.crc32(repr(content).encode()) if content else 0
        self._pages[copy.target, copy.target_page] = content, checksum
        if copy.target is Tier.DISK:
            self.index.pop(copy.target_page, None)
            if content and copy.key is not None:
                self.index[copy.target_page] = StoredPage(copy.target_page, copy.key, checksum)
