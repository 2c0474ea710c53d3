"""Pages of int8: what is stored, and attention over them by the compiled kernels at every level."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from compiled import level_name, library
from native_cases import FASTEST, KERNELS, attend, exact, make_case, ragged, root_mean_square, row_of
from paged import forward_batch
from sluice.attention.base import LayerKV, PagedKV
from sluice.attention.hadamard import rotated, rotated_back
from sluice.attention.int8 import Int8KV, PackedInt8KV, quantized
from sluice.attention.native import NativeAttention
from sluice.attention.reference import ReferenceAttention, ReferenceBackend
from sluice.attention.spec import KVShape
from sluice.kernels.cpu.library import Kernels

each_level = pytest.mark.parametrize("kernels", KERNELS, ids=level_name)
INT8 = torch.int8
CPU = torch.device("cpu")


def int8_case(seed: int, lengths: list[tuple[int, int]], **options: Any) -> Any:
    return make_case(seed, lengths, kv_dtype=INT8, **options)


def test_at_most_half_a_step_is_lost() -> None:
    x = torch.randn(50, 3, 80) * torch.logspace(-6, 6, 50)[:, None, None]
    values, scales = quantized(x)
    assert values.abs().amax(-1).eq(127).all()
    assert ((values * scales[..., None] - x).abs() <= scales[..., None] * 0.50001).all()


def test_zeros_and_what_is_not_finite() -> None:
    x = torch.ones(4, 16)
    x[0], x[1], x[2, 3], x[3, 5] = 0.0, 1e-35, torch.inf, torch.nan
    values, scales = quantized(x)
    read = values * scales[:, None]
    assert read[:2].eq(0).all()
    assert read[2:].isnan().all()


def test_reference_pages_hold_what_was_stored() -> None:
    """Token by token, in any order; a page is one piece of memory, and has the size that is planned for it."""
    kv = ReferenceBackend().new_kv(KVShape(5, 16, 3, 80, INT8, CPU), None)
    slots = torch.randperm(5 * 16)[:40]
    k, v = torch.randn(2, 40, 3, 80).bfloat16()
    kv.store(slots, k, v)
    found_k, found_v = (found[torch.arange(40), slots % 16] for found in kv.gather(slots // 16))
    values, scales = quantized(rotated(k.float()))
    assert torch.equal(found_k, rotated_back(values * scales[..., None]))
    values, scales = quantized(v)
    assert torch.equal(found_v, values * scales[..., None])
    assert kv.k[1].is_contiguous()
    assert kv.k[1].nbytes == 16 * 3 * (80 + 4)


@each_level
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [80, 512])
def test_packed_pages_are_those_of_the_definition(kernels: Kernels, dtype: torch.dtype, head_dim: int) -> None:
    """To the last bit, also of zeros, of halves of a step, and of what is not finite."""
    shape = KVShape(5, 32, 3, head_dim, INT8, CPU)
    plain, packed = Int8KV.empty(shape), PackedInt8KV.empty(kernels, shape)
    slots = torch.randperm(5 * 32)
    k, v = (torch.randn(2, len(slots), 3, head_dim) * 10).to(dtype)
    k[0], k[1, 0, 7], v[2, 1, 3], v[3] = 0.0, torch.nan, -torch.inf, torch.arange(head_dim) / 2
    v[3, :, 0] = 127.0
    pages = torch.tensor([[4, 0, 1], [1, 3, 2]])
    found: list[PagedKV] = [plain, packed]
    for kv in found:
        kv.store(slots, k, v)
    for ours, theirs in zip(packed.gather(pages), plain.gather(pages), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert packed.k[1].nbytes == plain.k[1].nbytes


@pytest.mark.parametrize("part", range(3))
def test_attention_errs_by_a_rounding(part: int) -> None:
    """Against float64 over the same stored numbers: by half the last bit of the result, and by little more in float32.

    A rounded query moves a score by at most `scale * |q|max * sum |k| / 65534`, and 256 rounded weights of a block move
    a result by at most `256 / 65534` of the largest value, which they hardly do all in one direction.
    """
    draw = random.Random(part)
    for number in range(8):
        dtype = draw.choice((torch.bfloat16, torch.float32))
        case = int8_case(
            1000 * part + number,
            ragged(draw),
            group=draw.choice((1, 2, 4, 8)),
            kv_heads=draw.choice((1, 2, 3)),
            head_dim=draw.choice((64, 80, 96, 128, 256)),
            page_size=draw.choice((16, 32, 64)),
            dtype=dtype,
        )
        rule: dict[str, Any] = {
            "causal": draw.random() < 0.8,
            "window": draw.choice((None, None, 1, 17, 100)),
            "softcap": draw.choice((None, None, 1.5)),
        }
        expected, expected_lse = exact(case, **rule)
        rounded = root_mean_square(expected.to(dtype) - expected)
        for kernels in KERNELS:
            out, lse = attend(case, kernels, **rule)
            about = f"{level_name(kernels)}, {number}: {rule} {case.batch.q_lens} {case.batch.kv_lens_host}"
            assert root_mean_square(out.double() - expected) <= 1.1 * rounded + 5e-5, about
            torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-4, atol=1e-4, msg=about)


@each_level
def test_a_heavy_first_key_hides_no_tail(kernels: Kernels) -> None:
    """Thousands of keys that weigh a tenth between them, behind one with the rest: each block has a step of its own."""
    length = 6000
    case = int8_case(1, [(1, length)], group=1, kv_heads=1, dtype=torch.float32)
    case.q[:] = 0.0
    case.q[..., 0] = 8.0
    case.k[0][:, :, 0] = 0.0
    case.k[0][0, :, 0] = 10.9  # exp(8 * 10.9 / 8) is nine times 6000
    case.k[0][:, :, 1] = 11.0  # the steps of all keys are alike
    case.v[0][:] = 1.0
    case.v[0][0] = 0.0
    out, _ = attend(case, kernels)
    torch.testing.assert_close(out.double(), exact(case)[0], rtol=5e-3, atol=0.0)


@each_level
def test_company_and_threads_change_nothing(kernels: Kernels) -> None:
    lengths = [(1, 900), (1, 31), (1, 0), (1, 513), (30, 600), (2, 2), (17, 17)]
    case = int8_case(5, lengths, group=4, kv_heads=1)
    out, lse = attend(case, kernels)
    parts, lse_parts = out.split(case.batch.q_lens), lse.split(case.batch.q_lens)
    for row in range(len(lengths)):
        alone, alone_lse = attend(case.rows(row), kernels)
        assert torch.equal(alone, parts[row]), lengths[row]
        assert torch.equal(alone_lse, lse_parts[row]), lengths[row]
    for threads in (1, 3):  # of a tile that several threads share, too
        assert torch.equal(attend(case, Kernels(library(), kernels.level, threads))[0], out)


@each_level
@pytest.mark.parametrize("window", [None, 300])
def test_chunks_change_nothing(kernels: Kernels, window: int | None) -> None:
    """To the last bit at every level: no tiles compute over such pages."""
    length = 700
    whole = int8_case(8, [(length, length)], group=2, kv_heads=1)
    out, _ = attend(whole, kernels, window=window)
    kv = whole.packed(kernels)
    for start, end in ((0, 1), (1, 100), (100, 513), (513, 514), (600, 650), (699, 700)):
        batch = forward_batch([row_of(end - start, end, whole.pages[0])], whole.page_size)
        part, _ = NativeAttention(kernels).attend(whole.q[start:end], kv, batch, whole.spec(window=window))
        assert torch.equal(part, out[start:end]), (start, end)


@each_level
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_with_its_request(kernels: Kernels, bad: float) -> None:
    case = int8_case(9, [(1, 300), (1, 300), (6, 40), (6, 40)])
    case.k[1][7, 0, 3] = bad
    case.v[3][7, 0, 3] = bad
    parts = attend(case, kernels)[0].split(case.batch.q_lens)
    assert all(parts[row].isfinite().all() for row in (0, 2))
    assert all(parts[row][-1, :2].isnan().all() for row in (1, 3))
    assert all(parts[row][-1, 2:].isfinite().all() for row in (1, 3))


def test_the_reference_reads_both_layouts() -> None:
    case = int8_case(12, [(1, 100), (9, 40)])
    kv = case.packed(FASTEST)
    plain = LayerKV(*kv.gather(torch.arange(kv.k.shape[0])))
    ours, theirs = (ReferenceAttention().attend(case.q, pages, case.batch, case.spec())[0] for pages in (kv, plain))
    assert torch.equal(ours, theirs)


def test_refuses_queries_of_a_type_without_kernels() -> None:
    case = int8_case(0, [(1, 3)])
    with pytest.raises(TypeError, match=r"must be bfloat16, float32, as the pages want, got torch\.float16"):
        NativeAttention(FASTEST).attend(case.q.half(), case.packed(FASTEST), case.batch, case.spec())
