"""What experts cost that a step reads: few in a step of few tokens, and all in one of many."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.scheduler.batch import BatchBuilder, load_of_layers
from sluice.scheduler.cost import CostPrior, StepCost, StepLoad
from sluice.scheduler.within import tokens_within
from sluice.sim.hardware import predicted_machine
from sluice.sim.world import StepWork
from sluice.types import Chunk, ExpertCounts, Regime

EXPERTS = ExpertCounts(64, 8)
CHUNK = Chunk(0, 0, 0, 100, (1,) * 100, (), samples=True)
STEP, TOKEN, EXPERT = 4000.0, 60.0, 400.0
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@given(st.integers(1, 512), st.integers(0, 5000), st.data())
def test_so_many_experts_are_expected(held: int, tokens: int, data: st.DataObject) -> None:
    chosen = data.draw(st.integers(1, held))
    counts = ExpertCounts(held, chosen)
    expected = held * (1 - (1 - chosen / held) ** tokens)
    assert counts.read(tokens) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert counts.read(tokens) <= counts.read(tokens + 1) <= held
    assert counts.read(1) == pytest.approx(chosen)


def test_a_model_without_experts_reads_none() -> None:
    assert ExpertCounts().read(100) == 0
    assert StepLoad().with_chunk(0, 100).experts == 0


def machine_time(tokens: int) -> float:
    return STEP + TOKEN * tokens + EXPERT * EXPERTS.read(tokens)


def mean_error(experts: ExpertCounts) -> float:
    """Return how far predictions of decodes are off, on average, after each number of rows was seen a few times."""
    cost, draw = StepCost(CostPrior(step=2000.0, token=100.0)), random.Random(0)
    for _ in range(150):
        rows = draw.choice(ROWS)
        cost.observe(Regime.DECODE, StepLoad(rows, rows, 100 * rows, experts=experts.read(rows)), machine_time(rows))
    errors = []
    for rows in range(1, 257):
        load = StepLoad(rows, rows, 100 * rows, experts=experts.read(rows))
        errors.append(abs(cost.predict(Regime.DECODE, load) / machine_time(rows) - 1))
    return sum(errors) / len(errors)


def test_steps_of_1_to_256_rows_are_predicted() -> None:
    """Without the experts, no cost of a step and of a token fits both 1 row and 64."""
    assert mean_error(EXPERTS) < 0.02
    assert mean_error(ExpertCounts()) > 0.1


@given(st.floats(1, 1e3), st.floats(0, 1), st.floats(0, 1e4), st.integers(0, 5000), st.integers(0, 100))
def test_as_many_tokens_fit_as_their_experts_leave_time_for(
    token: float, pair: float, expert: float, start: int, beside: int
) -> None:
    costs = (0.0, token, 0.0, 0.0, pair, 0.0, expert)

    def time(tokens: int) -> float:
        read = EXPERTS.read(beside + tokens) - EXPERTS.read(beside)
        return token * tokens + pair * (tokens * start + tokens * (tokens + 1) / 2) + expert * read

    for micros in (10.0, 1e4, 1e6):
        found = tokens_within(costs, micros, start, EXPERTS, beside)
        assert not found or time(found) <= micros * (1 + 1e-6)
        assert time(found + 1) >= micros * (1 - 1e-6)


def test_a_plan_counts_its_experts() -> None:
    """Rows of a step share what they read; layers of a chunk read their experts apart, in proportion."""
    batch = BatchBuilder(EXPERTS)
    assert batch.load.experts == batch.decodes.experts == 0
    one = load_of_layers(CHUNK, 1 / 24, EXPERTS)
    assert 24 * one.experts == pytest.approx(EXPERTS.read(100))
    two = one.plus(load_of_layers(CHUNK, 1 / 24, EXPERTS))
    assert two.experts == 2 * one.experts
    loads = [StepLoad().with_chunk(0, length, EXPERTS) for length in (1, 8, 64, 512)]
    assert [load.experts for load in loads] == [EXPERTS.read(length) for length in (1, 8, 64, 512)]
    assert all(one.experts < other.experts for one, other in pairwise(loads))


def test_a_machine_that_one_does_not_have_reads_the_experts_of_its_tokens(tmp_path: Path) -> None:
    """One row of a model of 30B with 3B active reads a tenth of what a full batch does."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151_936,
        "max_position_embeddings": 40_960,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    machine = predicted_machine("1e18,1e12,200e9", path)  # nothing but reading takes time
    experts = machine.setup.limits.experts
    assert experts == (128, 8)
    times = [
        machine.world.modelled(StepWork(Regime.DECODE, StepLoad(rows, rows, 0, experts=experts.read(rows)))) - 0.002
        for rows in (1, 8, 1000)
    ]
    read = [0.8e12 * seconds / 2 for seconds in times]
    assert read == [pytest.approx(each, rel=0.03) for each in (3.0e9, 13.2e9, 30.2e9)]
