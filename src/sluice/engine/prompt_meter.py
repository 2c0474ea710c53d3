"""How far the prompts that are being computed are read, and how long the rest is expected to take.

A step with n tokens behind a context of x tokens takes time for the tokens and time for the pairs of them and the
context, so reading up to x takes a x + b x^2. Both are fitted to the prompt's own steps (least squares, none below
zero), in which its neighbours and a slow disk have their part too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sluice.types import BatchPlan, Output


class PromptProgress(NamedTuple):
    """How far one prompt is read."""

    request_id: int
    read: int
    """Tokens that are computed or were cached."""
    total: int
    """Tokens of the prompt."""
    seconds_left: float | None
    """Expected; None before its first step has ended."""


class _Prompt:
    """A prompt that is being read. Places in it are shares of its length, so that the sums below stay small."""

    __slots__ = ("began_at", "cached", "read", "sums", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.read = self.cached = -1.0
        """Tokens, -1 before the first step; `cached` are those that were there before it."""
        self.began_at = 0.0
        self.sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        """Sums of x x, x y, y y, x t and y t, where x is what was read since the beginning, y the same of the squares,
        and t the seconds that it took."""

    def begin(self, cached: int, now: float) -> None:
        self.read = self.cached = float(cached)
        self.began_at = now

    def reached(self, read: float, now: float) -> None:
        """Note that a step ended, and how much is read then."""
        self.read = read
        x, y = self._way_from(self.cached, read)
        t = now - self.began_at
        xx, xy, yy, xt, yt = self.sums
        self.sums = (xx + x * x, xy + x * y, yy + y * y, xt + x * t, yt + y * t)

    def seconds_left(self) -> float | None:
        if self.read <= self.cached:
            return None
        xx, xy, yy, xt, yt = self.sums
        determinant = xx * yy - xy * xy
        if determinant > 1e-9 * xx * yy:
            linear, square = (xt * yy - yt * xy) / determinant, (yt * xx - xt * xy) / determinant
        else:
            linear, square = xt / xx, 0.0
        if square < 0:
            linear, square = xt / xx, 0.0
        elif linear < 0:
            linear, square = 0.0, yt / yy
        x, y = self._way_from(self.read, self.total)
        return linear * x + square * y

    def _way_from(self, start: float, end: float) -> tuple[float, float]:
        begin, stop = start / self.total, end / self.total
        return stop - begin, stop * stop - begin * begin


class PromptMeter:
    """Follows the prompts that are computed in more than one step, by the plans of the steps."""

    def __init__(self) -> None:
        self._open: dict[int, _Prompt] = {}
        """Prompts by the ids of their requests."""

    def planned(self, plan: BatchPlan, now: float) -> None:
        """Note what a plan begins, which is about to be launched. A request that was preempted begins again."""
        for new in plan.new_slots:
            if new.prompt_len:
                self._open[new.request_id] = _Prompt(new.prompt_len)
        if self._open:
            for request_id, start, _ in _parts(plan):
                prompt = self._open.get(request_id)
                if prompt is not None and prompt.read < 0:
                    prompt.begin(start, now)

    def ended(self, plan: BatchPlan, now: float) -> None:
        """Note what a step has computed."""
        if not self._open:
            return
        for request_id, _, end in _parts(plan):
            prompt = self._open.get(request_id)
            if prompt is not None and end >= prompt.total:
                del self._open[request_id]
            elif prompt is not None and end > prompt.read:
                prompt.reached(end, now)

    def sent(self, outputs: Iterable[Output]) -> None:
        """Forget requests that have ended."""
        for output in outputs:
            if output.finish_reason is not None:
                self._open.pop(output.request_id, None)

    def progress(self) -> tuple[PromptProgress, ...]:
        """Return how far the prompts are read that were begun and are not complete, in the order of their requests."""
        begun = sorted((request_id, prompt) for request_id, prompt in self._open.items() if prompt.read >= 0)
        return tuple(
            PromptProgress(request_id, int(prompt.read), prompt.total, prompt.seconds_left())
            for request_id, prompt in begun
        )


def _parts(plan: BatchPlan) -> list[tuple[int, int, float]]:
    """Return what a plan reads of prompts: the request, where its chunk begins, and how far it is computed then. The
    work items of an offloaded chunk count as a share of its tokens."""
    sliced = {part.chunk.request_id for part in plan.slices}
    parts: list[tuple[int, int, float]] = [
        (chunk.request_id, chunk.start, float(chunk.end))
        for chunk in plan.chunks[plan.num_decodes :]
        if chunk.request_id not in sliced
    ]
    for part in plan.slices:
        chunk = part.chunk
        parts.append((chunk.request_id, chunk.start, chunk.start + chunk.length * part.stop / part.total))
    return parts
