"""StatePlanner: which records of recurrent states are made, when, and which nodes get them.

A request's state follows its tokens in blocks: its *anchor* is the last multiple of `StateLimits.block` that no later
chunk can begin before. A chunk that moves the anchor over one of these places makes a record there:

    the last place before the prompt's last token    the same prompt, or the next turn of a conversation, goes on there
    the last place that others have computed, too    prompts part there, so more may come
    every `spacing` tokens                           a prompt may part from a long one anywhere

When a request gives its slot back, the state at its anchor is saved as well: by the next plan, before it fills the slot
again. A record becomes a node's when the step that has made it is committed, and not before: the step may fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sluice.kv.manager import KVManager
from sluice.kv.nodes import Node
from sluice.kv.records import Records
from sluice.scheduler.request import Request
from sluice.types import BatchPlan, Chunk, StateLimits


class _Save(NamedTuple):
    """A slot whose state is to be saved."""

    slot: int
    record: int
    node: Node
    position: int
    """Tokens behind which the state is."""


class StatePlanner:
    """The bookkeeping of states of one scheduler.

    Args:
        kv: whose nodes have records.
    """

    def __init__(self, limits: StateLimits, kv: KVManager) -> None:
        self.block = limits.block
        """Tokens between two places of an anchor."""
        self._kv = kv
        self._keeps = kv.records is not None
        self._grid = limits.grid(kv.page_size)
        self._spacing = -(-limits.spacing // self._grid) * self._grid
        self._saves: list[_Save] = []
        """For the next plan."""
        self._saving: dict[int, list[_Save]] = {}
        """Of plans in flight, by step."""

    @property
    def _records(self) -> Records:
        """The records, if there are any."""
        assert self._kv.records is not None, "prefixes are not cached"
        return self._kv.records

    @property
    def has_saves(self) -> bool:
        """Whether slots are to be saved, by a plan that may hold nothing else."""
        return bool(self._saves)

    @property
    def num_saves(self) -> int:
        """Records that slots are to be saved to, or are on their way."""
        return len(self._saves) + sum(map(len, self._saving.values()))

    def seated(self, request: Request) -> None:
        """Note that a request got a slot, and holds the beginning of its `path`: decide where records are made of it.
        Called before the path is dropped."""
        assert request.lease is not None, f"request {request.id} has no pages"
        cached, grid = request.lease.cached.total, self._grid
        request.anchor = cached
        found = len(request.path) * self._kv.page_size
        parts_at = found if found > cached else 0
        places = (position // grid * grid for position in (parts_at, request.prompt_len - 1))
        request.record_at = tuple(place for place in places if place > cached)

    def opened_from(self, request: Request) -> int | None:
        """Return the record that the slot of a request is opened from; None: it has no cached prefix."""
        assert request.lease is not None, f"request {request.id} has no pages"
        return self._records.read(request.lease.path[-1]) if request.lease.path else None

    def advance(self, request: Request, end: int) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Plan a chunk up to `end`.

        Returns:
            How many tokens are firm behind it, and the records that it makes: (position, record).
        """
        firm = min(end, len(request.tokens) - 1)
        anchor = firm - firm % self.block
        if anchor <= request.anchor:
            return firm, ()
        before, request.anchor = request.anchor, anchor
        if not self._keeps:
            return firm, ()
        made = []
        for position in self._places(request, before, anchor):
            record = self._records.take()
            if record is None:
                break
            made.append((position, record))
        request.records += made
        return firm, tuple(made)

    def _places(self, request: Request, before: int, anchor: int) -> list[int]:
        """Return where records are made by a chunk that moves the anchor."""
        places = {place for place in request.record_at if before < place <= anchor}
        if self._spacing:
            places.update(range(before // self._spacing * self._spacing + self._spacing, anchor + 1, self._spacing))
        return sorted(places)

    def computed(self, request: Request, chunk: Chunk) -> None:
        """Note that a chunk which makes records was committed, and its full pages were published."""
        for made in chunk.checkpoints:
            node = self._node_at(request, made[0])
            if node is not None:
                self._attach(request, made, node)

    def released(self, request: Request) -> None:
        """Note that a request has given its pages back, and gives its slot back: what was computed of it is in the
        tree now. Its records go to the nodes there; then its state is saved."""
        path: list[Node] = []
        if request.records or self._is_worth_saving(request):
            self._kv.match(request.tokens, request.computed, request.extra_key, path)
        for made in tuple(request.records):
            position, _ = made
            place = position // self._kv.page_size
            if position <= request.computed and place <= len(path):
                self._attach(request, made, path[place - 1])
        self._give_back(request)
        place = request.anchor // self._kv.page_size
        if self._is_worth_saving(request) and place <= len(path) and path[place - 1].record < 0:
            new = self._records.take()
            if new is not None:
                self._saves.append(_Save(request.slot, new, path[place - 1], request.anchor))

    def _is_worth_saving(self, request: Request) -> bool:
        """Return whether the state in a slot is right, and may be a node's."""
        anchor = request.anchor
        return self._keeps and request.cached < anchor <= request.computed and anchor % self._grid == 0

    def spoilt(self, request: Request) -> None:
        """Note that a row of a request failed, or the request did: anything may be in its slot, and in the records that
        no node has yet. A plan in flight may still write these. The next one that makes them writes them after it."""
        request.anchor = 0
        self._give_back(request)

    def _attach(self, request: Request, made: tuple[int, int], node: Node) -> None:
        """Let a node have one of the records that chunks of a request have made."""
        request.records.remove(made)
        self._records.attach(node, *made)

    def _give_back(self, request: Request) -> None:
        """Give back the records of a request that no node has got."""
        for _, record in request.records:
            self._records.give(record)
        request.records.clear()

    def take_saves(self, step: int) -> tuple[tuple[int, int], ...]:
        """Return the (slot, record) of slots to be saved by the plan of a step, which is made now."""
        if self._keeps:
            self._records.planned()
        if not self._saves:
            return ()
        saves = self._saving[step] = self._saves
        self._saves = []
        return tuple((each.slot, each.record) for each in saves)

    def committed(self, plan: BatchPlan) -> None:
        """Note that a plan which saves slots was committed."""
        for each in self._saving.pop(plan.step):
            self._records.attach(each.node, each.position, each.record)

    def failed(self, plan: BatchPlan, requests: Mapping[int, Request]) -> None:
        """Note that a plan has failed: it has saved no slot, and its rows may have left anything in theirs."""
        for chunk in (*plan.chunks, *(each.chunk for each in plan.slices)):
            self.spoilt(requests[chunk.request_id])
        self._drop(self._saving.pop(plan.step, []))

    def forget_device(self) -> None:
        """Forget what was to be saved: the device has lost its slots, and records with them."""
        self._drop(self._saves)

    def _drop(self, saves: list[_Save]) -> None:
        """Save none of these."""
        for each in saves:
            self._records.give(each.record)
        saves.clear()

    def awaits_record(self, request: Request, cached: int, others: Iterable[Request]) -> bool:
        """Return whether one of other requests, which compute their prompts, will make a record that a waiting request
        can go on from, behind more than the `cached` tokens that it can go on from now."""
        return self._keeps and any(
            max(cached, other.computed) < place <= request.cacheable and request.begins_like(other, place)
            for other in others
            for place in other.record_at
        )

    def _node_at(self, request: Request, position: int) -> Node | None:
        """Return the node up to whose end the first `position` tokens of a running request are."""
        assert request.lease is not None, f"request {request.id} has no pages"
        path, count = request.lease.path, position // self._kv.page_size
        if count > len(path):
            path = list(path)
            self._kv.match(request.tokens, position, request.extra_key, path)
        return path[count - 1] if count <= len(path) else None
