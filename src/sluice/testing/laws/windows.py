"""Laws of the pages of layers with a window: 23, 26 and 27."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sluice.kv.manager import ResidentLease
from sluice.kv.nodes import NOWHERE
from sluice.kv.windows import WindowPages, WindowRow
from sluice.scheduler.state import SchedulerState
from sluice.testing.laws.pages import LawBroken
from sluice.testing.laws.plans import layered, resident
from sluice.testing.laws.view import View
from sluice.types import BatchPlan, Chunk


def window_pages_are_conserved(view: View) -> None:
    """26. Every page of windows is free, private to one request, or that of a node with a page: exactly one of them.
    Its count at a node is the number of windows that hold it; what none holds is to be taken."""
    windows = view.kv.windows
    if windows is None:
        return
    owned = [*windows.pool.free_pages(), *(node.window for node in view.nodes if node.window >= 0)]
    held: Counter[int] = Counter()
    for request, lease in view.resident:
        row = row_of(lease)
        if len(row.pages) != len(lease.pages):
            raise LawBroken(f"law 26: request {request.id} has {len(row.pages)} pages of windows beside {lease.pages}")
        if row.pages[: row.first] != [NOWHERE] * min(row.first, len(row.pages)) or NOWHERE in row.pages[row.first :]:
            raise LawBroken(f"law 26: request {request.id} holds {row.pages} from page {row.first} on")
        owned += row.pages[max(row.first, len(lease.path)) :]
        for index in range(row.first, len(lease.path)):
            held[id(lease.path[index])] += 1
            if lease.path[index].window != row.pages[index]:
                raise LawBroken(f"law 26: request {request.id} reads page {row.pages[index]} of {lease.path[index]}")
    if sorted(owned) != list(range(windows.pool.num_pages)):
        owners = Counter(owned)
        wrong = {page: owners[page] for page in range(windows.pool.num_pages) if owners[page] != 1}
        raise LawBroken(f"law 26: owners of pages of windows {wrong}, {len(owners)} seen")
    _nodes_are_counted(view, windows, held)


def _nodes_are_counted(view: View, windows: WindowPages, held: Mapping[int, int]) -> None:
    cached = 0
    for node in view.nodes:
        if node.window_refs != held.get(id(node), 0):
            raise LawBroken(f"law 26: {node} counts {node.window_refs} windows, {held.get(id(node), 0)} hold it")
        if node.window >= 0 and node.page < 0:
            raise LawBroken(f"law 26: {node} has a page of windows alone")
        cached += node.window >= 0 and not node.window_refs
    if cached != windows.num_cached:
        raise LawBroken(f"law 26: no window holds {cached} nodes, {windows.num_cached} are to be taken")


def windows_are_bounded(view: View) -> None:
    """27. A request holds no more pages of windows than are reserved for it: those that a query sees, with a cut page
    at each end, and those of its tokens in flight. So none ever waits for one."""
    windows = view.kv.windows
    if windows is None:
        return
    for request, lease in view.resident:
        row = row_of(lease)
        promised = request.scheduled + request.drafts if request.sliced is None else request.sliced.chunk.end
        most = windows.needed + 2 + -(-(promised - request.computed) // windows.page_size)
        if len(row.pages) - row.first > most:
            raise LawBroken(f"law 27: request {request.id} holds {len(row.pages) - row.first} pages of windows, {most}")


class WindowRows:
    """Law 23 over a run: the second page table of the device, rebuilt from the plans alone."""

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}
        self._in_flight: list[dict[int, tuple[int, ...]]] = []
        """Of each plan not committed, by request, the pages that its chunks see or write."""

    def planned(self, state: SchedulerState, plan: BatchPlan) -> None:
        """23. For each planned row, every position that its queries see has the page that its request holds. What it
        writes is no page of a node, and nothing that a row of another request in flight uses."""
        windows = state.kv.windows
        if windows is None:
            return
        for new in plan.new_slots:
            self._rows[new.slot] = []
        published = {node.window for node in state.kv.tree.nodes() if node.window >= 0}
        used: dict[int, tuple[int, ...]] = {}
        of_layers = {each.chunk: each.first == 0 for each in layered(plan)}
        for chunk in (*resident(plan), *of_layers):
            pages = self._pages_of(state, chunk, brings=of_layers.get(chunk, True))
            first, written = windows.first_seen(chunk.start), set(pages[chunk.start // windows.page_size :])
            used[chunk.request_id] = tuple(pages[first:])
            if not written.isdisjoint(published):
                raise LawBroken(f"law 23: {chunk} writes published pages of windows {written & published}")
            for earlier in self._in_flight:
                for request_id, others in earlier.items():
                    if request_id != chunk.request_id and not written.isdisjoint(others):
                        raise LawBroken(f"law 23: {chunk} writes {written} while request {request_id} reads {others}")
        self._in_flight.append(used)

    def _pages_of(self, state: SchedulerState, chunk: Chunk, *, brings: bool) -> list[int]:
        """Return the row of a chunk as the device has it, holes before what its queries see."""
        windows, lease = state.kv.windows, state.requests[chunk.request_id].lease
        assert windows is not None and isinstance(lease, ResidentLease), f"{chunk} has {lease}"
        row, end = self._rows[chunk.slot], state.kv.pages_for(chunk.end)
        if brings and chunk.new_window_pages:
            first = end - len(chunk.new_window_pages)
            row[:] = (row + [NOWHERE] * first)[:first] + list(chunk.new_window_pages)
        first, held = windows.first_seen(chunk.start), row_of(lease).pages
        if len(row) < end or row[first:end] != held[first:end] or NOWHERE in row[first:end]:
            raise LawBroken(f"law 23: {chunk} sees pages {row[first:end]} from {first} on, its request holds {held}")
        return [NOWHERE] * first + row[first:end]

    def ended(self) -> None:
        """Note that the oldest plan in flight was committed, or has failed."""
        if self._in_flight:
            del self._in_flight[0]

    def check(self, state: SchedulerState) -> None:
        """23. No page of windows that a plan in flight uses is free."""
        if state.kv.windows is None:
            return
        free = state.kv.windows.pool.free_pages()
        for used in self._in_flight:
            for request_id, pages in used.items():
                if not free.isdisjoint(pages):
                    raise LawBroken(f"law 23: pages of windows {free & set(pages)} of request {request_id} are free")


def row_of(lease: ResidentLease) -> WindowRow:
    """Return a lease's pages of windows."""
    assert lease.window is not None, f"{lease} has no pages of windows"
    return lease.window
