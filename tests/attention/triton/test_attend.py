"""Attention in Triton against the reference, on ragged batches with small tiles: every edge of every loop is met."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from attention_cases import SCALE, Case, exact, make_case
from sluice.attention.triton.backend import TritonAttention
from sluice.attention.triton.tiles import Arch, DecodeTiles, ExtendTiles
from triton_device import each_device

SMALL = TritonAttention(
    Arch((8, 0), 3),
    extend_with=ExtendTiles(block=16, tile=16, num_warps=2, num_stages=1),
    decode_with=DecodeTiles(tile=16, min_tiles=1, programs_per_sm=4, num_warps=2, num_stages=1),
)


def attend(
    case: Case, device: torch.device, backend: TritonAttention = SMALL, **rule: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    there = case.to(device)
    out, lse = backend.attend(there.q, there.kv, there.batch, need_lse=True, **{"scale": SCALE, **rule})
    assert lse is not None
    return out.cpu(), lse.cpu()


def assert_close(case: Case, device: torch.device, backend: TritonAttention = SMALL, **rule: Any) -> None:
    out, lse = attend(case, device, backend, **rule)
    expected, expected_lse = exact(case, **rule)
    # The interpreter cuts bits off where a device rounds.
    rtol = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[case.q.dtype]
    about = f"{rule} {case.q.dtype} {tuple(case.q.shape)} {tuple(case.kv.k.shape)} {case.batch}"
    assert out.dtype == case.q.dtype
    torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=rtol / 4, msg=lambda text: f"{text}\n{about}")
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
@pytest.mark.parametrize("seed", range(6))
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
            head_dim=draw.choice((64, 80, 96, 128)),
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
