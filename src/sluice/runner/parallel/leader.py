"""The runner of several ranks: it sends every plan to all of them, and joins what they know of a step.

    plan    checked here, sent to all ranks, started by each of them on its part of the model
    masks   sent behind the plan, since grammars are followed here (`masks.py`)
    result  of this rank if it samples, else of the first rank of the last stage
    times   of each stage, from its first rank
    copies  each rank stores and loads its part of a page; a page's checksum is the sum of those of its parts

The leader decides everything, so no rank decides by its own clock or disk, and each does the same steps in the same
order. What fails on one rank after a plan was sent ends them all: none can know how far the others came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from sluice.device.queues import noop
from sluice.parallel.group import GroupError
from sluice.parallel.layout import Layout
from sluice.runner.parallel.control import LeaderLink
from sluice.runner.parallel.follower import answers
from sluice.runner.parallel.frames import (
    Close,
    DropAdapter,
    Launch,
    Masks,
    Problem,
    TakeAdapter,
    decode_reply,
    encode,
)
from sluice.runner.parallel.stage_timer import Timed, untimed
from sluice.runner.runner import TorchRunner
from sluice.storage.copies import Launched, ended
from sluice.types import AdapterInfo, BatchPlan, BatchResult, CopyDone, PageCopy

PROBLEM_SECONDS = 1.0
"""How long a rank may take to say what kept it from taking part."""


class Replies:
    """What the other ranks answer, in the order of the steps.

    Args:
        link: to the other ranks.
        layout: of all ranks.
        tick: called about every second while the leader waits.
    """

    def __init__(self, link: LeaderLink, layout: Layout, tick: Callable[[], None] = noop) -> None:
        self._link = link
        self._tick = tick
        self._samples = (layout.pipeline_size - 1) * layout.tensor_size
        self._kept: dict[int, BatchResult] = {}
        """The latest answer of each rank."""

    def sampled(self, step: int) -> BatchResult:
        """Wait for the result of a step that another rank samples.

        Raises:
            GroupError: the rank has failed.
        """
        return self.of(self._samples, step)

    def of(self, rank: int, step: int) -> BatchResult:
        """Wait for the answer of a rank to a step that it answers, and was not asked for a later one.

        Raises:
            GroupError: the rank has failed.
        """
        while (kept := self._kept.get(rank)) is None or kept.step != step:
            frame = self._link.receive(rank, 1.0)
            self._tick()
            if frame is None:
                continue
            reply = decode_reply(frame)
            if isinstance(reply, Problem):
                raise FailedRankError(rank, reply)
            if kept is not None and reply.result.step <= kept.step:
                raise GroupError(f"rank {rank} answered step {reply.result.step} after step {kept.step}")
            self._kept[rank] = reply.result
        return kept

    def problem(self, rank: int, timeout: float) -> Problem | None:
        """Return what a rank says has failed, if it says so within some seconds."""
        try:
            while (frame := self._link.receive(rank, timeout)) is not None:
                reply = decode_reply(frame)
                if isinstance(reply, Problem):
                    return reply
        except GroupError as error:
            return Problem(str(error))
        return None


class FailedRankError(GroupError):
    """A rank has said that it failed."""

    def __init__(self, rank: int, problem: Problem) -> None:
        super().__init__(f"rank {rank} failed: {problem.message}")
        self.rank = rank
        self.problem = problem


@dataclass(frozen=True, slots=True)
class LedStep:
    """A step on its way on all ranks."""

    leader: Leader
    plan: BatchPlan
    own: Launched
    micros: tuple[int, ...]
    """Microseconds that this rank computed, if they are known."""

    def wait(self) -> BatchResult:
        """Block until the step is done.

        Raises:
            GroupError: a rank has failed; no step can follow.
        """
        return self.leader.result(self)


class Leader:
    """Runs plans on all ranks.

    Args:
        runner: over this rank's part of the model; if another rank samples, it waits for `replies.sampled`.
        link: to the other ranks.
        layout: of all ranks, of which this is the first.
        replies: of the other ranks.
        leave: leaves the groups of this rank, so that no other waits for it.
        timed: starts steps.
    """

    def __init__(
        self,
        runner: TorchRunner,
        link: LeaderLink,
        layout: Layout,
        replies: Replies,
        leave: Callable[[], None] = noop,
        timed: Timed = untimed,
    ) -> None:
        self._runner = runner
        self._link = link
        self._replies = replies
        self._leave = leave
        self._timed = timed
        self._others = [layout.place(rank) for rank in range(1, layout.size)]
        self._lost: GroupError | None = None

    def launch(self, plan: BatchPlan) -> LedStep:
        """Start a step on all ranks.

        Raises:
            PlanError: the plan does not fit the state, which is unchanged.
            GroupError: a rank has failed; no step can follow.
        """
        self._check()
        self._runner.check(plan)
        try:
            self._link.broadcast(encode(Launch(plan)))
            return LedStep(self, plan, *self._timed(lambda: self._runner.start(plan)))
        except Exception as error:
            raise self._failed(error) from error

    def result(self, step: LedStep) -> BatchResult:
        """Wait for a step.

        Raises:
            GroupError: a rank has failed; no step can follow.
        """
        self._check()
        plan = step.plan
        try:
            result = step.own.wait()
            is_timed = bool(step.micros)
            ranks = [place.rank for place in self._others if answers(place, plan, is_timed=is_timed)]
            others = {rank: self._replies.of(rank, plan.step) for rank in ranks}
        except Exception as error:
            raise self._failed(error) from error
        if plan.copies:
            parts = [result.copies, *(other.copies for other in others.values())]
            result = replace(result, copies=summed(plan.copies, parts))
        if (plan.chunks or plan.slices) and step.micros:
            heads = [others[place.rank] for place in self._others if place.shard == 0]
            result = replace(result, stage_micros=(*step.micros, *(each.stage_micros[0] for each in heads)))
        return result

    def load_adapter(self, info: AdapterInfo) -> None:
        """Let the other ranks load an adapter that this one has loaded. Their next step waits until they have.

        Raises:
            GroupError: a rank has failed; no step can follow.
        """
        self._check()
        self._link.broadcast(encode(TakeAdapter(info)))

    def unload_adapter(self, digest: str) -> None:
        """Let the other ranks free the place of an adapter.

        Raises:
            GroupError: as `load_adapter`.
        """
        self._check()
        self._link.broadcast(encode(DropAdapter(digest)))

    def close(self) -> None:
        """End all ranks. No launch may follow; may be called again."""
        try:
            self._runner.close()
        finally:
            if self._lost is None:
                self._lost = GroupError("the ranks have ended")
                with suppress(GroupError):  # one of them has ended already
                    self._link.broadcast(encode(Close()))
                self._link.close()

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _failed(self, error: Exception) -> GroupError:
        """End the ranks. Return the error that names the rank which failed first, as far as that is known."""
        self._leave()
        self._lost = self._cause(error)
        self._link.close()
        return self._lost

    def _cause(self, error: Exception) -> GroupError:
        if not isinstance(error, GroupError):
            return GroupError(f"rank 0 failed: {type(error).__name__}: {error}")
        found = {error.rank: error} if isinstance(error, FailedRankError) else {}
        for timeout in (0.0, PROBLEM_SECONDS):
            for rank in (place.rank for place in self._others):
                if rank not in found and (problem := self._replies.problem(rank, timeout)) is not None:
                    found[rank] = FailedRankError(rank, problem)
                if rank in found and not found[rank].problem.is_consequence:
                    return found[rank]
        return min(found.values(), key=lambda failed: failed.rank, default=error)


def publisher(link: LeaderLink) -> Callable[[torch.Tensor], None]:
    """Return what sends masks [C, words] int32 to the other ranks."""

    def publish(masks: torch.Tensor) -> None:
        link.broadcast(encode(Masks(masks.numpy().tobytes())))

    return publish


def summed(copies: Sequence[PageCopy], parts: Sequence[Sequence[CopyDone]]) -> tuple[CopyDone, ...]:
    """Return how copies between device and host ended, given the checksums of each rank's part of every page."""
    by_ticket: Mapping[int, PageCopy] = {copy.ticket: copy for copy in copies}
    return tuple(
        ended(by_ticket[each[0].ticket], _signed(sum(done.checksum for done in each)))
        for each in zip(*parts, strict=True)
    )


def _signed(value: int) -> int:
    """Return the int64 with the lowest 64 bits of a sum."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
