"""The sampler: the right distribution, each row by itself, the same beside any other rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slow import examples
from sluice.runner import sampler
from sluice.runner.noise import noise_key
from sluice.runner.sampler import (
    BLOCK,
    FAILED,
    RowGroup,
    RowKind,
    SamplingRows,
    first_of_largest,
    row_kind,
    sample,
    scores,
)
from sluice.types import SamplingParams


def rows_of(
    rows_params: Sequence[tuple[SamplingParams, int]], vocab: int, sample_index: int = 0
) -> tuple[SamplingRows, list[RowGroup]]:
    """What the sampler takes, for rows given as (parameters with a seed, position)."""
    kinds = [row_kind(params, vocab) for params, _ in rows_params]
    noise_keys = [noise_key(params.seed or 0, sample_index) for params, _ in rows_params]
    rows = SamplingRows(
        temperature=torch.tensor([params.temperature for params, _ in rows_params], dtype=torch.float64),
        min_p=torch.tensor([params.min_p for params, _ in rows_params], dtype=torch.float64),
        top_k=torch.tensor([params.top_k if params.top_k > 0 else vocab for params, _ in rows_params]),
        top_p=torch.tensor([params.top_p for params, _ in rows_params], dtype=torch.float64),
        noise_keys=torch.tensor(noise_keys),
        positions=torch.tensor([position for _, position in rows_params]),
    )
    groups = [
        RowGroup(kind, torch.tensor([i for i, other in enumerate(kinds) if other is kind])) for kind in set(kinds)
    ]
    return rows, groups


def draw(logits: torch.Tensor, *rows_params: tuple[SamplingParams, int]) -> list[int]:
    return sample(logits, *rows_of(rows_params, logits.shape[1])).tolist()


def draws(logits: Sequence[float], params: SamplingParams, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Tokens of one distribution at many positions."""
    row = torch.tensor(logits, dtype=dtype)
    rows, groups = rows_of([(params, position) for position in range(count)], len(logits))
    return sample(row.expand(count, -1), rows, groups)


def filtered(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """The distribution to expect, one obvious step after another."""
    largest = max(logits)
    weights = {i: math.exp((x - largest) / params.temperature) for i, x in enumerate(logits)}
    weights = {i: w for i, w in weights.items() if w >= params.min_p}
    order = sorted(weights, key=lambda i: (-logits[i], i))
    if params.top_k > 0:
        order = order[: params.top_k]
    total = sum(weights[i] for i in order)
    kept: list[int] = []
    for i in order:
        if kept and sum(weights[j] for j in kept) / total >= params.top_p:
            break
        kept.append(i)
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(logits))]


LOGITS = [0.3, -1.2, 2.1, 0.0, 1.4, -3.0, 0.9, 0.9, -0.4, 1.1]
SAMPLINGS = {
    "plain": SamplingParams(seed=1),
    "hot": SamplingParams(seed=1, temperature=3.0),
    "cold": SamplingParams(seed=1, temperature=0.4),
    "top_k": SamplingParams(seed=1, top_k=4),
    "top_p": SamplingParams(seed=1, top_p=0.7),
    "min_p": SamplingParams(seed=1, min_p=0.3),
    "top_k and top_p": SamplingParams(seed=1, temperature=1.5, top_k=6, top_p=0.8),
    "all": SamplingParams(seed=1, temperature=2.0, top_k=7, top_p=0.8, min_p=0.4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_tokens_have_the_right_distribution(name: str, dtype: torch.dtype) -> None:
    count = 20_000
    expected = torch.tensor(filtered(LOGITS, SAMPLINGS[name]), dtype=torch.float64) * count
    seen = torch.bincount(draws(LOGITS, SAMPLINGS[name], count, dtype), minlength=len(LOGITS)).double()
    assert seen[expected == 0].sum() == 0
    freedom = int((expected > 0).sum()) - 1
    statistic = float(((seen - expected) ** 2 / expected)[expected > 0].sum())
    assert statistic < freedom + 4.5 * math.sqrt(2 * freedom)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, -1, 1, 2, 5, 40, 2000]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 1e-9]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(-3, 3),
)


@examples(60)
@given(st.lists(st.tuples(PARAMS, st.integers(0, 50)), min_size=1, max_size=9), st.integers(0, 1000), st.data())
def test_company_changes_nothing(rows_params: list[tuple[SamplingParams, int]], seed: int, data: st.DataObject) -> None:
    """A row gets the same token alone, in a batch, and in any order: keeps out state shared between rows."""
    logits = torch.randn(len(rows_params), 50, generator=torch.Generator().manual_seed(seed))
    together = draw(logits, *rows_params)
    assert together == [draw(logits[i : i + 1], row_params)[0] for i, row_params in enumerate(rows_params)]
    order = data.draw(st.permutations(range(len(rows_params))))
    assert [together[i] for i in order] == draw(logits[order], *(rows_params[i] for i in order))


def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    rows_params = [(SAMPLINGS[name], position) for position, name in enumerate([*SAMPLINGS] * 5)]
    whole = draw(logits, *rows_params)
    monkeypatch.setitem(sampler.SLICE_ELEMENTS, "cpu", 3 * 64)
    assert draw(logits, *rows_params) == whole


def test_seeds_positions_and_samples_give_different_noise() -> None:
    flat = torch.zeros(1, 5000)
    seeds = [0, 1, -1, (1 << 64) - 1, -(1 << 63)]
    drawn = {
        (seed, index, position): sample(
            flat, *rows_of([(SamplingParams(seed=seed), position)], 5000, sample_index=index)
        ).item()
        for seed in seeds
        for index in (0, 1)
        for position in (0, 1, 100_000)
    }
    assert len(set(drawn.values())) > len(drawn) - 3


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(seed=3, temperature=1e-6),
        SamplingParams(seed=3, temperature=5e-324),
        SamplingParams(seed=3, top_k=1),
        SamplingParams(seed=3, top_p=1e-9),
        SamplingParams(seed=3, temperature=1e300, top_k=1),
    ],
    ids=["zero", "tiny", "smallest", "top_k=1", "tiny top_p", "hot top_k=1"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_greedy_in_its_several_spellings(params: SamplingParams, dtype: torch.dtype) -> None:
    logits = torch.randn(20, 300, generator=torch.Generator().manual_seed(1)).mul(5).to(dtype)
    best = [max(range(300), key=lambda i, row=row: (row[i], -i)) for row in logits.tolist()]
    if params.temperature in (1e-6, 5e-324) and dtype == torch.bfloat16:
        ties = (logits == logits.amax(-1, keepdim=True)).sum(-1) > 1
        logits[ties, torch.tensor(best)[ties]] += 1
    assert draw(logits, *((params, position) for position in range(20))) == best


@pytest.mark.parametrize("width", [16, 4096])
def test_ties_at_the_border_go_to_the_lowest_ids(width: int) -> None:
    """Keeps out more than k survivors when values repeat, as they do in bfloat16."""
    count = 400
    logits = torch.zeros(count, width)
    for params, survivors in (
        (SamplingParams(seed=2, top_k=3), 3),
        (SamplingParams(seed=2, top_p=0.5), width // 2),
        (SamplingParams(seed=2, top_k=4, top_p=0.5), 2),
    ):
        drawn = draw(logits, *((params, position) for position in range(count)))
        assert max(drawn) < survivors
        assert len(set(drawn)) > min(survivors, count) / 2


@pytest.mark.parametrize("params", [SAMPLINGS[name] for name in SAMPLINGS], ids=[*SAMPLINGS])
@pytest.mark.parametrize("scale", [1e4, 1e30, 3e38])
def test_huge_logits(params: SamplingParams, scale: float) -> None:
    """Overflow must not make NaN: the largest wins, at any temperature."""
    logits = torch.tensor([[-1.0, 0.5, 1.0, -0.9]]) * scale
    assert draw(logits, (params, 0)) == [2]


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), *SAMPLINGS.values()], ids=["greedy", *SAMPLINGS])
def test_minus_infinity_is_never_sampled(params: SamplingParams) -> None:
    logits = torch.full((200, 30), -torch.inf)
    logits[:, [4, 11]] = torch.tensor([0.1, 0.0])
    assert set(draw(logits, *((params, position) for position in range(200)))) <= {4, 11}


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), *SAMPLINGS.values()], ids=["greedy", *SAMPLINGS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_without_a_usable_maximum_fails_alone(params: SamplingParams, dtype: torch.dtype) -> None:
    """One request's NaN must not end the step, nor change its neighbours."""
    logits = torch.randn(5, 70, dtype=dtype, generator=torch.Generator().manual_seed(2))
    rows_params = [(params, position) for position in range(5)]
    healthy = draw(logits, *rows_params)
    logits[1, 69] = torch.nan
    logits[2, 0] = torch.inf
    logits[3] = -torch.inf
    assert draw(logits, *rows_params) == [healthy[0], FAILED, FAILED, FAILED, healthy[4]]


def test_scores_explain_the_token() -> None:
    """`scores` is what a tie is judged by: its argmax is the token, and greedy scores are the logits."""
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(3))
    for params in (SamplingParams(temperature=0.0), *SAMPLINGS.values()):
        rows_params = [(params, position) for position in range(6)]
        rows, (group,) = rows_of(rows_params, 40)
        values = scores(logits, rows, group.kind)
        assert values.argmax(-1).tolist() == draw(logits, *rows_params)
        if group.kind is RowKind.GREEDY:
            assert values.equal(logits)
        elif group.kind is RowKind.PLAIN and params.min_p == 0:
            noise = values - logits / params.temperature
            again = scores(torch.zeros(6, 40), rows, group.kind)
            torch.testing.assert_close(
                noise - noise.mean(-1, keepdim=True), again - again.mean(-1, keepdim=True), atol=1e-4, rtol=0
            )


def test_top_p_of_one_filters_nothing() -> None:
    """Keeps out losing the tail where the shares before it round to 1."""
    logits = torch.tensor([[0.0, -30.0, -40.0, -50.0]])
    rows, (group,) = rows_of([(SamplingParams(seed=1, top_k=3), 0)], 4)
    assert scores(logits, rows, group.kind).isfinite().tolist() == [[True, True, True, False]]


def test_unneeded_work_is_not_done() -> None:
    """A parameter at its neutral value must not cost a sort."""
    assert row_kind(SamplingParams(temperature=0.0, top_k=5, top_p=0.5), 100) is RowKind.GREEDY
    assert row_kind(SamplingParams(top_k=100, min_p=0.2), 100) is RowKind.PLAIN
    assert row_kind(SamplingParams(top_k=-1), 100) is RowKind.PLAIN
    assert row_kind(SamplingParams(top_k=99, top_p=0.9), 100) is RowKind.SHORT
    assert row_kind(SamplingParams(top_p=0.9), 100) is RowKind.FULL
    assert row_kind(SamplingParams(top_k=1025), 100_000) is RowKind.FULL


@pytest.mark.parametrize("width", [5, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 4 * BLOCK])
def test_the_first_of_the_largest(width: int) -> None:
    """A largest value in the last block that is not whole, or the second of two equal ones."""
    generator = torch.Generator().manual_seed(width)
    values = torch.randint(0, 3, (64, width), generator=generator).float()
    values[:8] = -torch.inf
    for row, place in enumerate((0, width // 2, width - 1)):
        values[row, place] = 0.0
    values[3, [width - 1, width // 2]] = 7.0
    assert first_of_largest(values).tolist() == [row.index(max(row)) for row in values.tolist()]
