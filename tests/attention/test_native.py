"""Attention by the compiled kernels, at every level that this machine can run."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from compiled import TILES, level_name, library
from native_cases import (
    FASTEST,
    KERNELS,
    MIXED,
    Case,
    attend,
    exact,
    make_case,
    ragged,
    root_mean_square,
    row_of,
)
from paged import forward_batch
from slow import slow
from sluice.attention.base import LayerKV
from sluice.attention.native import NativeAttention
from sluice.attention.packed import PackedKV
from sluice.attention.reference import ReferenceAttention
from sluice.attention.spec import KVShape
from sluice.kernels.cpu.library import Kernels

each_level = pytest.mark.parametrize("kernels", KERNELS, ids=level_name)
HEAD_DIMS = (64, 80, 96, 128, 256)
GROUPS = (1, 2, 4, 8)
MOST = 2.0
"""Times the error of torch's own attention."""


def by_torch(
    case: Case, *, causal: bool = True, window: int | None = None, block_size: int | None = None
) -> torch.Tensor:
    """Torch's attention in the dtype of the inputs, row by row."""
    outs = []
    for q, k, v in zip(case.q.split(case.batch.q_lens), case.k, case.v, strict=True):
        at = torch.arange(len(q))[:, None] + len(k) - len(q)
        keys = torch.arange(len(k))
        size = block_size or 1
        seen = (keys // size <= at // size) | (not causal)
        if window is not None:
            seen &= keys > at - window
        sees = seen.any(1)
        out = torch.zeros_like(q)
        if sees.any():
            heads_first = (part.transpose(0, 1)[None] for part in (q[sees], k, v))
            made = functional.scaled_dot_product_attention(*heads_first, attn_mask=seen[sees], enable_gqa=True)
            out[sees] = made[0].transpose(0, 1)
        outs.append(out)
    return torch.cat(outs)


@pytest.mark.parametrize("part", [0, 1, *map(slow, range(2, 10))])
def test_errs_at_most_twice_as_much_as_torch(part: int) -> None:
    """Five hundred random batches: a page boundary, a group, a mask, a tail that is off by one."""
    draw = random.Random(part)
    for number in range(50):
        case = make_case(
            1000 * part + number,
            ragged(draw),
            group=draw.choice(GROUPS),
            kv_heads=draw.choice((1, 2, 3)),
            head_dim=draw.choice(HEAD_DIMS),
            page_size=draw.choice((16, 32, 64)),
        )
        mask: dict[str, Any] = {
            "causal": draw.random() < 0.8,
            "window": draw.choice((None, None, 1, 17, 100)),
        }
        if draw.random() < 0.2:
            mask = {"block_size": draw.choice((1, 2, 4, 8, 16, 32, 5))}
        # Torch caps no scores; what rounding costs is the same with a cap as without.
        softcap = draw.choice((None, None, 1.5))
        expected, expected_lse = exact(case, **mask, softcap=softcap)
        of_torch = by_torch(case, **mask).double() - exact(case, **mask)[0]
        allowed = MOST * root_mean_square(of_torch) + 1e-6
        for kernels in KERNELS:
            out, lse = attend(case, kernels, **mask, softcap=softcap)
            error = out.double() - expected
            about = f"{level_name(kernels)}, {number}: {mask} {softcap} {case.batch.q_lens} {case.batch.kv_lens_host}"
            assert root_mean_square(error) <= allowed, about
            assert torch.allclose(lse.double(), expected_lse, rtol=1e-5, atol=1e-5), about


@each_level
@pytest.mark.parametrize("rule", [{}, {"window": 40}, {"softcap": 2.0}, {"causal": False}, {"block_size": 8}], ids=str)
def test_float32_is_float32(kernels: Kernels, rule: dict[str, Any]) -> None:
    """Keys or weights rounded to bfloat16 on the way would be a thousand times further off."""
    for head_dim, group, page_size in ((64, 1, 16), (80, 4, 32), (256, 8, 64)):
        lengths = [(1, 0), (1, 1), (1, 700), (3, 2), (9, 530), (40, 40)]
        case = make_case(7, lengths, head_dim=head_dim, group=group, page_size=page_size, dtype=torch.float32)
        out, lse = attend(case, kernels, **rule)
        expected, expected_lse = exact(case, **rule)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=3e-6)
        torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=3e-6)


@each_level
def test_scales_of_keys_and_values(kernels: Kernels) -> None:
    case = make_case(3, [(1, 40), (5, 90)], dtype=torch.float32)
    out, lse = attend(case, kernels, k_scale=0.5, v_scale=3.0)
    expected, expected_lse = exact(case, k_scale=0.5, v_scale=3.0)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=3e-6)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=3e-6)


@each_level
def test_a_query_that_sees_nothing(kernels: Kernels) -> None:
    """Zeros and -inf, not NaN, for any content of the pages."""
    case = make_case(4, [(1, 0), (4, 2), (3, 0)])
    out, lse = attend(case, kernels)
    sees = torch.tensor([False, False, False, True, True, False, False, False])
    assert torch.equal(torch.isneginf(lse).all(1), ~sees)
    assert torch.equal(out[~sees], torch.zeros_like(out[~sees]))
    assert out[sees].isfinite().all()


@each_level
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_row_does_not_depend_on_its_company(kernels: Kernels, dtype: torch.dtype) -> None:
    """To the last bit: else a request's tokens change with the load of the server."""
    case = make_case(5, MIXED, group=4, kv_heads=1, dtype=dtype)
    out, lse = attend(case, kernels)
    parts, lse_parts = out.split(case.batch.q_lens), lse.split(case.batch.q_lens)
    for row in range(len(MIXED)):
        alone, alone_lse = attend(case.rows(row), kernels)
        assert torch.equal(alone, parts[row]), MIXED[row]
        assert torch.equal(alone_lse, lse_parts[row]), MIXED[row]


@each_level
def test_threads_change_nothing(kernels: Kernels) -> None:
    """To the last bit: splits cut by the number of threads would sum in another order on another machine."""
    case = make_case(6, MIXED, group=4, kv_heads=2)
    out, _ = attend(case, kernels)
    for threads in (1, 3, 8):
        other, _ = attend(case, Kernels(library(), kernels.level, threads))
        assert torch.equal(other, out), threads


@each_level
@pytest.mark.parametrize("window", [None, 300])
def test_chunks_change_nothing(kernels: Kernels, window: int | None) -> None:
    """A prompt at once, in uneven chunks, and its tokens one by one: to the last bit.

    Tiles sum in another order than lanes, and serve when there are rows enough, so there it is nearly the same.
    """
    length = 700
    whole = make_case(8, [(length, length)], group=2, kv_heads=1)
    out, _ = attend(whole, kernels, window=window)
    kv = whole.packed(kernels)
    for start, end in ((0, 1), (1, 100), (100, 513), (513, 514), (600, 650), (699, 700)):
        batch = forward_batch([row_of(end - start, end, whole.pages[0])], whole.page_size)
        part, _ = NativeAttention(kernels).attend(whole.q[start:end], kv, batch, whole.spec(window=window))
        if kernels.level in TILES:
            torch.testing.assert_close(part, out[start:end], rtol=2e-2, atol=4e-3)
        else:
            assert torch.equal(part, out[start:end]), (start, end)


@each_level
@pytest.mark.parametrize("block_size", [4, 32])
def test_chunks_of_whole_blocks_change_nothing(kernels: Kernels, block_size: int) -> None:
    """A query that saw its chunk's end, or its own position, in place of its block's end."""
    length = 608
    whole = make_case(8, [(length, length)], group=2, kv_heads=1)
    out, _ = attend(whole, kernels, block_size=block_size)
    kv = whole.packed(kernels)
    for start, end in ((0, 32), (32, 96), (96, 512), (512, 576), (576, 608)):
        batch = forward_batch([row_of(end - start, end, whole.pages[0])], whole.page_size)
        spec = whole.spec(block_size=block_size)
        part, _ = NativeAttention(kernels, max_scores=4 * 608 * 50).attend(whole.q[start:end], kv, batch, spec)
        if kernels.level in TILES:
            torch.testing.assert_close(part, out[start:end], rtol=2e-2, atol=4e-3)
        else:
            assert torch.equal(part, out[start:end]), (start, end)


@each_level
@pytest.mark.parametrize("window", [None, 50])
def test_a_long_layer_ticks_for_every_part_and_computes_the_same(kernels: Kernels, window: int | None) -> None:
    """A layer over a long context takes longer than an engine may be silent; cut, it still sees what it saw."""
    case = make_case(9, [(1, 40), (1, 300), (70, 70), (5, 200), (130, 400)], group=2, kv_heads=2)
    out, lse = attend(case, kernels, window=window)
    ticks: list[int] = []
    bounded = NativeAttention(kernels, lambda: ticks.append(1), max_scores=4 * 400 * 50)
    cut, cut_lse = bounded.attend(case.q, case.packed(kernels), case.batch, case.spec(window=window), need_lse=True)
    assert cut_lse is not None
    assert len(ticks) == 1 + 1 + 1 + 3
    rtol, atol = (2e-2, 4e-3) if kernels.level in TILES else (0.0, 0.0)
    torch.testing.assert_close(cut, out, rtol=rtol, atol=atol)
    torch.testing.assert_close(cut_lse, lse, rtol=rtol, atol=atol)


@each_level
def test_nan_stays_with_its_request(kernels: Kernels) -> None:
    """A model that overflows makes NaN: its request fails, as its logits show, and its neighbours go on."""
    case = make_case(9, [(1, 300), (1, 300), (6, 40), (6, 40)])
    for row in (1, 3):
        case.k[row][7, 0, 3] = torch.nan
    out, _ = attend(case, kernels)
    parts = out.split(case.batch.q_lens)
    assert all(parts[row].isfinite().all() for row in (0, 2))
    assert all(parts[row][-1, :2].isnan().all() for row in (1, 3))


@each_level
def test_scores_far_from_zero(kernels: Kernels) -> None:
    """Powers of scores of hundreds overflow: only their distance from the largest may be raised."""
    case = make_case(10, [(1, 600), (20, 300)], dtype=torch.float32)
    case = replace(case, q=case.q * 200)
    out, lse = attend(case, kernels)
    expected, expected_lse = exact(case)
    torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-3)


@each_level
def test_queries_that_are_a_part_of_a_fused_product(kernels: Kernels) -> None:
    """q is a view with k and v between its rows."""
    case = make_case(11, [(1, 50), (7, 60)])
    fused = torch.full((8, 8, 64), torch.nan, dtype=torch.bfloat16)
    fused[:, :4] = case.q
    out, _ = attend(replace(case, q=fused[:, :4]), kernels)
    assert torch.equal(out, attend(case, kernels)[0])


def test_refuses_pages_laid_out_for_others() -> None:
    case = make_case(0, [(1, 3)])
    plain = LayerKV(*(torch.zeros(1, 32, 2, 64, dtype=torch.bfloat16) for _ in range(2)))
    with pytest.raises(TypeError, match="PackedInt8KV, got LayerKV"):
        NativeAttention(FASTEST).attend(case.q, plain, case.batch, case.spec())


def test_refuses_queries_of_another_type() -> None:
    case = make_case(0, [(1, 3)])
    with pytest.raises(TypeError, match=r"must be bfloat16, as the pages want, got torch\.float32"):
        NativeAttention(FASTEST).attend(case.q.float(), case.packed(FASTEST), case.batch, case.spec())


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"window": 0}, "at least 1 position, got 0"),
        ({"block_size": 0}, "at least 1 position, got 0"),
        (
            {"block_size": 4, "window": 9},
            "blocks of 4 need causal attention without a window, got causal True, window 9",
        ),
        ({"block_size": 4, "causal": False}, "got causal False"),
    ],
)
def test_refuses_a_rule_that_contradicts_itself(rule: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        attend(make_case(0, [(1, 3)]), FASTEST, **rule)


def test_refuses_heads_that_do_not_group() -> None:
    case = make_case(0, [(1, 3)], group=2, kv_heads=2)
    with pytest.raises(ValueError, match="got 3 and 2"):
        attend(replace(case, q=case.q[:, :3]), FASTEST)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("page_size", [16, 64])
def test_packed_pages_hold_what_was_stored(dtype: torch.dtype, page_size: int) -> None:
    """Token by token, in any order, and read back in the order of the pages; a page is one piece of memory."""
    kv = PackedKV.empty(FASTEST, KVShape(5, page_size, 3, 80, dtype, torch.device("cpu")))
    plain = LayerKV(*(torch.zeros(5, page_size, 3, 80, dtype=dtype) for _ in range(2)))
    kv.k.zero_(), kv.v.zero_()
    slots = torch.randperm(5 * page_size)[: 3 * page_size]
    k, v = torch.randn(2, len(slots), 3, 80).to(dtype)
    kv.store(slots, k, v)
    plain.store(slots, k, v)
    pages = torch.tensor([[4, 0], [1, 3]])
    for found, expected in zip(kv.gather(pages), plain.gather(pages), strict=True):
        assert torch.equal(found, expected)
    assert kv.k[1].is_contiguous()
    assert kv.k[1].numel() == kv.v[1].numel() == page_size * 3 * 80


def test_the_reference_reads_packed_pages() -> None:
    """Every layout gives the oracle's result."""
    case = make_case(12, [(1, 100), (9, 40)])
    kv = case.packed(FASTEST)
    plain = LayerKV(*kv.gather(torch.arange(kv.k.shape[0])))
    ours, theirs = (ReferenceAttention().attend(case.q, pages, case.batch, case.spec())[0] for pages in (kv, plain))
    assert torch.equal(ours, theirs)
