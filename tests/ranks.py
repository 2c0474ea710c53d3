"""All ranks of a layout as threads: a leader that is a runner, over followers that run until it is closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.reference import ReferenceAttention
from sluice.device.pages import DevicePages
from sluice.device.queues import plain_host_buffer
from sluice.models.decoder import Decoder
from sluice.parallel.layout import Layout, Place
from sluice.parallel.member import Member
from sluice.runner.cpu_logit_ops import CPU_LOGIT_OPS
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.features.grammars import NO_GRAMMARS, GrammarMasks
from sluice.runner.forwards import Model
from sluice.runner.grammar.base import CompiledGrammars
from sluice.runner.grammar.guidance import Bits
from sluice.runner.layers import LayerSlices, Stages
from sluice.runner.parallel.follower import Commands, Follower, elsewhere
from sluice.runner.parallel.leader import Leader, Replies, publisher
from sluice.runner.parallel.masks import GrammarsElsewhere
from sluice.runner.parallel.sampling import ShardedLogitOps
from sluice.runner.parallel.stage_timer import StageTimer
from sluice.runner.parallel.tokens import exchange_last_tokens
from sluice.runner.runner import TorchRunner
from sluice.storage.copies import NoTiers, PageCopies
from sluice.storage.host_tier import HostTier
from sluice.types import Submit
from thread_groups import thread_members
from thread_links import ThreadLeaderLink
from worlds import Bench


@dataclass
class Ranks:
    """What a test looks at."""

    leader: Leader
    runners: list[TorchRunner]
    states: list[DeviceState]
    tiers: list[HostTier] = field(default_factory=list)
    """Of each rank, if they have any."""
    ends: list[Future[None]] = field(default_factory=list)


NewState = Callable[..., DeviceState]


@contextmanager
def running(
    layout: Layout,
    new_model: Callable[[Member], Model],
    shape_of: Callable[[Member], DeviceShape],
    grammars: CompiledGrammars = NO_GRAMMARS,
    new_state: NewState = DeviceState,
    host_pages: int = 0,
    is_ahead: bool = False,
) -> Iterator[Ranks]:
    """Run all ranks, each with a host tier of its own; the followers end with the context.

    Args:
        is_ahead: requests have a lookahead.
    """
    link = ThreadLeaderLink(layout.size)
    replies = Replies(link, layout)
    timers = [StageTimer(member) for member in thread_members(layout)]
    ranks = [timer.member for timer in timers]
    ends = [Commands(each) for each in link.followers]
    makers = [
        partial(GrammarMasks, grammars=grammars, publish=publisher(link)),
        *(partial(GrammarsElsewhere, receive=each.masks) for each in ends),
    ]
    states, runners, tiers = [], [], []
    for member, maker in zip(ranks, makers, strict=True):
        place = member.place
        shape = replace(shape_of(member), vocabulary=place.vocabulary(shape_of(member).vocab_size))
        state = new_state(shape, new_grammars=maker)
        waits = None if place.is_last else replies.sampled if place.rank == 0 else elsewhere
        shards = [replace(place, shard=shard).vocabulary(shape.vocab_size) for shard in range(layout.tensor_size)]
        logit_ops = ShardedLogitOps(CPU_LOGIT_OPS, member.tensor_group, shards)
        if is_ahead:
            exchange_last_tokens(state, member)
        states.append(state)
        copies, pages = NoTiers(), DevicePages(state.kv)
        if host_pages:
            tiers.append(HostTier(host_pages, pages, plain_host_buffer))
            copies = PageCopies(pages, tiers[-1], None, plain_host_buffer, is_part=True)
        model = new_model(member)
        attention = ReferenceAttention()
        layers = None
        if isinstance(model, Decoder):
            layers = LayerSlices(model.walk, state, attention, Stages(place, model.config.spec.num_layers))
        runners.append(
            TorchRunner(model, state, attention, logit_ops=logit_ops, layers=layers, copies=copies, elsewhere=waits)
        )
    leader = Leader(runners[0], link, layout, replies, ranks[0].close, timers[0].timed)

    def follow(rank: int) -> None:
        member, end = ranks[rank], link.followers[rank - 1]
        try:
            Follower(runners[rank], ends[rank - 1], end, member.place, member.close, timers[rank].timed).run()
        finally:
            end.end()

    with ThreadPoolExecutor(max(1, layout.size - 1)) as threads:
        found = Ranks(leader, runners, states, tiers, [threads.submit(follow, rank) for rank in range(1, layout.size)])
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


@dataclass(frozen=True)
class FakeGrammar:
    """Allows every second token, forces one after some, and ends at some sums of all tokens."""

    vocab_size: int

    def find(self, request_id: int) -> FakeGrammar:
        return self

    def watch(self, on_end: object) -> None:
        """Return: nothing is kept."""

    def matcher(self, *, may_force: bool = True) -> FakeMatcher:
        return FakeMatcher(self.vocab_size)


class FakeMatcher:
    def __init__(self, vocab_size: int, total: int = 0) -> None:
        self._vocab_size = vocab_size
        self._total = total

    def copy(self) -> FakeMatcher:
        return FakeMatcher(self._vocab_size, self._total)

    def consume(self, tokens: Sequence[int]) -> None:
        self._total += sum(tokens)

    def fill(self, bits: Bits) -> None:
        bits[:] = -1431655766 if self._total % 3 else 0x55555555

    def forced(self) -> list[int]:
        return [self._total % self._vocab_size] * (self._total % 4 == 0)

    @property
    def is_accepting(self) -> bool:
        return self._total % 3 == 0

    @property
    def is_complete(self) -> bool:
        return self._total % 11 == 0


def answer_of(bench: Bench, submit: Submit) -> object:
    """All that a request was sent; sums of several ranks are rounded differently."""
    outputs = [output for output in bench.link.outputs if output.request_id == submit.request_id]
    scored = [item for output in outputs for item in (*output.prompt_logprobs, *output.logprobs)]
    return (
        [token for output in outputs for token in output.token_ids],
        outputs[-1].finish_reason,
        [(each.token_id, round(each.logprob, 9), [(t, round(p, 9)) for t, p in each.top]) for each in scored],
        np.frombuffer(outputs[-1].embedding, dtype="<f4").round(4).tolist(),
    )
