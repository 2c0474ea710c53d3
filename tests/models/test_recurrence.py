"""The convolution and the recurrence of layers with a state: values, and bits that no cut, batch or draft changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from sluice.attention.states import StatePool, StateRows, StateSpec, StateStep
from sluice.models.ops import Norm, Ops
from sluice.models.recurrence import ConvWeights, DeltaHeads, DeltaInputs, Mamba2Heads, Mamba2Inputs, Tokens
from tests.state_checks import check_batch, check_cuts, check_drafts, check_records, check_values, whole
from tests.state_lives import Inputs, Slots, state_spec, token_by_token

OPS = Ops()
KINDS = pytest.mark.parametrize("is_delta", [True, False], ids=["delta", "mamba2"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)


@KINDS
@DTYPES
@pytest.mark.parametrize("takes_turns", [False, True])
def test_values_are_those_of_the_recurrence_token_by_token(
    dtype: torch.dtype, takes_turns: bool, is_delta: bool
) -> None:
    check_values(OPS, state_spec(dtype, takes_turns=takes_turns), is_delta=is_delta)


@KINDS
@DTYPES
def test_bits_do_not_depend_on_the_cuts(dtype: torch.dtype, is_delta: bool) -> None:
    check_cuts(OPS, state_spec(dtype), is_delta=is_delta)


@KINDS
def test_tokens_that_are_not_firm_are_computed_again(is_delta: bool) -> None:
    check_drafts(OPS, state_spec(), is_delta=is_delta)


@KINDS
def test_a_record_is_the_state_of_a_fresh_run_of_its_tokens(is_delta: bool) -> None:
    check_records(OPS, state_spec(), is_delta=is_delta)


def test_bits_do_not_depend_on_the_batch() -> None:
    check_batch(OPS, state_spec())


def test_a_convolution_alone_has_no_activation() -> None:
    spec = StateSpec(40, 3, torch.float64)
    slots = Slots.of(OPS, spec, 1)
    inputs = Inputs.random(state_spec(torch.float64, taps=3), 9, 1)
    rows = StateRows.fresh((0,), (9,))
    found = OPS.of_states(spec).causal_conv(
        inputs.x, ConvWeights(slots.weight, None, None), StateStep(slots.state, rows, (9,))
    )
    expected = sum(functional.pad(inputs.x, (0, 0, 2 - i, 0))[:9] * slots.weight[:, i] for i in range(3))
    torch.testing.assert_close(found, expected)


def test_strong_decays_neither_overflow_nor_reach_later_tokens() -> None:
    spec = state_spec()
    inputs = Inputs.random(spec, 130, 10)
    strong = replace(inputs, tokens=inputs.tokens._replace(g=inputs.tokens.g - 50))
    out = whole(OPS, spec, strong)[1]
    expected, _ = token_by_token(strong, spec)
    torch.testing.assert_close(out.double(), expected, rtol=2e-4, atol=2e-4)


def _normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _fresh(spec: StateSpec, count: int) -> StateStep:
    """Return a step of the first tokens of a row."""
    pool = StatePool(spec, 1, 1, 0, 0, torch.device("cpu"))
    pool.open(0, 0, None)
    return StateStep(pool.layers[0], StateRows.fresh((0,), (count,)), (count,))


def test_a_delta_net_scales_q_and_k_and_takes_decays_and_rates_from_its_projections() -> None:
    spec, count = state_spec(torch.float64), 70
    q, k = (_normal(count, 2, 16, seed=seed) for seed in (1, 2))
    v, steps, rates = _normal(count, 4, 24, seed=3), _normal(count, 4, seed=4), _normal(count, 4, seed=5)
    heads = DeltaHeads(-_normal(4, seed=6).exp(), _normal(4, seed=7))
    found = OPS.of_states(spec).delta_net(DeltaInputs(q, k, v, steps, rates), heads, _fresh(spec, count))
    g = heads.decay_rates * torch.log1p((steps + heads.step_bias).exp())
    beta = 1 / (1 + (-rates).exp())
    q, k = (x / (x.norm(dim=-1, keepdim=True).square() + 1e-6).sqrt() for x in (q, k))
    expected, _ = token_by_token(Inputs(q, Tokens(q / 4, k, v, g, beta)), spec)
    torch.testing.assert_close(found, expected)


def test_mamba2_counts_v_times_its_step_and_adds_it() -> None:
    spec, count = state_spec(torch.float64), 70
    q, k = (_normal(count, 2, 16, seed=seed) for seed in (1, 2))
    v, steps = _normal(count, 4, 24, seed=3), _normal(count, 4, seed=4)
    heads = Mamba2Heads(-_normal(4, seed=6).exp(), _normal(4, seed=7), _normal(4, seed=8), (0.5, 1.5))
    found = OPS.of_states(spec).mamba2(Mamba2Inputs(q, k, v, steps), heads, _fresh(spec, count))
    step = torch.log1p((steps + heads.step_bias).exp()).clamp(0.5, 1.5)
    inputs = Inputs(q, Tokens(q, k, v * step[..., None], heads.decay_rates * step, None))
    expected, _ = token_by_token(inputs, spec)
    torch.testing.assert_close(found, expected + v * heads.skip[:, None])


@pytest.mark.parametrize("gates_first", [True, False])
@pytest.mark.parametrize("shape", [(24,), (4, 24)])
def test_a_gated_norm_has_its_gate_before_or_behind_it(shape: tuple[int, ...], gates_first: bool) -> None:
    x, gate, weight = _normal(5, 4, 24, seed=1), _normal(5, 4, 24, seed=2), _normal(*shape, seed=3)
    found = OPS.gated_norm(x, gate, Norm(weight, 1e-5), gates_first=gates_first)
    factor = gate / (1 + (-gate).exp())
    normed = functional.rms_norm(x * factor if gates_first else x, (24,), eps=1e-5) * weight
    torch.testing.assert_close(found, (normed if gates_first else normed * factor).flatten(1))
