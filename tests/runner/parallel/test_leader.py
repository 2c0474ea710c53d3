"""A leader and its followers: the answers of one rank, for any layout, and errors that name the rank that failed."""

from __future__ import annotations

import itertools
import random
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranks import FakeGrammar, FakeMatcher, Ranks, ShardOfWhole, answer_of, running
from shadow_model import ShadowModel, shadow_runner, shadow_shape, shadow_state
from slow import examples, products, slow
from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.engine.messages import Abort
from sluice.parallel.group import Alone, GroupError
from sluice.parallel.layout import Layout
from sluice.parallel.member import ALONE, Member
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.features.base import BAD_LOGITS
from sluice.runner.features.grammars import GrammarMasks
from sluice.runner.grammar.guidance import Bits
from sluice.runner.parallel.follower import AnswersWhenDone
from sluice.runner.parallel.frames import Close, RankAnswer, decode_command, decode_reply, encode
from sluice.runner.parallel.leader import summed
from sluice.runner.parallel.stage_timer import StageTimer
from sluice.storage.copies import CopiesOnly
from sluice.types import (
    BatchPlan,
    BatchResult,
    Chunk,
    CopyDone,
    FinishReason,
    NewSlot,
    PageCopy,
    PlanError,
    SamplingParams,
    Submit,
    Tier,
)
from thread_links import ThreadLeaderLink
from worlds import Bench, World, limits_of

VOCAB = 70
LAYOUTS = [Layout(2), Layout(1, 2), Layout(2, 2), Layout(1, 3)]
NAMES = [f"tp{layout.tensor_size} pp{layout.pipeline_size}" for layout in LAYOUTS]
IDS = st.integers(0, VOCAB - 1)
SAMPLINGS = st.builds(
    SamplingParams,
    seed=st.integers(0, 3),
    max_tokens=st.integers(1, 8),
    temperature=st.sampled_from([0.0, 1.0]),
    top_k=st.sampled_from([0, 0, 5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 1.5]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.7]),
    logit_bias=st.dictionaries(IDS, st.sampled_from([-100, 2.5]), max_size=2),
    min_tokens=st.sampled_from([0, 1]),
    stop_token_ids=st.lists(IDS, max_size=3),
    logprobs=st.sampled_from([None, None, 0, 3]),
    prompt_logprobs=st.sampled_from([None, None, 2]),
)


def world_of(layout: Layout, pages: int = 30, lookahead: int = 0) -> World:
    """A world whose steps are several at once, as many as a pipeline has."""
    limits = limits_of(chunk=5, running=3, lookahead=lookahead)
    return World(limits, num_pages=pages, page_size=2, depth=layout.pipeline_size + 1)


@contextmanager
def ranks_of(layout: Layout, world: World, poison: int | None = None) -> Iterator[Ranks]:
    shape = shadow_shape(num_pages=world.num_pages, page_size=world.page_size, num_slots=3, vocab_size=VOCAB)

    def new_model(member: Member) -> ShardOfWhole:
        return ShardOfWhole(ShadowModel(VOCAB, poison), member.place, VOCAB)

    is_ahead = world.limits.lookahead > 0
    with running(layout, new_model, lambda member: shape, FakeGrammar(VOCAB), shadow_state, is_ahead=is_ahead) as ranks:
        yield ranks


@products(layout=LAYOUTS, lookahead=[1, 0])
@examples(8)
@given(
    st.lists(
        st.tuples(st.lists(IDS, min_size=1, max_size=9), SAMPLINGS, st.sampled_from(["", "", "any"]), st.booleans()),
        min_size=1,
        max_size=6,
    )
)
def test_ranks_answer_what_one_does(
    lookahead: int, layout: Layout, asked: list[tuple[list[int], SamplingParams, str, bool]]
) -> None:
    """Tokens, log-probabilities and embeddings; with grammars, preemptions and several steps in flight."""
    world = world_of(layout, 12, lookahead)
    submits = [
        Submit(
            i,
            tuple(prompt),
            SamplingParams(max_tokens=1, seed=0) if embeds else params,
            grammar="" if embeds else grammar,
            embeds=embeds,
        )
        for i, (prompt, params, grammar, embeds) in enumerate(asked)
    ]
    one = shadow_runner(
        shadow_shape(num_pages=12, page_size=2, num_slots=3, vocab_size=VOCAB), new_grammars=grammars_of_one
    )
    expected = Bench.of(world, one)
    with ranks_of(layout, world) as ranks:
        found = Bench.of(world, ranks.leader)
        for bench in (expected, found):
            bench.link.put(*submits)
            bench.drain(2000)
        tables = [state.page_table.host for state in ranks.states]
    assert [answer_of(found, each) for each in submits] == [answer_of(expected, each) for each in submits]
    assert all(np.array_equal(table, tables[0]) for table in tables)


def grammars_of_one(num_slots: int, vocab_size: int, device: torch.device) -> GrammarMasks:
    return GrammarMasks(num_slots, vocab_size, device, FakeGrammar(VOCAB))


GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=3)


def plan_of(step: int, token: int, slot: int = 0) -> BatchPlan:
    """One request of one token, in a slot of its own."""
    new = NewSlot(slot, Submit(slot, (), GREEDY), 1)
    return BatchPlan(step, (new,), (Chunk(slot, slot, 0, 1, (token,), (slot,), True),))


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_a_row_that_fails_and_a_plan_that_does_not_fit_end_nothing(layout: Layout) -> None:
    with ranks_of(layout, world_of(layout), poison=7) as ranks:
        failed = ranks.leader.launch(plan_of(0, 7)).wait()
        assert [(error.row, error.message) for error in failed.errors] == [(0, BAD_LOGITS)]
        with pytest.raises(PlanError, match="slot 9 of 3"):
            ranks.leader.launch(plan_of(1, 5, slot=9))
        one = shadow_runner(shadow_shape(num_pages=30, page_size=2, num_slots=3, vocab_size=VOCAB))
        result = ranks.leader.launch(plan_of(2, 5)).wait()
        stages = layout.pipeline_size
        assert len(result.stage_micros) == (stages if stages > 1 else 0)
        assert replace(result, stage_micros=()) == one.launch(plan_of(2, 5)).wait()


class NothingFollows(FakeGrammar):
    """Allows nothing, and the empty output."""

    def matcher(self, *, may_force: bool = True) -> FakeMatcher:
        return Ended(self.vocab_size)


class Ended(FakeMatcher):
    is_accepting = True

    def fill(self, bits: Bits) -> None:
        bits[:] = 0


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_a_row_that_is_complete_fails_if_its_prompt_has(layout: Layout) -> None:
    """Only the leader knows that nothing may follow, and only the ranks that sample know the prompt's logits."""
    shape = shadow_shape(num_pages=30, page_size=2, num_slots=3, vocab_size=VOCAB)

    def new_model(member: Member) -> ShardOfWhole:
        return ShardOfWhole(ShadowModel(VOCAB, 7), member.place, VOCAB)

    asks = SamplingParams(temperature=0.0, seed=0, max_tokens=3, prompt_logprobs=0)
    with running(layout, new_model, lambda member: shape, NothingFollows(VOCAB), shadow_state) as ranks:
        for step, token in enumerate((5, 7)):
            new = NewSlot(step, Submit(step, (), asks, grammar="any"), 2, (token, 3))
            chunk = Chunk(step, step, 0, 2, (token, 3), (step,), True, (3,))
            result = ranks.leader.launch(BatchPlan(step, (new,), (chunk,))).wait()
            assert result.token_ids == ((),)
            assert [error.message for error in result.errors] == [BAD_LOGITS] * step
            assert len(result.prompt_logprobs[0]) == 1 - step


class FailsAt:
    """A rank's model that fails when it sees a token, as a rank without memory does, and takes part in no exchange."""

    def __init__(self, inner: ShardOfWhole, member: Member, token: int | None) -> None:
        self._inner = inner
        self._member = member
        self._token = token

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        if self._token in batch.input_ids.tolist():
            raise MemoryError("no memory left")
        self._member.tensor_group.all_reduce(torch.zeros(1))
        return self._inner.forward(batch, kv, attention)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._inner.logits(hidden)


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
@pytest.mark.parametrize("is_leader", [True, False])
def test_a_rank_that_fails_ends_all_and_is_named(layout: Layout, is_leader: bool) -> None:
    """The others fail because of it: none of them is blamed."""
    rank = 0 if is_leader else layout.size - 1
    shape = shadow_shape(num_pages=30, page_size=2, num_slots=3, vocab_size=VOCAB)

    def new_model(member: Member) -> FailsAt:
        inner = ShardOfWhole(ShadowModel(VOCAB), member.place, VOCAB)
        return FailsAt(inner, member, 7 if member.place.rank == rank else None)

    with running(layout, new_model, lambda member: shape, new_state=shadow_state) as ranks:
        assert len(ranks.leader.launch(plan_of(0, 5)).wait().token_ids) == 1
        with pytest.raises(GroupError, match=f"rank {rank} failed: MemoryError: no memory left"):
            ranks.leader.launch(plan_of(1, 7)).wait()
        with pytest.raises(GroupError, match=f"rank {rank} failed"):
            ranks.leader.launch(plan_of(2, 5))
    assert all(end.exception() is not None for end in ranks.ends), "a follower goes on"


def test_closing_ends_the_followers() -> None:
    with ranks_of(Layout(2, 2), world_of(Layout(2, 2))) as ranks:
        ranks.leader.close()
        ranks.leader.close()
    assert [end.result(10) for end in ranks.ends] == [None] * 3


def test_an_abort_leaves_the_masks_of_steps_in_flight_in_their_order() -> None:
    """Ranks that disagree about which steps have masks take those of another step, or wait for ever."""
    layout = Layout(2, 2)
    with ranks_of(layout, world_of(layout)) as ranks:
        bench = Bench.of(world_of(layout), ranks.leader)
        params = SamplingParams(temperature=0.0, seed=0, max_tokens=12, ignore_eos=True)
        bench.link.put(*(Submit(i, (3, 5 + i), params, grammar="any" * (i % 2)) for i in range(3)))
        for _ in range(4):
            bench.step()
        bench.link.put(Abort(1))
        bench.drain(500)
        assert bench.link.end(1).finish_reason is FinishReason.ABORT
        assert len(bench.link.tokens(0)) == len(bench.link.tokens(2)) == 12


@pytest.mark.parametrize("decode", [decode_command, decode_reply])
@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\xa5other", encode(Close())[:-1]])
def test_bytes_that_are_no_frame_are_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(GroupError, match="sent no"):
        decode(data)


def test_checksums_of_parts_are_summed_and_compared() -> None:
    """Sums wrap, as those of the bytes of one rank do."""
    most, load = (1 << 63) - 1, (Tier.HOST, 3, Tier.DEVICE, 4)
    stored, whole, torn = (
        PageCopy(0, Tier.DEVICE, 1, Tier.HOST, 2),
        PageCopy(1, *load, checksum=-2),
        PageCopy(2, *load, checksum=5),
    )
    parts = [[CopyDone(0, most), CopyDone(1, most), CopyDone(2, 1)]] * 2
    first, second, third = summed([stored, whole, torn], parts)
    assert (first, second) == (CopyDone(0, -2), CopyDone(1, -2))
    assert third.error == "host page 3 holds a page of checksum 2, not 5"


class TableModel:
    """A model without layers: the logits after a token are a row of a table."""

    def __init__(self, vocab_size: int) -> None:
        self._table = torch.randn(vocab_size, vocab_size, generator=torch.Generator().manual_seed(0))

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        return self._table[batch.input_ids[batch.logit_rows]]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


class RemembersTables(DeviceState):
    """A state that remembers its page table after every plan."""

    def __init__(self, shape: DeviceShape, **options: Any) -> None:
        super().__init__(shape, **options)
        self.tables: list[int] = []

    def change(self, cleared: torch.Tensor, entries: torch.Tensor, pages: torch.Tensor) -> None:
        super().change(cleared, entries, pages)
        on_device = self.page_table.rows(torch.arange(3), torch.full((3,), 1), self.shape.row_pages, 1)
        self.tables.append(zlib.crc32(self.page_table.host.tobytes() + on_device.numpy().tobytes()))


def random_life(draw: random.Random, bench: Bench) -> None:
    """Requests that share prefixes, are aborted and preempted."""
    for request_id in range(draw.randint(5, 15)):
        prompt = [draw.randint(0, 1) for _ in range(draw.randint(1, 20))]
        params = SamplingParams(max_tokens=draw.randint(1, 12), temperature=draw.randint(0, 1), seed=request_id)
        bench.link.put(Submit(request_id, tuple(prompt), params, grammar=draw.choice(["", "", "any"])))
        if draw.random() < 0.2:
            bench.link.put(Abort(draw.randint(0, request_id)))
        for _ in range(draw.randint(0, 8)):
            bench.step()
    bench.drain(2000)


@pytest.mark.parametrize("least", [100, slow(1000)])
def test_random_plans_leave_equal_page_tables(least: int) -> None:
    """After each plan, on every rank: a plan that one of them leaves out, or does twice, or in another order."""
    total, layout = 0, Layout(2, 2)
    for seed in itertools.count():
        if total >= least:
            break
        draw = random.Random(seed)
        world = world_of(layout, draw.randint(11, 24))
        shape = shadow_shape(num_pages=world.num_pages, page_size=2, num_slots=3, vocab_size=VOCAB)

        def new_model(member: Member) -> ShardOfWhole:
            return ShardOfWhole(TableModel(VOCAB), member.place, VOCAB)

        with running(
            layout, new_model, lambda member, shape=shape: shape, FakeGrammar(VOCAB), RemembersTables
        ) as ranks:
            random_life(draw, Bench.of(world, ranks.leader))
        tables = [state.tables for state in ranks.states if isinstance(state, RemembersTables)]
        assert len(tables) == 4
        assert all(each == tables[0] for each in tables)
        total += len(tables[0])


def test_a_stage_is_not_busy_while_it_waits_for_another() -> None:
    """A clock that goes on by a second whenever it is read, and a group that receives for ten."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1
        return now

    class Slow(Alone):
        size = 2

        def recv(self, x: torch.Tensor, source: int) -> torch.Tensor:
            nonlocal now
            now += 10
            return x

    timer = StageTimer(Member(Layout(1, 2).place(0), pipeline_group=Slow()), clock)

    def start() -> CopiesOnly:
        timer.member.pipeline_group.recv(torch.zeros(1), 1)
        return CopiesOnly(3)

    assert timer.timed(start) == (CopiesOnly(3), (2_000_000,))
    assert StageTimer(ALONE, clock).timed(lambda: CopiesOnly(3)) == (CopiesOnly(3), ())


class HeldStep:
    """A step that is computed once it is released."""

    def __init__(self, step: int) -> None:
        self._step = step
        self.released = threading.Event()

    def wait(self) -> BatchResult:
        assert self.released.wait(30)
        if self._step < 0:
            raise MemoryError("no memory left")
        return BatchResult(self._step, ())


def test_steps_of_a_device_are_answered_in_their_order_when_they_are_done() -> None:
    """A rank that waits for a step before it starts the next one leaves its device idle."""
    (link,) = (leader := ThreadLeaderLink(2)).followers
    failed: list[Exception] = []
    answers, steps = AnswersWhenDone(link, failed.append), [HeldStep(3), HeldStep(4), HeldStep(-1)]
    for step in steps:
        answers.send(step, ())
    assert leader.receive(1, 0.0) is None
    for step in reversed(steps):
        step.released.set()
    answers.close()
    answers.close()
    frames = [leader.receive(1, 0.0) for _ in range(3)]
    found = [None if frame is None else decode_reply(frame) for frame in frames]
    assert found == [RankAnswer(BatchResult(3, ())), RankAnswer(BatchResult(4, ())), None]
    assert [str(error) for error in failed] == ["no memory left"]
