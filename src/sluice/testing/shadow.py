"""A runner without a model, whose tokens are hashes of the KV it reads.

The next token is a hash of everything that the runner finds in its KV pages. So a page that is stale, has two owners,
is wrongly shared or is freed too early changes the output. `oracle` computes the expected output in a few lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from sluice.testing.blocks import ShadowBlocks
from sluice.testing.grammars import is_complete
from sluice.testing.oracle import digests, shadow_embedding, shadow_logprobs, verified
from sluice.testing.states import ShadowStates
from sluice.testing.tiers import Content, ShadowTiers
from sluice.testing.windows import ShadowWindows
from sluice.types import (
    BatchPlan,
    BatchResult,
    Chunk,
    ChunkSlice,
    NewSlot,
    RowError,
    SamplingParams,
    Submit,
    Tier,
    TokenLogprobs,
    WindowLimits,
)


@dataclass
class ShadowStep:
    """A launched step of the shadow runner."""

    runner: ShadowRunner
    plan: BatchPlan
    result: BatchResult | None = None

    def wait(self) -> BatchResult:
        while self.result is None:
            self.runner.run_next()
        return self.result


class ShadowRunner:
    """A runner without a model. Its pages hold (position, token) pairs, and a sample is a hash of all that it reads.

    Args:
        page_size: tokens of a page, as the scheduler's.
        vocab_size: tokens are from 0 to vocab_size - 1.
        late: run each step when it is waited for, in launch order, as a slow device does; else at launch.
        tiers: the host and the disk.
        offload_tier: the tier with the contexts that are longer than the device.
        read_fails: called with the number of a slice of offloaded work (from 0): whether a page of it cannot be read.
        mask_is_late: called with the number of a row with a grammar (from 0): whether it is given no token.
        guess: called with the tokens of a request, the request and a number of drafts, where a chunk leaves them to the
            runner.
        block_size: tokens that it fills in at a time, as a model of block diffusion; 0: it generates token by token.
        state_block: tokens between two places of an anchor, of a model with recurrent states; 0: it has none. A row
            whose state is not that of its tokens gives other tokens.
        windows: pages of layers with a window, in which all that a chunk's queries see must be; None: there are none.

    >>> from sluice.testing import resolved
    >>> from sluice.types import NewSlot, Submit
    >>> runner = ShadowRunner(page_size=4)
    >>> chunk = Chunk(request_id=1, slot=0, start=0, length=3, token_ids=(5, 6, 7), new_pages=(9,), samples=True)
    >>> new = NewSlot(slot=0, submit=Submit(request_id=1, prompt=(), sampling=resolved()))
    >>> plan = BatchPlan(step=0, new_slots=(new,), chunks=(chunk,))
    >>> runner.launch(plan).wait().token_ids
    ((165,),)
    >>> runner.page(9)
    ((0, 5), (1, 6), (2, 7), None)
    """

    def __init__(
        self,
        *,
        page_size: int,
        vocab_size: int = 256,
        late: bool = False,
        tiers: ShadowTiers | None = None,
        offload_tier: Tier = Tier.DISK,
        read_fails: Callable[[int], bool] = lambda number: False,
        mask_is_late: Callable[[int], bool] = lambda number: False,
        guess: Callable[[Sequence[int], Submit, int], tuple[int, ...]] = lambda tokens, submit, count: (0,) * count,
        block_size: int = 0,
        windows: WindowLimits | None = None,
        state_block: int = 0,
    ) -> None:
        self._windows = None if windows is None else ShadowWindows(windows, page_size)
        self._states = ShadowStates(state_block) if state_block else None
        self._guess = guess
        self._blocks = ShadowBlocks(block_size, vocab_size) if block_size else None
        self._mask_is_late = mask_is_late
        self._num_masks = 0
        self._offload_tier = offload_tier
        self._read_fails = read_fails
        self._num_slices = 0
        self._stored: dict[int, list[int]] = {}
        """Slot -> pages behind the device."""
        self._slices: dict[int, ChunkSlice] = {}
        """Slot -> its latest slice."""
        self._layers: dict[int, ChunkSlice] = {}
        """Slot -> the latest slice of its resident chunk."""
        self._lost: set[int] = set()
        """Slots whose offloaded work failed."""
        self.tiers = ShadowTiers() if tiers is None else tiers
        self._page_size = page_size
        self._vocab_size = vocab_size
        self._late = late
        self._kv: dict[tuple[int, int], tuple[int, int]] = {}
        self._rows: dict[int, list[int]] = {}
        self._slots: dict[int, NewSlot] = {}
        self._last_token: dict[int, int] = {}
        self._launched: deque[ShadowStep] = deque()

    def launch(self, plan: BatchPlan) -> ShadowStep:
        step = ShadowStep(self, plan)
        self._launched.append(step)
        if not self._late:
            step.wait()
        return step

    def close(self) -> None:
        """Return: nothing is open."""

    def page(self, page: int) -> Content:
        return tuple(self._kv.get((page, offset)) for offset in range(self._page_size))

    def put_page(self, page: int, content: Content) -> None:
        """Overwrite a page. Positions that `content` lacks become invalid."""
        for offset in range(self._page_size):
            self._kv.pop((page, offset), None)
        for offset, held in enumerate(content):
            if held is not None:
                self._kv[page, offset] = held

    def run_next(self) -> None:
        """Run the oldest launched step that has not run."""
        step = self._launched.popleft()
        step.result = self._run(step.plan)

    def _run(self, plan: BatchPlan) -> BatchResult:
        copied = self.tiers.copy(plan, self)
        if self._states is not None:
            self._states.begin(plan)
        for new in plan.new_slots:
            self._open(new)
        slice_errors = [
            RowError(index, error)
            for index, part in enumerate(plan.slices)
            if part.stop and not part.is_resident and (error := self._work(part)) is not None
        ]
        written: set[tuple[int, int]] = set()
        for part in plan.slices:
            if part.is_resident:
                self._compute_layers(part, written)
        for slot in plan.given_up:
            self._layers.pop(slot, None)
        for chunk in plan.chunks:
            self._write(chunk, written)
        if self._windows is not None:
            for chunk in plan.chunks:
                self._windows.check(chunk, self._contents(chunk.slot, chunk.end))
        sampling = [chunk for chunk in plan.chunks if chunk.samples]
        rows = [((), 0) if chunk.slot in self._lost else self._sample(chunk) for chunk in sampling]
        sampled = tuple(brought for brought, _ in rows)
        logprobs = tuple(self._logprobs(chunk, brought) for chunk, brought in zip(sampling, sampled, strict=True))
        embeddings = tuple(
            b"" if chunk.slot in self._lost else shadow_embedding(self._seen(chunk))
            for chunk in plan.chunks
            if chunk.embeds
        )
        prompt = tuple(
            () if chunk.slot in self._lost else self._prompt_logprobs(chunk) for chunk in plan.chunks if chunk.targets
        )
        for part in plan.slices:
            if not part.stop:
                self._stored[part.chunk.slot].extend(part.stored_pages)
                self._slices[part.chunk.slot] = part
                pages = self._stored[part.chunk.slot][: part.base // self._page_size]
                self.tiers.read_ahead(plan.step, part.total, pages)
        return BatchResult(
            plan.step,
            sampled,
            (),
            logprobs if any(logprobs) else (),
            prompt,
            embeddings,
            copied,
            slice_errors=tuple(slice_errors),
            complete=tuple(self._complete(plan, sampled)),
            accepted=tuple(count for _, count in rows) if any(chunk.num_drafts for chunk in plan.chunks) else (),
        )

    def _open(self, new: NewSlot) -> None:
        """Give a slot to a request: nothing of what it held is left."""
        self._slots[new.slot] = new
        self._rows[new.slot] = []
        self._stored[new.slot] = []
        self._slices.pop(new.slot, None)
        self._layers.pop(new.slot, None)
        self._lost.discard(new.slot)
        if self._blocks is not None:
            self._blocks.opened(new.slot)
        if self._windows is not None:
            self._windows.opened(new.slot)

    def _work(self, part: ChunkSlice) -> str | None:
        """Look at everything that a slice of offloaded work may look at. Return why it failed, if it did."""
        chunk = part.chunk
        self._stored[chunk.slot].extend(part.stored_pages)
        before = self._slices.get(chunk.slot)
        goes_on = before is not None and before.chunk == chunk and before.stop == part.first
        assert goes_on or not part.first, f"{part} after {before}"
        self._slices[chunk.slot] = part
        self._num_slices += 1
        if chunk.slot in self._lost or self._read_fails(self._num_slices - 1):
            self._lost.add(chunk.slot)
            return "a page cannot be read"
        seen = self._contents(chunk.slot, chunk.start)
        assert [held and held[0] for held in seen] == list(range(chunk.start)), f"{part} sees {seen}"
        return None

    def _compute_layers(self, part: ChunkSlice, written: set[tuple[int, int]]) -> None:
        """Write what some layers of a resident chunk leave in its pages: nothing to be read before the last."""
        chunk = part.chunk
        before = self._layers.pop(chunk.slot, None)
        goes_on = before is not None and before.chunk == chunk and before.stop == part.first
        assert goes_on or not part.first, f"{part} after {before}"
        if not part.first:
            self._extend(chunk)
        seen = self._contents(chunk.slot, chunk.start)
        assert [held and held[0] for held in seen] == list(range(chunk.start)), f"{part} sees {seen}"
        if part.completes:
            return
        self._layers[chunk.slot] = part
        if self._states is not None:
            self._states.compute_layers(chunk)
        if part.first:
            return
        for position in range(chunk.start, chunk.end):
            place = self._place(chunk.slot, position)
            assert place not in written, f"two rows of a step write page slot {place}"
            written.add(place)
            self._put(chunk.slot, position, (-1, part.stop))

    def _contents(self, slot: int, end: int) -> list[tuple[int, int] | None]:
        """What is at a slot's first `end` positions."""
        part = self._slices.get(slot)
        if part is None:
            return self._held(self._rows[slot], end)
        pages = self._stored[slot][: part.base // self._page_size]
        stored = [held for page in pages for held in self.tiers.page(self._offload_tier, page)]
        return stored[:end] + self._held(part.pages, end - part.base)

    def _held(self, pages: Sequence[int], count: int) -> list[tuple[int, int] | None]:
        """What is at the first `count` positions of these pages."""
        size, kv = self._page_size, self._kv
        return [kv.get((pages[index // size], index % size)) for index in range(count)]

    def _write(self, chunk: Chunk, written: set[tuple[int, int]]) -> None:
        if chunk.slot in self._lost:
            return
        self._extend(chunk)
        tokens: tuple[int, ...] = chunk.token_ids
        if self._blocks is not None:
            tokens = self._blocks.inputs(chunk)
        elif chunk.num_drafts and len(tokens) < chunk.length:
            known = [held[1] for held in self._contents(chunk.slot, chunk.start) if held is not None]
            tokens += self._guess([*known, *tokens], self._slots[chunk.slot].submit, chunk.num_drafts)
        elif len(tokens) < chunk.length:
            tokens = (*tokens, self._last_token[chunk.slot])
        assert len(tokens) == chunk.length, f"{chunk} has {len(tokens)} tokens"
        if self._states is not None:
            self._states.take_in(chunk, tokens)
        for position, token in enumerate(tokens, start=chunk.start):
            place = self._place(chunk.slot, position)
            assert place not in written, f"two rows of a step write page slot {place}"
            written.add(place)
            self._put(chunk.slot, position, (position, token))

    def _put(self, slot: int, position: int, held: tuple[int, int]) -> None:
        """Write to a position of a slot, in all layers."""
        self._kv[self._place(slot, position)] = held
        if self._windows is not None:
            self._windows.write(slot, position, held)

    def _extend(self, chunk: Chunk) -> None:
        """Put a chunk's new pages where they belong in its row."""
        if chunk.new_pages:
            row = self._rows[chunk.slot]
            row[-(-chunk.end // self._page_size) - len(chunk.new_pages) :] = chunk.new_pages
        if self._windows is not None:
            self._windows.extend(chunk)

    def _seen(self, chunk: Chunk) -> list[int]:
        """Return the tokens that the pages hold up to a chunk's end, drafts included."""
        seen = [held for held in self._contents(chunk.slot, chunk.end) if held is not None]
        assert [position for position, _ in seen] == list(range(chunk.end)), f"{chunk} sees {seen}"
        tokens = [token for _, token in seen]
        is_right = self._states is None or self._states.is_behind(chunk.slot, tokens)
        return tokens if is_right else [token + 1 for token in tokens]

    def _sampling(self, chunk: Chunk) -> SamplingParams:
        new = self._slots[chunk.slot]
        assert new.request_id == chunk.request_id, f"{chunk} runs in the slot of request {new.request_id}"
        return new.sampling

    def _sample(self, chunk: Chunk) -> tuple[tuple[int, ...], int]:
        """Return what a row brings, and how many of its drafts are accepted."""
        sampling, new, seen = self._sampling(chunk), self._slots[chunk.slot], self._seen(chunk)
        if self._blocks is not None:
            return self._blocks.brought(chunk, seen, sampling, new.sample_index), 0
        known, drafts = seen[: chunk.known_end], seen[chunk.known_end :]
        row = verified(
            known, drafts, sampling, new.sample_index, self._vocab_size, new.submit.grammar, self._next_mask_is_late
        )
        if row[0]:
            self._last_token[chunk.slot] = row[0][row[1]]
        return row

    def _next_mask_is_late(self) -> bool:
        self._num_masks += 1
        return self._mask_is_late(self._num_masks - 1)

    def _complete(self, plan: BatchPlan, sampled: Sequence[tuple[int, ...]]) -> Iterator[int]:
        """Yield the rows after which a grammar allows nothing."""
        rows = [(row, chunk) for row, chunk in enumerate(plan.chunks) if chunk.samples]
        for (row, chunk), brought in zip(rows, sampled, strict=True):
            grammar = self._slots[chunk.slot].submit.grammar
            if grammar and brought and is_complete(grammar, (*self._seen(chunk)[: chunk.known_end], *brought)):
                yield row

    def _logprobs(self, chunk: Chunk, brought: Sequence[int]) -> tuple[TokenLogprobs, ...]:
        """Return the log-probabilities of the tokens just brought, if the request wants them."""
        sampling = self._sampling(chunk)
        count, named = sampling.logprobs, sampling.logprob_token_ids
        if count is None or not brought:
            return ()
        before = digests((*self._seen(chunk)[: chunk.known_end], *brought[:-1]))
        return tuple(
            shadow_logprobs(digest, token, count, self._vocab_size, named)
            for digest, token in zip(islice(before, chunk.known_end - 1, None), brought, strict=True)
        )

    def _prompt_logprobs(self, chunk: Chunk) -> tuple[TokenLogprobs, ...]:
        count = self._sampling(chunk).prompt_logprobs
        assert count is not None, f"{chunk} has targets, and its request wants no prompt log-probabilities"
        after = islice(digests(self._seen(chunk)), chunk.start, None)
        return tuple(
            shadow_logprobs(digest, target, count, self._vocab_size)
            for digest, target in zip(after, chunk.targets, strict=False)
        )

    def _place(self, slot: int, position: int) -> tuple[int, int]:
        part = self._slices.get(slot)
        if part is not None:
            return part.pages[(position - part.base) // self._page_size], position % self._page_size
        return self._rows[slot][position // self._page_size], position % self._page_size
