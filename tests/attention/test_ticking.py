"""Signs of life from inside a step: from every layer, and from every part of a long one."""

from __future__ import annotations

import torch

from paged import Row, empty_kv, forward_batch
from sluice.attention.reference import ReferenceAttention
from sluice.attention.spec import AttentionSpec
from sluice.attention.ticking import TickingAttention

HEADS, HEAD_DIM, PAGE_SIZE = 2, 4, 4


class Ticks:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def attended(ticks: Ticks, max_scores: int, length: int) -> torch.Tensor:
    """Of one row that extends by `length` tokens."""
    torch.manual_seed(0)
    batch = forward_batch([Row(range(length), 0, range(-(-length // PAGE_SIZE)))], PAGE_SIZE)
    kv = empty_kv(8, PAGE_SIZE, HEADS, HEAD_DIM, torch.float64)
    q, k, v = torch.randn(3, length, HEADS, HEAD_DIM, dtype=torch.float64)
    kv.store(batch.kv_slots, k, v)
    out, _ = TickingAttention(ReferenceAttention(max_scores, ticks), ticks).attend(
        q, kv, batch, AttentionSpec.of(q, HEADS, 0.5)
    )
    return out


def test_a_long_layer_ticks_for_every_slice_and_computes_the_same() -> None:
    """A layer over a long context takes longer than an engine may be silent."""
    whole, sliced = Ticks(), Ticks()
    expected = attended(whole, 1 << 20, 24)
    assert whole.count == 2
    torch.testing.assert_close(attended(sliced, 4 * HEADS * 24, 24), expected)
    assert sliced.count == 1 + 6


def test_what_is_asked_of_it_reaches_the_backend() -> None:
    """An option that is lost on the way gives wrong answers in silence."""
    torch.manual_seed(0)
    batch = forward_batch([Row([1], 9, range(3)), Row(range(6), 3, range(3, 6))], PAGE_SIZE)
    kv = empty_kv(8, PAGE_SIZE, HEADS, HEAD_DIM, torch.float64)
    kv.k.normal_()
    kv.v.normal_()
    q = torch.randn(7, HEADS, HEAD_DIM, dtype=torch.float64)
    options = {"scale": 0.3, "causal": False, "window": 3, "softcap": 2.0, "k_scale": 1.5, "v_scale": 0.5}
    inner = ReferenceAttention()
    spec = AttentionSpec.of(q, HEADS, **options)
    outs = [each.attend(q, kv, batch, spec, need_lse=True) for each in (inner, TickingAttention(inner, Ticks()))]
    for one, other in zip(*outs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    for name in ("causal", "window", "softcap", "k_scale", "v_scale"):
        kept = {key: value for key, value in options.items() if key != name}
        assert not torch.equal(inner.attend(q, kv, batch, AttentionSpec.of(q, HEADS, **kept))[0], outs[1][0]), name
