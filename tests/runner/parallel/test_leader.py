"""A leader and its followers: the answers of one rank, for any layout, and errors that name the rank that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ranks import Ranks, ShardOfWhole, running
from shadow_model import ShadowModel, shadow_runner, shadow_shape, shadow_state
from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.engine.messages import Abort
from sluice.grammar.base import Bits
from sluice.parallel.group import GroupError
from sluice.parallel.layout import Layout
from sluice.parallel.member import Member
from sluice.runner.features.base import BAD_LOGITS
from sluice.runner.features.grammars import Grammars
from sluice.runner.parallel.frames import Close, decode_command, decode_reply, encode
from sluice.runner.parallel.leader import summed
from sluice.types import (
    BatchPlan,
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


@dataclass(frozen=True)
class FakeGrammar:
    """Allows every second token, forces one after some, and ends at some sums of all tokens."""

    def find(self, request_id: int) -> FakeGrammar:
        return self

    def watch(self, on_end: object) -> None:
        """Return: nothing is kept."""

    def matcher(self, *, may_force: bool = True) -> FakeMatcher:
        return FakeMatcher()


class FakeMatcher:
    def __init__(self) -> None:
        self._total = 0

    def consume(self, tokens: Sequence[int]) -> None:
        self._total += sum(tokens)

    def fill(self, bits: Bits) -> None:
        bits[:] = -1431655766 if self._total % 3 else 0x55555555

    def forced(self) -> list[int]:
        return [self._total % VOCAB] * (self._total % 4 == 0)

    @property
    def is_accepting(self) -> bool:
        return self._total % 3 == 0

    @property
    def is_complete(self) -> bool:
        return self._total % 11 == 0


def world_of(layout: Layout, pages: int = 30) -> World:
    """A world whose steps are several at once, as many as a pipeline has."""
    is_ahead = layout.pipeline_size == 1
    limits = limits_of(chunk=5, running=3, lookahead=int(is_ahead))
    return World(limits, num_pages=pages, page_size=2, depth=layout.pipeline_size + 1)


@contextmanager
def ranks_of(layout: Layout, world: World, poison: int | None = None) -> Iterator[Ranks]:
    shape = shadow_shape(num_pages=world.num_pages, page_size=world.page_size, num_slots=3, vocab_size=VOCAB)

    def new_model(member: Member) -> ShardOfWhole:
        return ShardOfWhole(ShadowModel(VOCAB, poison), member.place, VOCAB)

    with running(layout, new_model, lambda member: shape, FakeGrammar(), shadow_state) as ranks:
        yield ranks


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
@settings(max_examples=12)
@given(
    st.lists(
        st.tuples(st.lists(IDS, min_size=1, max_size=9), SAMPLINGS, st.sampled_from(["", "", "any"]), st.booleans()),
        min_size=1,
        max_size=6,
    )
)
def test_ranks_answer_what_one_does(layout: Layout, asked: list[tuple[list[int], SamplingParams, str, bool]]) -> None:
    """Tokens, log-probabilities and embeddings; with grammars, preemptions and several steps in flight."""
    world = world_of(layout, 12)
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


def answer_of(bench: Bench, submit: Submit) -> object:
    """All that a request was sent; sums of several ranks are rounded differently."""
    outputs = [output for output in bench.link.outputs if output.request_id == submit.request_id]
    scored = [item for output in outputs for item in (*output.prompt_logprobs, *output.logprobs)]
    return (
        [token for output in outputs for token in output.token_ids],
        outputs[-1].finish_reason,
        [(each.token_id, round(each.logprob, 9), [(t, round(p, 9)) for t, p in each.top]) for each in scored],
        [output.embedding for output in outputs],
    )


def grammars_of_one(num_slots: int, vocab_size: int, device: torch.device) -> Grammars:
    return Grammars(num_slots, vocab_size, device, FakeGrammar())


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
        assert ranks.leader.launch(plan_of(2, 5)).wait() == one.launch(plan_of(2, 5)).wait()


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
