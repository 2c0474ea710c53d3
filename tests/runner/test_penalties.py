"""Bias, penalties and minimum length: the logits are right however a request is chunked, cached and preempted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from features import sampling_rows
from shadow_model import shadow_runner, shadow_shape
from slow import examples, slow
from sluice.engine.messages import Submit
from sluice.runner.features.base import StepLogits
from sluice.runner.features.penalties import Penalties, TokenCounts
from sluice.runner.logit_ops import TORCH_LOGIT_OPS
from sluice.testing import digests, shadow_logits
from sluice.types import BatchPlan, Chunk, NewSlot, SamplingParams
from support import until_preemption
from worlds import Bench, World, limits_of

VOCAB, SLOTS = 11, 3
CPU = torch.device("cpu")
IDS = st.integers(0, VOCAB - 1)
SAMPLINGS = st.builds(
    SamplingParams,
    seed=st.just(0),
    max_tokens=st.just(20),
    temperature=st.just(0.0),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5, -2]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4, -1.25]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.7, 0.6, 1]),
    logit_bias=st.dictionaries(IDS, st.sampled_from([-100, -3.5, 0.25, 100]), max_size=3),
    min_tokens=st.sampled_from([0, 0, 1, 4, 20]),
    stop_token_ids=st.lists(IDS, max_size=3),
)


def adjusted(logits: Sequence[float], prompt: Sequence[int], outputs: Sequence[int], params: SamplingParams) -> Any:
    """What `SamplingParams` says, one obvious step after another."""
    found = list(logits)
    for token, bias in params.logit_bias:
        found[token] += bias
    for token in range(len(found)):
        if token in prompt or token in outputs:
            found[token] *= 1 / params.repetition_penalty if found[token] > 0 else params.repetition_penalty
        found[token] -= params.frequency_penalty * list(outputs).count(token)
        found[token] -= params.presence_penalty * (token in outputs)
        if token in params.stop_token_ids and len(outputs) < params.min_tokens:
            found[token] = float("-inf")
    return found


def applied(
    logits: torch.Tensor, asked: Sequence[tuple[SamplingParams, Sequence[int], Sequence[int]]]
) -> torch.Tensor | None:
    """The logits of rows given as (parameters, prompt, outputs): one slot each, filled with all of it."""
    feature = Penalties(len(asked), logits.shape[1], CPU)
    for slot, (params, prompt, outputs) in enumerate(asked):
        feature.fill(NewSlot(slot, Submit(slot, (), params), len(prompt), (*prompt, *outputs)))
    return step(feature, logits, [len(prompt) + len(outputs) for _, prompt, outputs in asked])


def step(feature: Penalties, logits: torch.Tensor, positions: Sequence[int]) -> torch.Tensor | None:
    """The logits of the first slots, a row each; None: they do not use the feature."""
    staged = feature.stage(sampling_rows(range(len(positions)), np.array(positions)))
    if staged is None:
        return None
    staged.arrive([*map(torch.from_numpy, staged.arrays)])
    found = StepLogits(logits, logits[:0], logits[:0], lambda hidden: hidden, TORCH_LOGIT_OPS)
    staged.apply(found)
    return found.to_sample


@given(
    st.lists(st.tuples(SAMPLINGS, st.lists(IDS, min_size=1, max_size=6), st.lists(IDS, max_size=6)), min_size=1),
    st.integers(0, 99),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_every_row_is_the_plain_loop(asked: list[Any], seed: int, dtype: torch.dtype) -> None:
    """Rows mixed up, counts of the prompt taken for outputs, a bias of one row in another."""
    logits = torch.randn(len(asked), VOCAB, generator=torch.Generator().manual_seed(seed)).to(dtype)
    given_logits = logits.clone()
    found = applied(logits, asked)
    assert torch.equal(logits, given_logits), "the model's own logits are still wanted, for log-probabilities"
    wanted = [adjusted(row.tolist(), p, o, params) for row, (params, p, o) in zip(logits, asked, strict=True)]
    if found is None:
        assert wanted == logits.tolist()
        return
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found.double(), torch.tensor(wanted, dtype=torch.float64), atol=2e-5, rtol=1e-5)
    plain = [row for row, (params, _, _) in enumerate(asked) if not (params.has_penalties or params.logit_bias)]
    kept = [row for row in plain if len(asked[row][2]) >= asked[row][0].min_tokens]
    assert torch.equal(found[kept], logits[kept].to(found.dtype)), "company changed a row that asks for nothing"


def test_they_are_those_of_transformers() -> None:
    """The field's own definitions of the repetition penalty, the minimum length and the bias."""
    logits = torch.randn(1, VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    prompt, outputs = [1, 4, 4], [7, 1]
    ids = torch.tensor([prompt + outputs])
    for params, theirs in [
        (SamplingParams(repetition_penalty=1.8), transformers.RepetitionPenaltyLogitsProcessor(1.8)),
        (SamplingParams(repetition_penalty=0.3), transformers.RepetitionPenaltyLogitsProcessor(0.3)),
        (
            SamplingParams(min_tokens=3, stop_token_ids=(2, 9)),
            transformers.MinNewTokensLengthLogitsProcessor(len(prompt), 3, [2, 9], device="cpu"),
        ),
        (
            SamplingParams(logit_bias={3: 2.5, 8: -40}),
            transformers.SequenceBiasLogitsProcessor([[[3], 2.5], [[8], -40.0]]),
        ),
    ]:
        found = applied(logits, [(params, prompt, outputs)])
        assert found is not None
        torch.testing.assert_close(found, theirs(ids, logits.clone()))


def test_a_step_in_which_no_row_asks_costs_nothing() -> None:
    assert applied(torch.zeros(2, VOCAB), [(SamplingParams(), [1], [])] * 2) is None
    stopped = SamplingParams(min_tokens=1, stop_token_ids=(5,))
    assert applied(torch.zeros(1, VOCAB), [(stopped, [1], [4])]) is None, "the minimum is reached"


def test_a_slot_filled_again_remembers_nothing() -> None:
    feature = Penalties(1, VOCAB, CPU)
    heavy = SamplingParams(
        frequency_penalty=2, repetition_penalty=3, logit_bias={1: 5}, min_tokens=9, stop_token_ids=(2,)
    )
    feature.fill(NewSlot(0, Submit(0, (), heavy), 1, (1, 2)))
    feature.forget(0)
    feature.fill(NewSlot(0, Submit(1, (), SamplingParams(presence_penalty=1)), 1, (6, 7)))
    found = step(feature, torch.zeros(1, VOCAB, dtype=torch.float64), [2])
    assert found is not None
    assert found.tolist() == [[-float(t == 7) for t in range(VOCAB)]]
    feature.forget(0)
    feature.fill(NewSlot(0, Submit(2, (), SamplingParams()), 1))
    assert step(feature, torch.zeros(1, VOCAB), [1]) is None


def oracle(prompt: Sequence[int], params: SamplingParams) -> tuple[int, ...]:
    """The greedy answer of the shadow model to adjusted logits."""
    assert params.max_tokens is not None
    outputs: list[int] = []
    while len(outputs) < params.max_tokens:
        *_, digest = digests([*prompt, *outputs])
        scores = adjusted(shadow_logits(digest, VOCAB), prompt, outputs, params)
        outputs.append(scores.index(max(scores)))
        if outputs[-1] in params.stop_token_ids:
            break
    return tuple(outputs)


WORLDS = {
    "chunks of two": World(limits_of(chunk=2, running=SLOTS), num_pages=64, page_size=1),
    "overlap": World(limits_of(chunk=8, running=SLOTS, lookahead=1), num_pages=64, page_size=2, depth=2),
    "pipeline": World(limits_of(chunk=4, running=SLOTS), num_pages=64, page_size=4, depth=3),
    "preemption": World(limits_of(chunk=8, running=SLOTS), num_pages=14, page_size=2),
    "preemption under overlap": World(
        limits_of(chunk=8, running=SLOTS, lookahead=1), num_pages=18, page_size=2, depth=2
    ),
}


def bench_of(world: World) -> Bench:
    shape = shadow_shape(num_pages=world.num_pages, page_size=world.page_size, num_slots=SLOTS, vocab_size=VOCAB)
    return Bench.of(world, shadow_runner(shape))


@pytest.mark.parametrize("name", [name if name.startswith("p") else slow(name) for name in WORLDS])
@examples(10)
@given(st.lists(st.tuples(st.lists(IDS, min_size=1, max_size=6), SAMPLINGS), min_size=1, max_size=5))
def test_no_schedule_changes_an_answer(name: str, asked: list[tuple[list[int], SamplingParams]]) -> None:
    """Counts that miss what came from the cache, that count a token twice after a preemption, or that come a step late
    under overlap."""
    bench = bench_of(WORLDS[name])
    bench.link.put(*(Submit(i, tuple(prompt), params) for i, (prompt, params) in enumerate(asked)))
    bench.drain(1000)
    for request_id, (prompt, params) in enumerate(asked):
        assert bench.link.tokens(request_id) == oracle(prompt, params)


@pytest.mark.parametrize("name", ["preemption", "preemption under overlap"])
def test_counts_survive_a_preemption(name: str) -> None:
    bench = bench_of(WORLDS[name])
    params = SamplingParams(seed=0, temperature=0.0, max_tokens=20, frequency_penalty=1.5, repetition_penalty=1.3)
    prompts = [(1, 2, 3), (4, 5, 6), (7, 8, 9)]
    bench.link.put(*(Submit(i, prompt, params) for i, prompt in enumerate(prompts)))
    assert until_preemption(bench)
    bench.drain(1000)
    assert [bench.link.tokens(i) for i in range(3)] == [oracle(prompt, params) for prompt in prompts]


@pytest.mark.parametrize(
    "new",
    [
        NewSlot(0, Submit(0, (), SamplingParams(seed=0, logit_bias={VOCAB: 1})), 1),
        NewSlot(0, Submit(0, (), SamplingParams(seed=0, presence_penalty=1)), 1, (VOCAB,)),
        NewSlot(0, Submit(0, (), SamplingParams(seed=0, presence_penalty=1)), 1, (-1,)),
    ],
)
def test_a_plan_outside_the_vocabulary_is_refused(new: NewSlot) -> None:
    runner = shadow_runner(shadow_shape(num_pages=4, page_size=2, vocab_size=VOCAB))
    with pytest.raises(ValueError, match=f"of {VOCAB}"):
        runner.launch(BatchPlan(0, (new,), (Chunk(0, 0, 0, 1, (1,), (0,), True),)))


def test_a_row_without_a_token_counts_none() -> None:
    """A row whose mask is late samples -1 and goes on in a later step: counting it as token 0 would penalize an output
    that never was."""
    counts = TokenCounts(8, CPU)
    rows = torch.tensor([counts.row_for(0), counts.row_for(1)])
    for row in rows.tolist():
        counts.open(row, torch.tensor([1]), torch.tensor([], dtype=torch.int64))
    counts.count(rows, torch.tensor([-1, 3]))
    assert counts.tables.outputs[rows].tolist() == [[0] * 8, [0, 0, 0, 1, 0, 0, 0, 0]]
