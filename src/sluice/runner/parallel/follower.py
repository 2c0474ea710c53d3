"""A rank beside the leader: it starts the steps that the leader sends, and answers where the leader must know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import NoReturn, Protocol

from sluice.device.queues import noop
from sluice.models.adapters.bank import AdapterBank
from sluice.parallel.group import GroupError
from sluice.parallel.layout import Place
from sluice.runner.parallel.control import FollowerLink
from sluice.runner.parallel.frames import (
    Close,
    DropAdapter,
    Launch,
    Masks,
    Problem,
    RankAnswer,
    TakeAdapter,
    decode_command,
    encode,
)
from sluice.runner.parallel.stage_timer import Timed, untimed
from sluice.runner.runner import TorchRunner
from sluice.storage.copies import Launched
from sluice.types import BatchPlan, BatchResult

Micros = tuple[int, ...]
"""Microseconds that this stage computed for a step, if they are known (`BatchResult.stage_micros`)."""


def answers(place: Place, plan: BatchPlan, *, is_timed: bool) -> bool:
    """Return whether a rank beside the leader answers a plan: every rank one with copies, with the checksums of its
    pages; the first rank of the last stage one with chunks, with what was sampled; and that of every later stage, if
    steps are timed, or one with layers of a chunk: without rows, the last stage does not wait for those before it."""
    if plan.copies:
        return True
    if place.stage == 0 or place.shard > 0:
        return False
    return bool(plan.slices) or (bool(plan.chunks) and (place.is_last or is_timed))


def elsewhere(step: int) -> BatchResult | None:
    """Return None: of a step that it does not sample, a follower is not to know the result."""
    return None


class Commands:
    """What the leader sends to a rank, in order.

    Args:
        adapters: those beside this rank's part of the model; None: it takes none.
    """

    def __init__(self, link: FollowerLink, adapters: AdapterBank | None = None) -> None:
        self._link = link
        self._adapters = adapters

    def next_plan(self) -> BatchPlan | None:
        """Wait for the next plan, and load the adapters that come before it; None: there is no other.

        Raises:
            GroupError: the leader has ended, or does something else first.
            AdapterError: an adapter has other content here than it had for the leader.
        """
        while isinstance(command := decode_command(self._link.receive()), TakeAdapter | DropAdapter):
            self._change_adapters(command)
        if isinstance(command, Masks):
            _unexpected("masks of a step that has none")
        return command.plan if isinstance(command, Launch) else None

    def masks(self) -> bytes:
        """Wait for the masks of the step that was started last.

        Raises:
            GroupError: the leader has ended, or does something else first.
        """
        command = decode_command(self._link.receive())
        if isinstance(command, Close):
            raise GroupError("the leader has ended")
        if isinstance(command, Launch):
            _unexpected(f"step {command.plan.step} before the masks of the one before it")
        if not isinstance(command, Masks):
            _unexpected("an adapter before the masks of a step")
        return command.bits

    def _change_adapters(self, command: TakeAdapter | DropAdapter) -> None:
        assert self._adapters is not None, f"{command} to a rank without room for adapters"
        if isinstance(command, DropAdapter):
            self._adapters.unload(command.digest)
            return
        info = command.info
        self._adapters.load(self._adapters.read(info.name, info.path, info.digest))


def _unexpected(what: str) -> NoReturn:
    raise GroupError(f"the leader sent {what}")


class Follower:
    """Runs one rank.

    Args:
        runner: over the rank's part of the model.
        commands: of the leader.
        link: to the leader.
        place: of the rank.
        leave: leaves the groups of this rank, so that no other waits for it.
        timed: starts steps.
    """

    def __init__(
        self,
        runner: TorchRunner,
        commands: Commands,
        link: FollowerLink,
        place: Place,
        leave: Callable[[], None] = noop,
        timed: Timed = untimed,
    ) -> None:
        self._runner = runner
        self._commands = commands
        self._link = link
        self._place = place
        self._leave = leave
        self._timed = timed
        at_once = runner.computes_at_launch
        self._answers: Answers = AnswersAtOnce(link) if at_once else AnswersWhenDone(link, self._tell)

    def run(self) -> None:
        """Run steps until the leader closes the links. The runner is closed then.

        Raises:
            Exception: why it cannot continue. The leader was notified, if it is still there.
        """
        try:
            while (plan := self._commands.next_plan()) is not None:
                self._step(plan)
            self._answers.close()
        except Exception as error:
            self._tell(error)
            raise
        finally:
            self._leave()
            self._runner.close()

    def _step(self, plan: BatchPlan) -> None:
        step, micros = self._timed(lambda: self._runner.start(plan))
        if answers(self._place, plan, is_timed=bool(micros)):
            self._answers.send(step, micros)

    def _tell(self, error: Exception) -> None:
        is_consequence = isinstance(error, GroupError)
        message = str(error) if is_consequence else f"{type(error).__name__}: {error}"
        try:
            self._link.send(encode(Problem(message, is_consequence)))
        except GroupError:
            return  # the leader has ended first


class Answers(Protocol):
    """Sends what becomes of steps."""

    def send(self, step: Launched, micros: Micros) -> None:
        """Answer a step that was started. Raises what made it fail, if that is known."""
        ...

    def close(self) -> None:
        """Send what is left to answer. May be called again."""
        ...


class AnswersAtOnce:
    """Where a step is computed when it was started, as on a CPU."""

    def __init__(self, link: FollowerLink) -> None:
        self._link = link

    def send(self, step: Launched, micros: Micros) -> None:
        self._link.send(encode(RankAnswer(replace(step.wait(), stage_micros=micros))))

    def close(self) -> None:
        """Return: all is sent."""


class AnswersWhenDone:
    """Where a device computes: a thread waits for its steps, so that the next one is started meanwhile.

    Args:
        failed: called, from the thread, with the error of a step, which no answer follows.
    """

    def __init__(self, link: FollowerLink, failed: Callable[[Exception], None]) -> None:
        self._answers = AnswersAtOnce(link)
        self._failed = failed
        self._steps: SimpleQueue[tuple[Launched, Micros] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._wait_for_steps, name="answers", daemon=True)
        self._thread.start()

    def send(self, step: Launched, micros: Micros) -> None:
        self._steps.put((step, micros))

    def close(self) -> None:
        self._steps.put(None)
        self._thread.join()

    def _wait_for_steps(self) -> None:
        while (entry := self._steps.get()) is not None:
            try:
                self._answers.send(*entry)
            except Exception as error:  # noqa: BLE001 - the runner raises it
                self._failed(error)
                return
