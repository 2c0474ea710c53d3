"""All ranks of a layout as threads: a leader that is a runner, over followers that run until it is closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.reference import ReferenceAttention
from sluice.grammar.base import CompiledGrammars
from sluice.parallel.layout import Layout, Place
from sluice.parallel.member import Member
from sluice.runner.cpu_logit_ops import CPU_LOGIT_OPS
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.features.grammars import NO_GRAMMARS, Grammars
from sluice.runner.forwards import Model
from sluice.runner.logit_ops import LogitOps
from sluice.runner.parallel.follower import Commands, Follower, elsewhere
from sluice.runner.parallel.leader import Leader, Replies, publisher
from sluice.runner.parallel.masks import GrammarsElsewhere
from sluice.runner.parallel.sampling import ShardedLogitOps
from sluice.runner.runner import TorchRunner
from sluice.testing.groups import ThreadGroup
from sluice.testing.links import ThreadLeaderLink


@dataclass
class Ranks:
    """What a test looks at."""

    leader: Leader
    runners: list[TorchRunner]
    states: list[DeviceState]
    ends: list[Future[None]] = field(default_factory=list)


NewState = Callable[..., DeviceState]


def members(layout: Layout) -> list[Member]:
    """The ranks of a layout."""
    shards = [ThreadGroup.make(layout.tensor_size) for _ in range(layout.pipeline_size)]
    stages = [ThreadGroup.make(layout.pipeline_size) for _ in range(layout.tensor_size)]
    places = map(layout.place, range(layout.size))
    return [Member(place, shards[place.stage][place.shard], stages[place.shard][place.stage]) for place in places]


def leave(member: Member) -> None:
    """Leave both groups of a rank."""
    member.tensor_group.close()
    member.pipeline_group.close()


@contextmanager
def running(
    layout: Layout,
    new_model: Callable[[Member], Model],
    shape_of: Callable[[Member], DeviceShape],
    grammars: CompiledGrammars = NO_GRAMMARS,
    new_state: NewState = DeviceState,
    ops: LogitOps = CPU_LOGIT_OPS,
) -> Iterator[Ranks]:
    """Run all ranks; the followers end with the context, and raise there what they raised."""
    link = ThreadLeaderLink(layout.size)
    replies = Replies(link, layout)
    ranks = members(layout)
    ends = [Commands(each) for each in link.followers]
    makers = [
        partial(Grammars, grammars=grammars, publish=publisher(link)),
        *(partial(GrammarsElsewhere, receive=each.masks) for each in ends),
    ]
    states, runners = [], []
    for member, maker in zip(ranks, makers, strict=True):
        place = member.place
        shape = replace(shape_of(member), vocabulary=place.vocabulary(shape_of(member).vocab_size))
        state = new_state(shape, new_grammars=maker)
        waits = None if place.is_last else replies.sampled if place.rank == 0 else elsewhere
        shards = [replace(place, shard=shard).vocabulary(shape.vocab_size) for shard in range(layout.tensor_size)]
        logit_ops = ShardedLogitOps(ops, member.tensor_group, shards)
        states.append(state)
        runners.append(
            TorchRunner(new_model(member), state, ReferenceAttention(), logit_ops=logit_ops, elsewhere=waits)
        )
    leader = Leader(runners[0], link, layout, replies, partial(leave, ranks[0]))

    def follow(rank: int) -> None:
        member, end = ranks[rank], link.followers[rank - 1]
        try:
            Follower(runners[rank], ends[rank - 1], end, member.place, partial(leave, member)).run()
        finally:
            end.end()

    with ThreadPoolExecutor(max(1, layout.size - 1)) as threads:
        found = Ranks(leader, runners, states, [threads.submit(follow, rank) for rank in range(1, layout.size)])
        try:
            yield found
        finally:
            leader.close()


class ShardOfWhole:
    """A rank of a model that every rank computes whole: only its logits are a part.

    On a rank before the last stage it gives no hidden states.
    """

    def __init__(self, inner: Model, place: Place, vocab_size: int) -> None:
        self._inner = inner
        self._place = place
        self._own = place.vocabulary(vocab_size)

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        hidden = self._inner.forward(batch, kv, attention)
        return hidden if self._place.is_last else hidden[:0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        assert self._place.is_last, "only the last stage has a head"
        return self._inner.logits(hidden)[:, self._own.start : self._own.stop]
