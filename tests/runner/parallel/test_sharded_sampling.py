"""Sampling from parts of logits: the tokens of one rank, whatever the rows ask for and however many parts there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from features import sampling_rows
from slow import examples
from sluice.parallel.group import Group
from sluice.parallel.layout import Layout
from sluice.runner.cpu_logit_ops import CPU_LOGIT_OPS
from sluice.runner.features.base import StepLogits
from sluice.runner.features.penalties import Penalties
from sluice.runner.logit_ops import LogitOps
from sluice.runner.noise import noise_key
from sluice.runner.parallel.sampling import ShardedLogitOps
from sluice.runner.sampler import FAILED, RowGroup, RowKind, SamplingRows, row_kind
from sluice.types import NewSlot, SamplingParams, Submit
from thread_groups import ThreadGroup, run_ranks

CPU = torch.device("cpu")
T = TypeVar("T")

ROWS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0, 1e-6]),
    top_k=st.sampled_from([0, 0, 0, 1, 5, 2000]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 1e-9]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 3),
)


def rows_of(params: list[SamplingParams], vocab: int) -> tuple[SamplingRows, list[RowGroup]]:
    """What the sampler takes: row i samples at position i."""
    kinds = [row_kind(each, vocab) for each in params]
    columns = (
        torch.tensor([each.temperature for each in params], dtype=torch.float64),
        torch.tensor([each.min_p for each in params], dtype=torch.float64),
        torch.tensor([each.top_k if each.top_k > 0 else vocab for each in params]),
        torch.tensor([each.top_p for each in params], dtype=torch.float64),
        torch.tensor([noise_key(each.seed or 0, 0) for each in params]),
        torch.arange(len(params)),
    )
    groups = [RowGroup(kind, torch.tensor([i for i, each in enumerate(kinds) if each is kind])) for kind in RowKind]
    return SamplingRows(*columns), [group for group in groups if len(group.rows)]


def on_shards(size: int, vocab: int, body: Callable[[LogitOps, range], T]) -> T:
    """Run a body on every shard, with the operations and the tokens of that shard; all must return the same."""
    layout = Layout(tensor_size=size)
    shards = [layout.place(rank).vocabulary(vocab) for rank in range(size)]

    def on_rank(group: Group) -> T:
        return body(ShardedLogitOps(CPU_LOGIT_OPS, group, shards), shards[group.rank])

    first, *others = run_ranks(ThreadGroup.make(size), on_rank)
    assert all(repr(other) == repr(first) for other in others), "ranks differ"
    return first


def logits_of(draw: st.DrawFn, rows: int, vocab: int) -> torch.Tensor:
    """Logits with ties, impossible tokens, and rows that must fail."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    logits = torch.randn(rows, vocab, generator=generator, dtype=torch.float64) * 4
    if draw(st.booleans()):
        logits = logits.round()
    logits[torch.rand(rows, vocab, generator=generator) < draw(st.sampled_from([0.0, 0.5, 0.99]))] = -torch.inf
    for bad in (torch.nan, torch.inf):
        if draw(st.integers(0, 3)) == 0:
            logits[draw(st.integers(0, rows - 1)), draw(st.integers(0, vocab - 1))] = bad
    return logits.to(draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16])))


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, torch.Tensor, list[SamplingParams]]:
    size = draw(st.integers(1, 5))
    vocab = draw(st.integers(32 * (size - 1) + 1, 1500))
    params = draw(st.lists(ROWS, min_size=1, max_size=8))
    return size, logits_of(draw, len(params), vocab), params


@examples(100)
@given(steps())
def test_parts_sample_what_the_whole_does(step: tuple[int, torch.Tensor, list[SamplingParams]]) -> None:
    size, logits, params = step
    rows, groups = rows_of(params, logits.shape[1])
    expected = CPU_LOGIT_OPS.sample(logits, rows, groups).tolist()
    found = on_shards(
        size, logits.shape[1], lambda ops, own: ops.sample(logits[:, own.start : own.stop], rows, groups).tolist()
    )
    assert found == expected


@examples(40)
@given(steps(), st.sampled_from([0, 1, 5, 40]), st.integers(0, 1 << 20))
def test_parts_score_what_the_whole_does(
    step: tuple[int, torch.Tensor, list[SamplingParams]], width: int, token: int
) -> None:
    """The sums differ by rounding alone. Of equally likely tokens any may be named, and each once."""
    size, logits, _ = step
    vocab = logits.shape[1]
    tokens = (torch.arange(len(logits)) * 7919 + token) % vocab
    width = min(width, vocab)
    expected = CPU_LOGIT_OPS.score(logits, tokens, width)
    found = on_shards(size, vocab, lambda ops, own: ops.score(logits[:, own.start : own.stop], tokens, width))
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    close = {"equal_nan": True, "rtol": 0, "atol": 1e-12 if logits.dtype == torch.float64 else 2e-5}
    torch.testing.assert_close(found.logprobs, expected.logprobs, **close)
    torch.testing.assert_close(found.top_logprobs, expected.top_logprobs, **close)
    usable = ~expected.logprobs.isnan()
    if width:
        chosen = logits.gather(-1, found.top_ids)[usable]
        assert chosen.equal(logits.gather(-1, expected.top_ids)[usable])
    assert all(len(set(ids)) == width for ids in found.top_ids.tolist())


@pytest.mark.parametrize("kind", ["greedy", "plain", "short", "full"])
def test_a_row_fails_on_every_shard_and_alone(kind: str) -> None:
    params = {
        "greedy": SamplingParams(temperature=0.0),
        "plain": SamplingParams(seed=1),
        "short": SamplingParams(seed=1, top_k=3),
        "full": SamplingParams(seed=1, top_p=0.5),
    }[kind]
    logits = torch.randn(5, 100, generator=torch.Generator().manual_seed(0))
    rows, groups = rows_of([params] * 5, 100)

    def sampled() -> list[int]:
        return on_shards(3, 100, lambda ops, own: ops.sample(logits[:, own.start : own.stop], rows, groups).tolist())

    healthy = sampled()
    logits[1, 99], logits[2, 0], logits[3] = torch.nan, torch.inf, -torch.inf
    assert sampled() == [healthy[0], FAILED, FAILED, FAILED, healthy[4]]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_are_penalised_biased_and_masked_as_the_whole_is(size: int) -> None:
    """Prompts, biases and stop tokens with tokens of every part; counts that grow with tokens of every part."""
    vocab, steps = 150, 16
    asked = [
        SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.5, seed=0),
        SamplingParams(seed=1, presence_penalty=1.0, logit_bias=((0, 3.0), (64, 2.0), (149, 5.0))),
        SamplingParams(temperature=0.0, seed=0, min_tokens=steps, stop_token_ids=(3, 70, 149)),
    ]
    history = tuple(range(0, vocab, 7))
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(steps, 3, vocab, generator=generator)
    logits[:, 0, [31, 32, 63, 64, 95, 96]] += 4  # beside a border: there tokens of another part would be counted
    masks = torch.randint(-(1 << 31), 1 << 31, (steps, 2, 5), generator=generator).to(torch.int32)
    rows, groups = rows_of(asked, vocab)

    def life(ops: LogitOps, own: range) -> list[list[int]]:
        feature = Penalties(3, vocab, CPU, own)
        for slot, params in enumerate(asked):
            feature.fill(NewSlot(slot, Submit(slot, (), params), len(history) - 2, history))
        tokens = []
        for step in range(steps):
            staged = feature.stage(sampling_rows([0, 1, 2], np.full(3, len(history) + step)))
            assert staged is not None
            staged.arrive([torch.from_numpy(np.asarray(array)) for array in staged.arrays])
            raw = logits[step, :, own.start : own.stop]
            changed = StepLogits(raw, raw[:0], raw[:0], lambda hidden: hidden, ops)
            staged.apply(changed)
            ops.mask(changed.maskable(), torch.tensor([0, 2]), masks[step])
            changed.tokens = ops.sample(changed.to_sample, rows, groups)
            staged.sampled(changed)
            tokens.append(changed.tokens.tolist())
        return tokens

    assert on_shards(size, vocab, life) == life(CPU_LOGIT_OPS, range(vocab))


def test_every_shard_must_have_tokens() -> None:
    layout = Layout(tensor_size=3)
    shards = [layout.place(rank).vocabulary(64) for rank in range(3)]
    with pytest.raises(ValueError, match="each of 3 ranks must have tokens"):
        ShardedLogitOps(CPU_LOGIT_OPS, ThreadGroup.make(3)[0], shards)
