"""Sampling by thresholds against sampling by sorting: the same token in every row."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
import triton
import triton.language as tl

from slow import slow
from sluice.kernels.triton.sampling import gumbel, row_key
from sluice.runner import sampler, triton_logit_ops
from sluice.runner.noise import gumbel as torch_gumbel
from sluice.runner.noise import noise_key
from sluice.runner.sampler import FAILED, RowGroup, SamplingRows, row_kind
from sluice.runner.triton_logit_ops import TritonLogitOps
from sluice.types import SamplingParams
from triton_device import each_device, quiet

pytestmark = quiet
TRITON = TritonLogitOps()
GREEDY = SamplingParams(temperature=0.0, seed=1)
RowParams = tuple[SamplingParams, int]


def rows_of(rows_params: Sequence[RowParams], vocab: int, device: torch.device) -> tuple[SamplingRows, list[RowGroup]]:
    """Return the samplers' arguments for rows given as (parameters with a seed, position)."""
    kinds = [row_kind(params, vocab) for params, _ in rows_params]
    columns = (
        torch.tensor([params.temperature for params, _ in rows_params], dtype=torch.float64),
        torch.tensor([params.min_p for params, _ in rows_params], dtype=torch.float64),
        torch.tensor([params.top_k if params.top_k > 0 else vocab for params, _ in rows_params]),
        torch.tensor([params.top_p for params, _ in rows_params], dtype=torch.float64),
        torch.tensor([noise_key(params.seed or 0, 0) for params, _ in rows_params]),
        torch.tensor([position for _, position in rows_params]),
    )
    groups = [
        RowGroup(kind, torch.tensor([i for i, other in enumerate(kinds) if other is kind], device=device))
        for kind in sorted(set(kinds), key=kinds.index)
    ]
    return SamplingRows(*(column.to(device) for column in columns)), groups


Sampler = Callable[[torch.Tensor, SamplingRows, Sequence[RowGroup]], torch.Tensor]


def draw(sample: Sampler, logits: torch.Tensor, rows_params: Sequence[RowParams]) -> list[int]:
    return sample(logits, *rows_of(rows_params, logits.shape[1], logits.device)).tolist()


def assert_same(logits: torch.Tensor, rows_params: Sequence[RowParams]) -> list[int]:
    """Check that both give the same tokens, or two with nearly equal scores, and return those of the kernels."""
    found, expected = (draw(sample, logits, rows_params) for sample in (TRITON.sample, sampler.sample))
    rows, groups = rows_of(rows_params, logits.shape[1], logits.device)
    for group in groups:
        for row in group.rows.tolist():
            if found[row] != expected[row]:
                only = torch.tensor([row], device=logits.device)
                (scores,) = sampler.scores(logits[only], rows.select(only), group.kind)
                assert FAILED not in (found[row], expected[row]), rows_params[row]
                assert scores[expected[row]] - scores[found[row]] <= 1e-4, rows_params[row]
    assert sum(a != b for a, b in zip(found, expected, strict=True)) <= len(found) / 100
    return found


@triton.jit
def _draw_noise(stream, positions_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    ids = tl.arange(0, BLOCK)
    noise = gumbel(row_key(stream, tl.load(positions_ptr + row)), ids)
    tl.store(out_ptr + row * width + ids, noise, mask=ids < width)


@each_device
def test_the_same_noise(device: torch.device) -> None:
    """Distant keys, and 100,000 draws, which include some of the rare large ones that decide."""
    width, positions = 25_000, torch.tensor([0, 1, 77, 1 << 40], device=device)
    for seed in (0, -1, (1 << 64) - 1):
        stream = noise_key(seed, 3)
        found = torch.empty(len(positions), width, device=device)
        _draw_noise[(len(positions),)](stream, positions, found, width, BLOCK=32768)
        noise_keys = torch.full_like(positions, stream)
        expected = torch_gumbel(noise_keys, positions, width, torch.float32)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def params_of(chooser: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=chooser.choice([0.0, 0.3, 1.0, 1.0, 2.0, 1e-30, 5e-324, 1e30]),
        top_k=chooser.choice([0, 0, 1, 2, 5, 40, 1500]),
        top_p=chooser.choice([1.0, 1.0, 0.95, 0.5, 0.01, 1e-9]),
        min_p=chooser.choice([0.0, 0.0, 0.05, 1.0]),
        seed=chooser.randrange(-5, 5),
    )


@each_device
@pytest.mark.parametrize(
    ("vocab", "dtype"),
    [
        (1, torch.float32),
        slow(7, torch.float16),
        (1000, torch.bfloat16),
        slow(9000, torch.float32),
        (9000, torch.bfloat16),
    ],
)
def test_random_rows(vocab: int, dtype: torch.dtype, device: torch.device) -> None:
    """All filters in one batch; many equal logits, in bfloat16; vocabularies of less, exactly and more than a block."""
    chooser = random.Random(vocab)
    count = 100 if device.type == "cuda" else 10
    spreads = torch.tensor([1.0, 6.0]).repeat(count // 2)[:, None]
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(vocab)) * spreads
    rows_params = [(params_of(chooser), chooser.randrange(1000)) for _ in range(count)]
    assert_same(logits.to(device, dtype), rows_params)


@each_device
def test_rows_of_a_wider_tensor(device: torch.device) -> None:
    """The logits of a padded vocabulary are part of a wider product."""
    logits = torch.randn(5, 700, generator=torch.Generator().manual_seed(1)).to(device)[:, :650]
    logits[:, 640:] += 5
    assert_same(logits, [(SamplingParams(seed=1, top_k=9), position) for position in range(5)])


@each_device
@pytest.mark.parametrize("width", [16, slow(4096 + 16)])
def test_ties_at_the_border_go_to_the_lowest_ids(width: int, device: torch.device) -> None:
    """A threshold alone would keep all equal tokens."""
    count = 10
    logits = torch.zeros(count, width, device=device)
    for params, survivors in (
        (SamplingParams(seed=2, top_k=3), 3),
        (SamplingParams(seed=2, top_p=0.5), width // 2),
        (SamplingParams(seed=2, top_k=4, top_p=0.5), 2),
    ):
        drawn = draw(TRITON.sample, logits, [(params, position) for position in range(count)])
        assert max(drawn) < survivors
        assert len(set(drawn)) > min(survivors, count) / 2
    assert draw(TRITON.sample, logits, [(GREEDY, 0)] * count) == [0] * count


@each_device
def test_the_kth_token_is_kept_for_any_key(device: torch.device) -> None:
    """Many values of k for a row with logits of every order of magnitude, some of them equal."""
    logits = -torch.cat(
        (torch.zeros(2), torch.logspace(-44, 38, 60), torch.full((3,), 2.5), torch.full((2,), torch.inf))
    )
    logits = logits[torch.randperm(len(logits), generator=torch.Generator().manual_seed(3))]
    every = 1 if device.type == "cuda" else 12
    rows_params = [(SamplingParams(seed=1, temperature=1e6, top_k=k), k) for k in range(1, len(logits), every)]
    assert_same(logits.expand(len(rows_params), -1).to(device), rows_params)
    shares = [i / 40 for i in range(1, 40, every)]
    for k in (0, 20):
        rows_params = [(SamplingParams(seed=1, temperature=1.5, top_p=share, top_k=k), 0) for share in shares]
        assert_same(logits.expand(len(rows_params), -1).to(device), rows_params)


@each_device
def test_a_row_does_not_depend_on_other_rows(device: torch.device) -> None:
    """A row gets the same token alone and in a batch."""
    chooser, vocab = random.Random(0), 5000
    logits = torch.randn(7, vocab, generator=torch.Generator().manual_seed(4)).to(device)
    rows_params = [(params_of(chooser), chooser.randrange(50)) for _ in range(7)]
    together = draw(TRITON.sample, logits, rows_params)
    alone = [draw(TRITON.sample, logits[i : i + 1], rows_params[i : i + 1])[0] for i in range(7)]
    assert together == alone


FILTERS = {
    "greedy": GREEDY,
    "plain": SamplingParams(seed=1),
    "min_p": SamplingParams(seed=1, min_p=0.3),
    "top_k": SamplingParams(seed=1, top_k=4),
    "top_p": SamplingParams(seed=1, top_p=0.7),
    "all": SamplingParams(seed=1, temperature=2.0, top_k=7, top_p=0.8, min_p=0.4),
}


@each_device
@pytest.mark.parametrize("name", [name if name in ("greedy", "all") else slow(name) for name in FILTERS])
def test_a_row_without_a_usable_maximum_fails_alone(name: str, device: torch.device) -> None:
    """A NaN in the last block, and a row of -inf, fail; a row with two finite logits samples those."""
    logits = torch.randn(6, 4200, generator=torch.Generator().manual_seed(2)).to(device)
    rows_params = [(FILTERS[name], position) for position in range(6)]
    healthy = draw(TRITON.sample, logits, rows_params)
    logits[1, 4199] = torch.nan
    logits[2, 0] = torch.inf
    logits[3] = -torch.inf
    logits[4] = -torch.inf
    logits[4, [4, 4100]] = torch.tensor([0.1, 0.0], device=device)
    found = assert_same(logits, rows_params)
    assert found[:4] + found[5:] == [healthy[0], FAILED, FAILED, FAILED, healthy[5]]
    assert found[4] in (4, 4100)


@each_device
@pytest.mark.parametrize("params", FILTERS.values(), ids=[*FILTERS])
def test_huge_logits(params: SamplingParams, device: torch.device) -> None:
    """An overflow gives no NaN: the largest logit wins at any temperature."""
    for scale in (1e4, 1e30, 3e38):
        logits = torch.tensor([[-1.0, 0.5, 1.0, -0.9]], device=device) * scale
        assert draw(TRITON.sample, logits, [(params, 0)]) == [2]


@each_device
def test_few_rows_ranked_at_once(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the keys of a few rows at a time, each part writes to its own rows."""
    monkeypatch.setattr(triton_logit_ops, "SLICE_ELEMENTS", {device.type: 1200})
    logits = torch.randn(7, 500, generator=torch.Generator().manual_seed(5)).to(device)
    rows_params = [(SamplingParams(seed=i, top_k=5) if i % 3 else GREEDY, i) for i in range(7)]
    assert_same(logits, rows_params)


@each_device
def test_float64_and_no_rows(device: torch.device) -> None:
    rows_params = [(SamplingParams(seed=i, top_p=0.8), i) for i in range(4)]
    logits = torch.randn(4, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(6)).to(device)
    assert draw(TRITON.sample, logits, rows_params) == draw(sampler.sample, logits, rows_params)
    rows, _ = rows_of([], 50, device)
    no_rows = SamplingRows(*(column[:0] for column in rows))
    assert TRITON.sample(logits[:0].float(), no_rows, []).tolist() == []
