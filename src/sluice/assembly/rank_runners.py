"""The runners of several ranks, from loaded parts of a model: of the leader, and of those that follow it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from sluice.assembly.load import load
from sluice.assembly.tiers import RankPages
from sluice.config import EngineConfig
from sluice.device.queues import noop
from sluice.engine.protocols import Runner
from sluice.parallel.member import ALONE, Member
from sluice.runner.features.grammars import Publish, keep
from sluice.runner.launched import OtherRanksResult
from sluice.runner.parallel.control import FollowerLink, LeaderLink
from sluice.runner.parallel.follower import Commands, Follower, elsewhere
from sluice.runner.parallel.leader import Leader, Replies, publisher
from sluice.runner.parallel.masks import GrammarsElsewhere
from sluice.runner.parallel.stage_timer import StageTimer, untimed
from sluice.runner.parallel.tokens import exchange_last_tokens
from sluice.runner.runner import TorchRunner
from sluice.types import CopyDone

Agree = Callable[[RankPages], RankPages]


class OtherRanks(Protocol):
    """The other ranks, once they have joined the leader's groups and while they load."""

    @property
    def member(self) -> Member:
        """The leader's place and groups."""
        ...

    @property
    def links(self) -> LeaderLink: ...

    @property
    def wait_tick(self) -> Callable[[], None] | None:
        """Called about every second while a step waits for another rank's answer; None: nothing is."""
        ...

    def agree(self, pages: RankPages) -> RankPages:
        """Return how many pages every rank has room for, given for how many the leader has.

        Raises:
            ConfigError: another rank cannot start.
            GroupError: another rank has ended.
        """
        ...

    def wait_until_loaded(self) -> None:
        """Wait until every rank awaits steps.

        Raises:
            ConfigError, GroupError: as `agree`.
        """
        ...


class NoOthers:
    """For the engine of one process."""

    member = ALONE
    agree: Agree | None = None
    publish: Publish = staticmethod(keep)
    elsewhere: OtherRanksResult | None = None

    def over(self, runner: TorchRunner) -> Runner:
        return runner


NO_OTHERS = NoOthers()


class LedRanks:
    """For the engine of several ranks."""

    def __init__(self, ranks: OtherRanks) -> None:
        self._timer = StageTimer(ranks.member)
        self.member = self._timer.member
        self.agree: Agree | None = ranks.agree
        self.publish: Publish = publisher(ranks.links)
        self._ranks = ranks
        self._replies = Replies(ranks.links, self.member.place.layout, ranks.wait_tick or noop)
        self.elsewhere: OtherRanksResult | None = None if self.member.place.is_last else self._replies.sampled

    def over(self, runner: TorchRunner) -> Runner:
        self._ranks.wait_until_loaded()
        timed = self._timer.timed if runner.computes_at_launch else untimed
        return Leader(runner, self._ranks.links, self.member.place.layout, self._replies, self.member.close, timed)


def build_follower(
    config: EngineConfig, member: Member, link: FollowerLink, agree: Agree, local_rank: int
) -> tuple[Callable[[], None], str]:
    """Load a rank's part of a model, and return what runs the leader's steps on it, and the type of the device.

    Args:
        link: to the leader. The steps are run until it is closed.
        agree: see `load`.

    Raises:
        ConfigError: an option that cannot be honoured.
        CheckpointError: a model that cannot be found, loaded or cut.
        GroupError: another rank has ended.
    """
    timer = StageTimer(member)
    loaded = load(config, progress=False, member=timer.member, agree=agree, local_rank=local_rank)
    commands = Commands(link, loaded.adapters)
    state = loaded.state_with(partial(GrammarsElsewhere, receive=commands.masks))
    if loaded.info.config.scheduler.lookahead:
        exchange_last_tokens(state, timer.member)
    tiers = loaded.tiers.open(state, _ignore)
    runner = loaded.runner(state=state, tiers=tiers, elsewhere=None if member.place.is_last else elsewhere)
    timed = timer.timed if runner.computes_at_launch else untimed
    follower = Follower(runner, commands, link, member.place, member.close, timed)
    return follower.run, loaded.info.device.type


def _ignore(done: tuple[CopyDone, ...]) -> None:
    """Return: only copies from and to a disk are reported, and ranks have none."""
