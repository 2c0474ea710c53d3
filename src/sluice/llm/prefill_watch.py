"""How far the prompts of some requests are read: seen in the plans that a runner gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sluice.engine.protocols import Pending, Runner
from sluice.types import BatchPlan

OnPrefill = Callable[[int, int], object]
"""Called with the tokens of a prompt that are computed or cached, and the number of all."""


@dataclass(slots=True)
class _Seen:
    """The chunks of one request."""

    ends: list[int] = field(default_factory=list)
    """Where its first chunk began, and where each one ended."""
    reported: int = 0


class PrefillWatch:
    """A runner in front of another one that notes the chunks of the requests that are watched."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self._seen: dict[int, _Seen] = {}

    def watch(self, request_id: int) -> None:
        """Note the chunks of a request from now on."""
        self._seen[request_id] = _Seen()

    def forget(self, request_id: int) -> None:
        """Note no more of a request. Unknown ones are ignored."""
        self._seen.pop(request_id, None)

    def updates(self, request_id: int) -> Iterator[int]:
        """Yield how far the prompt of a watched request was read since the last call; first, how much was cached."""
        seen = self._seen[request_id]
        while seen.reported < len(seen.ends):
            seen.reported += 1
            yield seen.ends[seen.reported - 1]

    def launch(self, plan: BatchPlan) -> Pending:
        if self._seen:
            for part in plan.slices:
                if part.stop and not part.completes:
                    chunk = part.chunk
                    self._note(chunk.request_id, chunk.start, chunk.start + chunk.length * part.stop // part.total)
            for chunk in plan.chunks:
                self._note(chunk.request_id, chunk.start, chunk.end)
        return self._inner.launch(plan)

    def _note(self, request_id: int, start: int, end: int) -> None:
        """Note that a request is read up to `end`, if it is watched."""
        seen = self._seen.get(request_id)
        if seen is not None:
            seen.ends += [end] if seen.ends else [start, end]

    def close(self) -> None:
        self._inner.close()
