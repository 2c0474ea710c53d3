"""Attention in Triton against the reference, on ragged batches with small tiles: every edge of every loop is met."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attention_cases import Case, exact, make_case
from slow import products, slow
from sluice.attention.base import LayerKV
from sluice.attention.triton.attention import TritonAttention
from sluice.attention.triton.kv import TritonKV
from sluice.attention.triton.tiles import Arch, DecodeTiles, ExtendTiles
from triton_device import HERE, each_device

SMALL = TritonAttention(
    Arch((8, 0), 3),
    extend_with=ExtendTiles(block=16, tile=16, num_warps=2, num_stages=1),
    decode_with=DecodeTiles(tile=16, min_tiles=1, programs_per_sm=4, num_warps=2, num_stages=1),
)


def attend(
    case: Case, device: torch.device, backend: TritonAttention = SMALL, **rule: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    there = case.to(device)
    out, lse = backend.attend(there.q, there.kv, there.batch, case.spec(**rule), need_lse=True)
    assert lse is not None
    return out.cpu(), lse.cpu()


def assert_close(case: Case, device: torch.device, backend: TritonAttention = SMALL, **rule: Any) -> None:
    out, lse = attend(case, device, backend, **rule)
    expected, expected_lse = exact(case, **rule)
    # The interpreter cuts bits off where a device rounds.
    rtol = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[case.q.dtype]
    shapes = f"{case.q.dtype} {tuple(case.q.shape)} {tuple(case.kv.k.shape)}"
    about = f"{rule} {shapes} {case.batch.q_lens} {case.batch.kv_lens_host}"
    assert out.dtype == case.q.dtype
    torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=rtol / 2, msg=lambda text: f"{text}\n{about}")
    lse_tol = 2e-5 if case.q.dtype == torch.float32 else 2e-4
    torch.testing.assert_close(
        lse.double(), expected_lse, rtol=lse_tol, atol=lse_tol, msg=lambda text: f"lse: {text}\n{about}"
    )


def lengths(draw: random.Random) -> list[tuple[int, int]]:
    """Decodes and extends about the edges of tiles and pages; now and then fewer keys than queries."""
    edges = (0, 1, 2, 15, 16, 17, 31, 32, 33, 47, 70, 130)
    decodes = [(1, draw.choice(edges)) for _ in range(draw.randrange(4))]
    extends = []
    for _ in range(draw.randrange(3)):
        q_len = draw.choice((2, 3, 7, 16, 17, 20))
        extends.append((q_len, draw.choice((0, 0, 1, 13, 16, 29, 64)) + draw.choice((q_len, q_len, q_len, 1))))
    return decodes + extends or [(1, 1)]


@each_device
@pytest.mark.parametrize("seed", [slow(0), 1, slow(2), slow(3)])
def test_agrees_with_the_reference(device: torch.device, seed: int) -> None:
    """Any ragged batch, grouping, page size and rule."""
    draw = random.Random(seed)
    for number in range(4):
        kv_heads = draw.choice((1, 2))
        case = make_case(
            100 * seed + number,
            lengths(draw),
            heads=kv_heads * draw.choice((1, 2, 3, 4, 8)),
            kv_heads=kv_heads,
            head_dim=draw.choice((16, 64, 80, 96, 128)),
            page_size=draw.choice((1, 8, 16, 32, 64)),
            dtype=draw.choice((torch.float32, torch.float32, torch.bfloat16, torch.float16)),
        )
        assert_close(
            case,
            device,
            causal=draw.random() < 0.8,
            window=draw.choice((None, None, 1, 16, 21)),
            softcap=draw.choice((None, None, 1.5)),
        )
        if number == seed:
            assert_close(case, device, block_size=(4, 1, 32, 5)[seed])


@each_device
@pytest.mark.parametrize(
    "arch",
    [slow((8, 0)), slow((8, 6)), (9, 0)],
    ids=str,
)
def test_the_sizes_of_the_table(device: torch.device, arch: tuple[int, int]) -> None:
    """Tiles as they are on a device: wider than a page or than all keys, heads of 256, groups of seven."""
    backend = TritonAttention(Arch.of(device) if device.type == "cuda" else Arch(arch, 2))
    for head_dim, group, page_size, dtype in ((128, 7, 64, torch.bfloat16), (256, 2, 32, torch.float32)):
        case = make_case(
            1,
            [(1, 200), (1, 5), (70, 150), (3, 3)],
            heads=group,
            kv_heads=1,
            head_dim=head_dim,
            page_size=page_size,
            dtype=dtype,
        )
        assert_close(case, device, backend)


@each_device
@products(sms=[1, 48], window=[None, 100])
def test_one_long_context_among_short_ones(device: torch.device, sms: int, window: int | None) -> None:
    """No piece may be left out: neither for want of programs, with more rows than pieces aimed at, nor of those that
    are merged after the first sixteen."""
    backend = TritonAttention(
        Arch((8, 0), sms), decode_with=DecodeTiles(16, min_tiles=1, programs_per_sm=1, num_warps=2, num_stages=1)
    )
    case = make_case(2, [(1, n) for n in (16, 0, 700, 1, 33)], heads=8, kv_heads=1)
    case.kv.k[case.batch.page_table[2, 40:]] *= 3  # the highest scores come late: what was merged before has to shrink
    assert_close(case, device, backend, window=window)


@each_device
def test_a_query_that_sees_nothing(device: torch.device) -> None:
    """Zeros and -inf, not NaN, for any content of the pages."""
    case = make_case(4, [(1, 0), (4, 2), (3, 0)])
    out, lse = attend(case, device)
    sees = torch.tensor([False, False, False, True, True, False, False, False])
    assert torch.equal(torch.isneginf(lse).all(1), ~sees)
    assert torch.equal(out[~sees], torch.zeros_like(out[~sees]))
    assert out[sees].isfinite().all()


@each_device
def test_nan_stays_with_its_request(device: torch.device) -> None:
    """A model that overflows makes NaN: its request fails, as its output shows, and its neighbours go on."""
    case = make_case(9, [(1, 40), (1, 40), (6, 40), (6, 40)])
    for row in (1, 3):
        case.kv.k[case.batch.page_table[row, 0], 7, 0, 3] = torch.nan
    out, _ = attend(case, device)
    parts = out.split(case.batch.q_lens)
    assert all(parts[row].isfinite().all() for row in (0, 2))
    assert all(parts[row][-1, :2].isnan().all() for row in (1, 3))


@each_device
def test_scores_far_from_zero(device: torch.device) -> None:
    """Powers of scores of hundreds overflow: only their distance from the largest may be raised."""
    case = make_case(10, [(1, 60), (5, 30)])
    case = replace(case, q=case.q * 200)
    out, lse = attend(case, device)
    expected, expected_lse = exact(case)
    torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-3)


@each_device
def test_queries_that_are_a_part_of_a_fused_product(device: torch.device) -> None:
    """q is a view with k and v between its rows."""
    case = make_case(11, [(1, 20), (5, 30)])
    fused = torch.full((6, 8, 64), torch.nan)
    fused[:, 2:6] = case.q
    out, _ = attend(replace(case, q=fused[:, 2:6]), device)
    assert torch.equal(out, attend(case, device)[0])


@each_device
@products(capability=[(8, 0), (9, 0)], dtype=[torch.float8_e4m3fn, torch.float8_e5m2])
def test_keys_and_values_in_eight_bits(device: torch.device, capability: tuple[int, int], dtype: torch.dtype) -> None:
    """With scales, on devices that know the type and on those that have to put it together from bits."""
    if device.type == "cuda" and capability > torch.cuda.get_device_capability(device):
        pytest.skip("an older device")
    case = make_case(12, [(1, 40), (20, 50)], kv_heads=1, page_size=8)
    pages = TritonKV(case.kv.k.to(dtype).to(device), case.kv.v.to(dtype).to(device), k_scale=0.5, v_scale=3.0)
    there = case.to(device)
    backend = TritonAttention(Arch(capability, 2))
    out, lse = backend.attend(there.q, pages, there.batch, case.spec(k_scale=0.25), need_lse=True)
    stored = LayerKV(case.kv.k.to(dtype).float(), case.kv.v.to(dtype).float())
    expected, expected_lse = exact(replace(case, kv=stored), k_scale=0.125, v_scale=3.0)
    assert lse is not None
    torch.testing.assert_close(out.cpu().double(), expected, rtol=2e-5, atol=1e-5)
    torch.testing.assert_close(lse.cpu().double(), expected_lse, rtol=2e-5, atol=1e-5)


def test_lse_is_only_returned_when_asked_for() -> None:
    case = make_case(0, [(1, 3)]).to(HERE)
    assert SMALL.attend(case.q, case.kv, case.batch, case.spec())[1] is None


REFUSED: list[tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = [
    ({}, {"window": 0}, ValueError, "at least 1 position, got 0"),
    ({"heads": 3}, {}, ValueError, "got 3 and 2"),
    ({"dtype": torch.float64}, {}, TypeError, r"torch\.float32, got torch\.float64"),
    ({"head_dim": 260}, {}, ValueError, "at most 256, got 260"),
]


@pytest.mark.parametrize(("shape", "rule", "kind", "problem"), REFUSED)
def test_refuses(shape: dict[str, Any], rule: dict[str, Any], kind: type[Exception], problem: str) -> None:
    """What would come out wrong, or not at all, or not before a compiler has failed."""
    with pytest.raises(kind, match=problem):
        attend(make_case(0, [(1, 3)], **shape), HERE, **rule)


def test_refuses_pages_laid_out_for_others() -> None:
    case = make_case(0, [(1, 3)])
    kv: Any = SimpleNamespace(k=case.kv.k, v=case.kv.v, page_size=16, kv_heads=2)
    with pytest.raises(TypeError, match="TritonKV or LayerKV, got SimpleNamespace"):
        SMALL.attend(case.q, kv, case.batch, case.spec())
