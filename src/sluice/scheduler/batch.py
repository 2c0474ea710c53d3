"""BatchBuilder: collects the chunks of one step.

A chunk is a promise: when it is added, its pages are taken and the counters of its request move.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sluice.kv.manager import ResidentLease
from sluice.scheduler.cost import StepLoad
from sluice.scheduler.request import Request, SlicedChunk
from sluice.scheduler.states import StatePlanner
from sluice.types import (
    DENSE,
    BatchPlan,
    Bound,
    Chunk,
    ChunkSlice,
    ExpertCounts,
    NewSlot,
    PageCopy,
    PredictedStep,
)


class BatchBuilder:
    """The plan of one step, while it is made.

    Args:
        experts: of the model.
        states: plans the records of the model's states; None: its layers have none.
    """

    def __init__(self, experts: ExpertCounts = DENSE, states: StatePlanner | None = None) -> None:
        self.experts = experts
        self._states = states
        self._new_slots: list[NewSlot] = []
        self._opened: set[int] = set()
        """Slots that are new, and have not been given their cached pages."""
        self._chunks: list[Chunk] = []
        self._slices: list[ChunkSlice] = []
        self.num_tokens = 0
        self.num_decodes = 0
        self.num_drafts = 0
        self._context = 0
        """Keys that decodes read."""
        self._pairs = 0
        """Pairs of a query and a key that prompts compute."""
        self._sliced = StepLoad()
        """What slices have to do."""
        self._num_offloaded = 0
        """Slices of offloaded chunks."""

    def __len__(self) -> int:
        return len(self._chunks) + len(self._slices)

    @property
    def rows(self) -> Sequence[Chunk]:
        """The chunks so far that are computed in one step."""
        return self._chunks

    @property
    def has_offloaded(self) -> bool:
        """Whether it holds work on an offloaded chunk."""
        return self._num_offloaded > 0

    @property
    def has_layers(self) -> bool:
        """Whether it holds some layers of a resident chunk."""
        return len(self._slices) > self._num_offloaded

    @property
    def has_prefill(self) -> bool:
        """Whether it holds more than decodes."""
        return len(self._chunks) > self.num_decodes or bool(self._slices)

    @property
    def load(self) -> StepLoad:
        """What the step has to do so far."""
        whole = StepLoad(
            self.num_tokens,
            len(self._chunks),
            self._context,
            self._pairs,
            experts=self.experts.read(self.num_tokens),
        )
        return whole.plus(self._sliced)

    @property
    def decodes(self) -> StepLoad:
        """What its decodes have to do."""
        tokens = self.num_decodes + self.num_drafts
        return StepLoad(tokens, self.num_decodes, self._context, experts=self.experts.read(tokens))

    def open_slot(self, request: Request) -> None:
        """Put the request in a new slot of the plan."""
        is_needed = request.submit.sampling.has_penalties or request.submit.grammar
        history = tuple(request.tokens) if is_needed else ()
        self._opened.add(request.slot)
        cached, record = (0, None) if self._states is None else (request.cached, self._states.opened_from(request))
        new_slot = NewSlot(request.slot, request.submit, request.prompt_len, history, cached, record)
        self._new_slots.append(new_slot)

    def promise(self, request: Request, length: int) -> None:
        """Plan the next `length` tokens of a resident request. The first chunk brings the cached prefix's pages."""
        lease = request.lease
        assert isinstance(lease, ResidentLease) and length > 0, f"request {request.id}: {length} tokens, lease {lease}"
        start = request.scheduled
        end = start + length
        known = len(request.tokens)
        is_new = request.slot in self._opened
        row = tuple(lease.pages) if is_new else ()
        self._opened.discard(request.slot)
        new_pages = lease.extend(end) if end > lease.capacity else ()
        window_pages = lease.new_window_pages(len(new_pages), is_new=is_new) if is_new or new_pages else ()
        masked = 0
        is_last = end == known + request.pending
        if request.block_size:
            masked = request.drafts = max(0, end - known)
            is_last = masked > 0
            self.num_drafts += masked
        samples = is_last and not request.embeds
        token_ids = tuple(request.tokens[start : min(end, known)])
        targets = request.targets(start, end) if request.prompt_logprobs_sent < request.num_targets else ()
        firm, checkpoints = (0, ()) if self._states is None else self._states.advance(request, end)
        self._chunks.append(
            Chunk(  # without names, which take time in the loop that runs most often
                request.id,
                request.slot,
                start,
                length,
                token_ids,
                row + new_pages,
                samples,
                targets,
                is_last and request.embeds,
                masked,
                firm,
                checkpoints,
                window_pages,
            )
        )
        self.num_tokens += length
        if start >= request.prefill_end:
            self.num_decodes += 1
            self._context += end
        else:
            self._pairs += length * start + length * (length + 1) // 2
        request.scheduled = end - masked
        request.pending += samples
        request.in_flight += 1

    def add_drafts(
        self, drafts: Mapping[int, Sequence[int]], requests: Mapping[int, Request], *, in_runner: bool
    ) -> None:
        """Add drafts to decodes whose requests have nothing else pending. Their rows move behind those of the other
        decodes.

        Args:
            drafts: by request, at least one each; there are pages for them.
            in_runner: whether the runner guesses the tokens, so that they are only counted here.
        """
        decodes, prompts = self._chunks[: self.num_decodes], self._chunks[self.num_decodes :]
        plain: list[Chunk] = []
        drafted: list[Chunk] = []
        for chunk in decodes:
            ids = drafts.get(chunk.request_id)
            if ids is None:
                plain.append(chunk)
                continue
            request, end = requests[chunk.request_id], chunk.end + len(ids)
            lease = request.lease
            assert isinstance(lease, ResidentLease), f"request {request.id} is not resident: {lease}"
            new_pages = lease.extend(end) if end > lease.capacity else ()
            window_pages = lease.new_window_pages(len(new_pages), is_new=False)
            drafted.append(
                chunk._replace(
                    length=chunk.length + len(ids),
                    token_ids=chunk.token_ids if in_runner else (*chunk.token_ids, *ids),
                    new_pages=chunk.new_pages + new_pages,
                    num_drafts=len(ids),
                    new_window_pages=chunk.new_window_pages + window_pages,
                )
            )
            request.drafts = len(ids)
            self.num_drafts += len(ids)
            self.num_tokens += len(ids)
            self._context += len(ids)
        self._chunks = [*plain, *drafted, *prompts]

    def lengthen(self, request: Request, length: int) -> None:
        """Plan `length` tokens more of a resident request whose prompt has a chunk in this step, in the same row."""
        row = next(row for row, chunk in enumerate(self._chunks) if chunk.request_id == request.id)
        self.promise(request, length)
        more, before = self._chunks.pop(), self._chunks[row]
        request.in_flight -= 1
        self._chunks[row] = before._replace(
            length=before.length + more.length,
            token_ids=before.token_ids + more.token_ids,
            new_pages=before.new_pages + more.new_pages,
            samples=more.samples,
            targets=request.targets(before.start, more.end) if more.targets else before.targets,
            embeds=more.embeds,
            num_drafts=more.num_drafts,
            firm=more.firm,
            checkpoints=before.checkpoints + more.checkpoints,
            new_window_pages=before.new_window_pages + more.new_window_pages,
        )

    def add_slice(self, chunk_slice: ChunkSlice, load: StepLoad) -> None:
        """Plan work on an offloaded chunk, which adds to the step's load."""
        self._slices.append(chunk_slice)
        self._num_offloaded += 1
        self._sliced = self._sliced.plus(load)

    def open_chunk(self, request: Request, length: int) -> None:
        """Begin a resident chunk of the next `length` tokens, whose layers are planned one after the other. It takes
        its pages now; the counters of its request move when its last layer is planned."""
        lease, start = request.lease, request.scheduled
        assert isinstance(lease, ResidentLease) and length > 0, f"request {request.id}: {length} tokens, lease {lease}"
        end = start + length
        is_new = request.slot in self._opened
        cached = tuple(lease.pages) if is_new else ()
        self._opened.discard(request.slot)
        new_pages = lease.extend(end) if end > lease.capacity else ()
        is_last = end == len(request.tokens)
        firm, checkpoints = (0, ()) if self._states is None else self._states.advance(request, end)
        chunk = Chunk(
            request_id=request.id,
            slot=request.slot,
            start=start,
            length=length,
            token_ids=tuple(request.tokens[start:end]),
            new_pages=cached + new_pages,
            samples=is_last and not request.embeds,
            targets=request.targets(start, end),
            embeds=is_last and request.embeds,
            firm=firm,
            checkpoints=checkpoints,
            new_window_pages=lease.new_window_pages(len(new_pages), is_new=is_new),
        )
        request.sliced = SlicedChunk(chunk)

    def add_layers(self, request: Request, count: int, total: int) -> None:
        """Plan the next `count` layers of a request's open chunk, together with those that the step holds already.

        Args:
            total: all that the chunk has.
        """
        sliced = request.sliced
        assert sliced is not None and 0 < count <= total - sliced.planned, f"{count} layers of {sliced}"
        chunk, first, stop = sliced.chunk, sliced.planned, sliced.planned + count
        before = next((each for each in self._slices if each.chunk is chunk), None)
        if before is None:
            request.in_flight += 1
        else:
            first = before.first
            self._slices.remove(before)
        self._slices.append(ChunkSlice(chunk, (), 0, (), first, stop, total, is_resident=True))
        self._sliced = self._sliced.plus(load_of_layers(chunk, count / total, self.experts))
        sliced.planned = stop
        if stop == total:
            request.sliced = None
            request.scheduled = chunk.end
            request.pending += chunk.samples

    def freeze(
        self,
        step: int,
        bound_by: Bound,
        copies: tuple[PageCopy, ...],
        dropped: tuple[int, ...],
        pace: PredictedStep | None = None,
        given_up: Collection[int] = (),
    ) -> BatchPlan:
        """Return the plan."""
        saved = () if self._states is None else self._states.take_saves(step)
        done = [each.chunk for each in self._slices if each.completes]
        return BatchPlan(
            step,
            tuple(self._new_slots),
            (*self._chunks, *done),
            bound_by,
            self.num_decodes,
            copies,
            dropped,
            tuple(self._slices),
            pace,
            saved,
            tuple(sorted(set(given_up).difference(new.slot for new in self._new_slots))) if given_up else (),
        )


def load_of_layers(chunk: Chunk, share: float, experts: ExpertCounts = DENSE) -> StepLoad:
    """Return what some layers of a resident chunk add to their step, in tokens of the whole model.

    Args:
        share: of the model's layers.
    """
    pairs = chunk.length * chunk.start + chunk.length * (chunk.length + 1) // 2
    read = experts.read(chunk.length)
    return StepLoad(tokens=chunk.length * share, rows=share, pairs=pairs * share, experts=read * share)
