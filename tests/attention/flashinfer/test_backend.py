"""What FlashInfer is asked for, through one in plain torch: it must come to what the reference gives."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fake_flashinfer
from paged import Row, empty_kv, forward_batch
from slow import examples
from sluice.attention.base import ForwardBatch, LayerKV
from sluice.attention.flashinfer.api import FlashInferUnavailable, load_flashinfer
from sluice.attention.flashinfer.attention import FlashInferAttention
from sluice.attention.flashinfer.backend import try_out
from sluice.attention.reference import ReferenceAttention
from sluice.attention.spec import AttentionSpec

CPU = torch.device("cpu")
PAGE, HEAD_DIM = 4, 64


class CountedFence:
    """A host whose copies are done when they are waited for."""

    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        assert not self.is_set, "planned again before the copy of the last plan was waited for"
        self.is_set = True

    def wait(self) -> None:
        self.is_set = False


def backend(package: Any = fake_flashinfer) -> FlashInferAttention:
    return FlashInferAttention(package, CPU, to_host=torch.from_numpy, fence=CountedFence, workspace_bytes=1024)


def case(
    lengths: list[tuple[int, int]], *, heads: int = 4, kv_heads: int = 2, seed: int = 0, shared: int = 0
) -> tuple[torch.Tensor, LayerKV, ForwardBatch]:
    """A ragged batch over shuffled pages, NaN where no row owns them.

    Args:
        lengths: (q_len, kv_len) of each row, decodes first.
        shared: pages that all rows begin with.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-kv_len // PAGE) for _, kv_len in lengths]
    order = torch.randperm(sum(counts) + shared + 2, generator=generator).tolist()
    common = [order.pop() for _ in range(shared)]
    kv = empty_kv(len(order) + shared, PAGE, kv_heads, HEAD_DIM, torch.bfloat16)
    rows = []
    for (q_len, kv_len), count in zip(lengths, counts, strict=True):
        pages = common + [order.pop() for _ in range(count - shared)]
        slots = torch.tensor([pages[p // PAGE] * PAGE + p % PAGE for p in range(kv_len)])
        kv.store(slots, *torch.randn((2, kv_len, kv_heads, HEAD_DIM), generator=generator).bfloat16())
        rows.append(Row([0] * q_len, kv_len - q_len, pages, kv_len))
    batch = replace(forward_batch(rows, PAGE), shared_pages=shared)
    return torch.randn((sum(batch.q_lens), heads, HEAD_DIM), generator=generator).bfloat16(), kv, batch


def close(ours: torch.Tensor | None, reference: torch.Tensor | None) -> None:
    assert ours is not None
    assert reference is not None
    torch.testing.assert_close(ours, reference, rtol=2e-2, atol=2e-2)


LENGTHS = st.lists(st.integers(1, 19), max_size=4)


@examples(40)
@given(st.data(), LENGTHS, st.lists(st.tuples(st.integers(2, 7), st.integers(0, 12)), max_size=3))
def test_ragged_batches(data: st.DataObject, decodes: list[int], extends: list[tuple[int, int]]) -> None:
    """Page lists of other rows, a window that is off by one, a log-sum-exp in the wrong base."""
    lengths = [(1, kv_len) for kv_len in decodes] + [(q_len, q_len + cached) for q_len, cached in extends]
    if not lengths:
        return
    kv_heads = data.draw(st.sampled_from([1, 2, 4]))
    q, kv, batch = case(lengths, kv_heads=kv_heads, seed=data.draw(st.integers(0, 9)))
    rules = {
        "scale": data.draw(st.sampled_from([0.1, 0.3])),
        "window": data.draw(st.sampled_from([None, 1, 3, 40])),
        "softcap": data.draw(st.sampled_from([None, 2.0])),
        "k_scale": data.draw(st.sampled_from([1.0, 0.5])),
        "v_scale": data.draw(st.sampled_from([1.0, 1.5])),
    }
    need_lse = data.draw(st.booleans())
    spec = AttentionSpec.of(q, kv_heads, **rules)
    attention = backend()
    attention.plan(batch)
    out, lse = attention.attend(q, kv, batch, spec, need_lse=need_lse)
    expected, expected_lse = ReferenceAttention().attend(q, kv, batch, spec, need_lse=need_lse)
    close(out, expected)
    assert (lse is None) == (not need_lse)
    if lse is not None:
        close(lse, expected_lse)


class Counting:
    """The package, remembering the wrappers it made."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        def make(*args: Any, **options: Any) -> Any:
            self.made.append(getattr(fake_flashinfer, name)(*args, **options))
            return self.made[-1]

        return make


def test_a_step_is_planned_once_for_all_layers_of_a_kind() -> None:
    """A plan in every layer would cost the host more than the layer the device; a plan of the step before is wrong."""
    package = Counting()
    attention = backend(package)
    for step in range(3):
        q, kv, batch = case([(1, 3 + step), (1, 9), (5, 5 + step)], seed=step)
        attention.plan(batch)
        for window in (None, 3, None, 3):
            spec = AttentionSpec.of(q, kv.kv_heads, 0.2, window=window)
            close(attention.attend(q, kv, batch, spec)[0], ReferenceAttention().attend(q, kv, batch, spec)[0])
    assert [wrapper.plans for wrapper in package.made] == [3] * 4, "two kinds of layers, decodes and extends"


@pytest.mark.parametrize("cascades", [True, False])
def test_a_long_shared_prefix_is_read_once(cascades: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two levels must neither lose nor repeat a page; log-sum-exps and windows go the plain way."""
    monkeypatch.setattr("sluice.attention.flashinfer.attention.CASCADE_TOKENS", 2 * PAGE if cascades else 512)
    package = Counting()
    attention = backend(package)
    for step in range(2):
        lengths = [(1, 13 + step), (1, 9), (1, 22), (1, 10), (3, 12)]
        q, kv, batch = case(lengths, seed=step, shared=2)
        attention.plan(batch)
        for window, need_lse in ((None, False), (None, True), (5, False), (None, False)):
            spec = AttentionSpec.of(q, kv.kv_heads, 0.2, window=window)
            found = attention.attend(q, kv, batch, spec, need_lse=need_lse)
            expected = ReferenceAttention().attend(q, kv, batch, spec, need_lse=need_lse)
            close(found[0], expected[0])
    used = [w for w in package.made if isinstance(w, fake_flashinfer.MultiLevelCascadeAttentionWrapper)]
    assert [wrapper.plans for wrapper in used] == [2] * cascades


def test_static_steps_are_planned_before_their_replay() -> None:
    """No layer's code runs in a replay: what the graph's kernels read must be that of the step all the same."""
    package = Counting()
    attention = backend(package)
    q, kv, batch = case([(1, 8), (1, 8), (1, 8)])
    attention.plan_static(batch)
    spec = AttentionSpec.of(q, kv.kv_heads, 0.2)
    attention.attend(q, kv, batch, spec)
    (wrapper,) = package.made
    new_q, new_kv, new = case([(1, 3), (1, 11), (1, 6)], seed=1)
    attention.plan_static(new)
    close(wrapper.run(new_q, (new_kv.k, new_kv.v)), ReferenceAttention().attend(new_q, new_kv, new, spec)[0])
    assert wrapper.plans == 2
    other = case([(1, 3), (1, 4)], seed=1)[2]
    attention.plan_static(other)
    assert wrapper.plans == 2, "a graph of another size"


def test_refused() -> None:
    q, kv, batch = case([(1, 3)])
    attention = backend()
    attention.plan(batch)
    with pytest.raises(TypeError, match=r"torch.bfloat16, torch.float16, got torch.float32"):
        attention.attend(q.float(), kv, batch, AttentionSpec.of(q, kv.kv_heads, 1.0))
    with pytest.raises(ValueError, match="window must be at least 1 position, got 0"):
        attention.attend(q, kv, batch, AttentionSpec.of(q, kv.kv_heads, 1.0, window=0))
    narrow = LayerKV(kv.k[..., :48], kv.v[..., :48])
    with pytest.raises(ValueError, match="head size must be one of 64, 128, 256, got 48"):
        attention.attend(q[..., :48], narrow, batch, AttentionSpec.of(q[..., :48], kv.kv_heads, 1.0))


class Broken:
    """A package whose compiler is missing, or whose kernels are wrong."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def BatchDecodeWithPagedKVCacheWrapper(self, *args: Any, **options: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self

    def plan(self, *lists: torch.Tensor, **options: Any) -> None: ...

    def run(self, q: torch.Tensor, pages: Any, *, out: torch.Tensor, **options: Any) -> None:
        out.zero_()


def test_a_first_use() -> None:
    """A missing compiler must be reported at the start, in one line."""
    sizes = (AttentionSpec(4, 2, 64, torch.bfloat16, 1.0), PAGE, CPU)
    try_out(backend(), *sizes)
    with pytest.raises(FlashInferUnavailable, match=r"it does not run on cpu: RuntimeError: no nvcc$"):
        try_out(backend(Broken(RuntimeError("no nvcc\nand a long log"))), *sizes)
    with pytest.raises(FlashInferUnavailable, match="it computes wrong results on cpu"):
        try_out(backend(Broken(None)), *sizes)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(FlashInferUnavailable, match="the package flashinfer cannot be imported"):
        load_flashinfer()
