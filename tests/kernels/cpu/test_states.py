"""The operations of layers with a state by the compiled kernels, at every level."""

from __future__ import annotations

import pytest
import torch

from compiled import all_kernels, level_name, library
from sluice.attention.states import StatePool, StateRows, StateSpec, StateStep
from sluice.kernels.cpu.library import Kernels
from sluice.models.native_ops import NativeOps
from sluice.models.native_states import has_kernel
from sluice.models.ops import Norm, Ops
from sluice.models.recurrence import DeltaHeads, DeltaInputs, Mamba2Heads, Mamba2Inputs
from tests.state_checks import check_batch, check_cuts, check_drafts, check_records, check_values, whole
from tests.state_lives import Inputs, state_spec

KERNELS = all_kernels()
each_level = pytest.mark.parametrize("kernels", KERNELS, ids=level_name)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
KINDS = pytest.mark.parametrize("is_delta", [True, False], ids=["delta", "mamba2"])


def _spec(dtype: torch.dtype = torch.float32, *, takes_turns: bool = False) -> StateSpec:
    """Return a spec with sizes that no number of vectors divides, and more v heads of a k head than an item has."""
    return StateSpec(40, 4, dtype, 2, 48, 12, 80, takes_turns)


@each_level
@each_dtype
@KINDS
def test_values(kernels: Kernels, dtype: torch.dtype, is_delta: bool) -> None:
    for takes_turns in (False, True):
        check_values(NativeOps(kernels), _spec(dtype, takes_turns=takes_turns), is_delta=is_delta)


@each_level
@KINDS
def test_bits_do_not_depend_on_the_cuts(kernels: Kernels, is_delta: bool) -> None:
    check_cuts(NativeOps(kernels), _spec(torch.bfloat16), is_delta=is_delta)


@each_level
@KINDS
def test_tokens_that_are_not_firm_are_computed_again(kernels: Kernels, is_delta: bool) -> None:
    check_drafts(NativeOps(kernels), _spec(), is_delta=is_delta)


@each_level
@KINDS
def test_a_record_is_the_state_of_a_fresh_run_of_its_tokens(kernels: Kernels, is_delta: bool) -> None:
    check_records(NativeOps(kernels), _spec(), is_delta=is_delta)


@each_level
def test_bits_do_not_depend_on_the_batch(kernels: Kernels) -> None:
    check_batch(NativeOps(kernels), _spec())


@each_level
def test_bits_do_not_depend_on_the_threads(kernels: Kernels) -> None:
    inputs = Inputs.random(_spec(), 200, 1)
    alone = NativeOps(Kernels(library(), kernels.level, 1))
    for one, shared in zip(whole(alone, _spec(), inputs), whole(NativeOps(kernels), _spec(), inputs), strict=True):
        assert torch.equal(one, shared)


def _fresh(spec: StateSpec, count: int) -> StateStep:
    """Return a step of the first tokens of a row."""
    pool = StatePool(spec, 1, 1, 0, 0, torch.device("cpu"))
    pool.open(0, 0, None)
    return StateStep(pool.layers[0], StateRows.fresh((0,), (count,)), (count,))


def _drawn(dtype: torch.dtype, count: int, seed: int, *shape: int) -> torch.Tensor:
    """Return numbers in strided rows, like parts of one product."""
    wide = torch.randn(count, 2, *shape, generator=torch.Generator().manual_seed(seed))
    return wide.to(dtype)[:, 1]


@each_level
@each_dtype
def test_a_delta_net_takes_what_its_projections_give(kernels: Kernels, dtype: torch.dtype) -> None:
    spec, count = _spec(dtype), 100
    given = DeltaInputs(
        _drawn(dtype, count, 1, 2, 48),
        _drawn(dtype, count, 2, 2, 48),
        _drawn(dtype, count, 3, 12, 80),
        _drawn(dtype, count, 4, 12),
        _drawn(dtype, count, 5, 12),
    )
    heads = DeltaHeads(-torch.rand(12), torch.randn(12))
    expected, found = (
        ops.of_states(spec).delta_net(given, heads, _fresh(spec, count)) for ops in (Ops(), NativeOps(kernels))
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@each_level
@each_dtype
def test_mamba2_takes_what_its_projection_gives(kernels: Kernels, dtype: torch.dtype) -> None:
    spec, count = _spec(dtype), 100
    q, k = (_drawn(dtype, count, seed, 2, 48) / 7 for seed in (1, 2))
    given = Mamba2Inputs(q, k, _drawn(dtype, count, 3, 12, 80), _drawn(dtype, count, 4, 12))
    heads = Mamba2Heads(-torch.rand(12), torch.randn(12), torch.randn(12), (0.1, 1.0))
    expected, found = (
        ops.of_states(spec).mamba2(given, heads, _fresh(spec, count)) for ops in (Ops(), NativeOps(kernels))
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@each_level
@each_dtype
@pytest.mark.parametrize("gates_first", [True, False])
@pytest.mark.parametrize("shape", [(40,), (3, 40)])
def test_gated_norms(kernels: Kernels, dtype: torch.dtype, shape: tuple[int, ...], gates_first: bool) -> None:
    x, gate = torch.randn(300, 3, 40), _drawn(dtype, 300, 1, 3, 40)
    norm = Norm(torch.randn(shape), 1e-5)
    expected, found = (ops.gated_norm(x, gate, norm, gates_first=gates_first) for ops in (Ops(), NativeOps(kernels)))
    assert found.dtype == dtype
    tolerance = 2**-7 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_sizes_without_a_kernel_are_computed_by_torch() -> None:
    odd, double = state_spec(), state_spec(torch.float64)
    for spec in (odd, double):
        assert not has_kernel(spec)
        check_values(NativeOps(KERNELS[0]), spec, is_delta=True)
