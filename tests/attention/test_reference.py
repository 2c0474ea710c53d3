"""ReferenceAttention against a reference that computes one query of one head at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import attention_cases
from attention_cases import Case
from paged import Row, forward_batch
from slow import examples
from sluice.attention.merge import merge_states
from sluice.attention.reference import ReferenceAttention

SCALE = 0.37


make_case = partial(attention_cases.make_case, head_dim=6, page_size=4, dtype=torch.float64)


def naive(
    case: Case,
    *,
    causal: bool = True,
    window: int | None = None,
    block_size: int | None = None,
    softcap: float | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention as its definition reads, in float64."""
    q, k_pages, v_pages = case.q.double(), case.kv.k.double(), case.kv.v.double()
    page_size, kv_heads = k_pages.shape[1:3]
    out = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float64)
    token = 0
    for row, (q_len, kv_len) in enumerate(zip(case.batch.q_lens, case.batch.kv_lens_host, strict=True)):
        for i in range(q_len):
            position = kv_len - q_len + i
            last = min(position, kv_len - 1) if causal else kv_len - 1
            if block_size is not None:
                last = max((p for p in range(kv_len) if p // block_size <= position // block_size), default=-1)
            first = 0 if window is None else max(0, position - window + 1)
            places = [(int(case.batch.page_table[row, p // page_size]), p % page_size) for p in range(first, last + 1)]
            for head in range(q.shape[1]):
                if not places:
                    continue
                kv_head = head * kv_heads // q.shape[1]
                k = torch.stack([k_pages[page, at, kv_head] for page, at in places]) * k_scale
                v = torch.stack([v_pages[page, at, kv_head] for page, at in places]) * v_scale
                scores = (k @ q[token, head]) * SCALE
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                lse[token, head] = torch.logsumexp(scores, 0)
                out[token, head] = torch.softmax(scores, 0) @ v
            token += 1
    return out, lse


def attend(case: Case, backend: ReferenceAttention | None = None, **rule: Any) -> tuple[torch.Tensor, torch.Tensor]:
    backend = backend or ReferenceAttention()
    out, lse = backend.attend(case.q, case.kv, case.batch, case.spec(scale=SCALE, **rule), need_lse=True)
    assert lse is not None
    return out, lse


def decodes_then_extends(draw: st.DrawFn) -> list[tuple[int, int]]:
    decodes = draw(st.lists(st.integers(0, 19), max_size=4))
    extends = draw(st.lists(st.tuples(st.integers(2, 9), st.integers(0, 19)), max_size=3))
    lengths = [(1, kv_len) for kv_len in decodes] + extends
    return lengths or [(1, 1)]


@examples(120)
@given(data=st.data())
def test_agrees_with_the_definition(data: st.DataObject) -> None:
    """Any ragged batch, rule and slicing; with fewer keys than queries some queries see nothing."""
    draw = data.draw
    lengths = decodes_then_extends(draw)
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    case = make_case(
        draw(st.integers(0, 99)),
        lengths,
        heads=kv_heads * draw(st.sampled_from([1, 2, 3])),
        kv_heads=kv_heads,
        page_size=draw(st.sampled_from([1, 2, 4, 16])),
    )
    rule: dict[str, Any] = {
        "causal": draw(st.booleans()),
        "window": draw(st.sampled_from([None, 1, 3, 8])),
        "block_size": draw(st.sampled_from([None, 1, 2, 4, 7])),
        "softcap": draw(st.sampled_from([None, 1.5])),
        "k_scale": draw(st.sampled_from([1.0, 0.5])),
        "v_scale": draw(st.sampled_from([1.0, 3.0])),
    }
    if rule["block_size"] is not None:
        rule |= {"causal": True, "window": None}
    backend = ReferenceAttention(max_scores=draw(st.sampled_from([1, 100, 1 << 20])))
    out, lse = attend(case, backend, **rule)
    expected, expected_lse = naive(case, **rule)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-12, atol=1e-12)


def test_decodes_of_very_different_lengths() -> None:
    """Padding all to the longest would cost as if all were long; with any grouping each gets its own result."""
    case = make_case(8, [(1, length) for length in (3, 400, 70, 0, 1, 200, 64)])
    out, lse = attend(case)
    expected, expected_lse = naive(case)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 8e-3), (torch.float16, 1e-3)])
def test_low_precision_rounds_only_the_result(dtype: torch.dtype, tolerance: float) -> None:
    """Softmax in bf16 itself would be some ten times further from the truth than rounding the result once."""
    case = make_case(3, [(1, 33), (1, 5), (7, 40), (3, 3)], dtype=dtype)
    out, lse = attend(case)
    expected, expected_lse = naive(case)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance / 10)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("lengths", [[(3000, 3000)], [(1, 1500)] * 40], ids=["prompt", "decodes"])
def test_memory_stays_bounded(lengths: list[tuple[int, int]]) -> None:
    """A long chunk must not hold all its scores at once, nor many decodes all their gathered keys."""
    case = make_case(0, lengths, heads=4, kv_heads=1, page_size=64, dtype=torch.float32)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in owned:
                largest = max(largest, result.numel())
            return result

    owned = {case.kv.k.untyped_storage().data_ptr(), case.kv.v.untyped_storage().data_ptr()}
    with Watch():
        ReferenceAttention(max_scores=1 << 17).attend(case.q, case.kv, case.batch, case.spec(scale=SCALE))
    assert case.q.numel() <= largest <= 1 << 17


@pytest.mark.parametrize("split", [0, 1, 4, 11, 17])
def test_parts_merge_to_the_whole(split: int) -> None:
    """KV split anywhere: the first part seen without mask, the second causally, merged by log-sum-exp."""
    q_len, kv_len, page_size = 6, 17, 1
    whole = make_case(5, [(q_len, kv_len)], page_size=page_size)
    expected, expected_lse = attend(whole)
    pages = whole.batch.page_table[0].tolist()
    start = kv_len - q_len
    later = forward_batch([Row([0] * q_len, 0, pages[split:], kv_len - split)], page_size)
    if split <= start:
        earlier = forward_batch([Row([0] * q_len, 0, pages[:split] or [0], split)], page_size)
        out_a, lse_a = attend(replace(whole, batch=earlier), causal=False)
        out_b, lse_b = attend(replace(whole, batch=later))
    else:
        # Queries before the split see part of the first half and nothing of the second.
        visible = [min(split, start + i + 1) for i in range(q_len)]
        earlier = forward_batch([Row([0], 0, pages[:n], n) for n in visible], page_size)
        out_a, lse_a = attend(replace(whole, batch=earlier))
        out_b, lse_b = attend(replace(whole, batch=later))
        assert torch.isneginf(lse_b).any()
    out, lse = merge_states(out_a, lse_a, out_b, lse_b)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", [{"window": 0}, {"window": -3}])
def test_refuses_a_window_that_hides_everything(rule: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"at least 1 position, got {rule['window']}"):
        attend(make_case(0, [(1, 3)]), **rule)


def test_refuses_heads_that_do_not_group() -> None:
    with pytest.raises(ValueError, match="got 3 and 2"):
        attend(make_case(0, [(1, 3)], heads=3))


def test_lse_is_only_returned_when_asked_for() -> None:
    case = make_case(0, [(1, 3)])
    assert ReferenceAttention().attend(case.q, case.kv, case.batch, case.spec(scale=SCALE))[1] is None
