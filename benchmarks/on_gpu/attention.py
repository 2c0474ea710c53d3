"""Times attention in the shape of the large model: Sluice's Triton kernels, FlashInfer and the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch

from benchmarks.on_gpu.clocks import seconds_queued
from benchmarks.on_gpu.engines import REFERENCE, STATIC
from benchmarks.on_gpu.setting import Setting
from sluice.attention.base import Attention, ForwardBatch, LayerKV
from sluice.attention.select import backend_named
from sluice.attention.spec import AttentionSpec
from sluice.testing.device import StaticAttention

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 32, 8, 128, 64
AIMS = {"decode": 0.9, "extend": 0.7}
TOLERANCE = 2e-2
"""Tolerated difference, as a share of the largest value."""


@dataclass(frozen=True, slots=True)
class Case:
    """A batch of rows of equal lengths."""

    name: str
    kind: str
    rows: int
    q_len: int
    kv_len: int
    shared: int = 0
    """Tokens of the prefix that all rows share, in whole pages."""


CASES = (
    Case("decode 64 x 1K", "decode", 64, 1, 1024),
    Case("decode 64 x 8K", "decode", 64, 1, 8192),
    Case("decode 1 x 8K", "decode", 1, 1, 8192),
    Case("decode 64 x 4K shared + 512", "cascade", 64, 1, 4608, shared=4096),
    Case("extend 2048 at 0", "extend", 1, 2048, 2048),
    Case("extend 2048 at 6K", "extend", 1, 2048, 8192),
)
TINY = (Case("decode", "decode", 3, 1, 100), Case("extend", "extend", 1, 40, 100))


def measure(setting: Setting) -> dict[str, Any]:
    """Time Sluice's own kernels."""
    return compare(setting, (setting.attention,))


def compare(setting: Setting, backends: Sequence[str]) -> dict[str, Any]:
    """Return the seconds of a call for each case and backend, or its error."""
    rows = [_case(setting, case, backends) for case in (TINY if setting.tiny else CASES)]
    return {"aim": f"Triton's speed over FlashInfer's at least {AIMS}", "rows": rows}


def _case(setting: Setting, case: Case, backends: Sequence[str]) -> dict[str, Any]:
    q, kv, batch = _tensors(setting, case)
    expected = _made(setting, REFERENCE).attend(q, kv, batch, AttentionSpec.of(q, KV_HEADS, 0.1))[0]
    row: dict[str, Any] = {"case": case.name, "kind": case.kind, "kv_bytes": _kv_bytes(case, kv)}
    for name in backends:
        try:
            row[name] = _backend(setting, name, q, kv, batch, expected)
        except Exception as error:  # noqa: BLE001 - one that fails is a row of the report
            row[name] = {"error": f"{type(error).__name__}: {error}"}
    ours, theirs = (row.get(name, {}).get("seconds") for name in ("triton", "flashinfer"))
    if ours is not None and theirs is not None:
        row["speed_over_flashinfer"] = theirs / ours
        row["reached"] = case.kind not in AIMS or theirs / ours >= AIMS[case.kind]
    return row


def _backend(
    setting: Setting, name: str, q: torch.Tensor, kv: LayerKV, batch: ForwardBatch, expected: torch.Tensor
) -> dict[str, Any]:
    attention, spec = _made(setting, name), AttentionSpec.of(q, KV_HEADS, 0.1)
    attention.plan(batch)

    def attend() -> torch.Tensor:
        return attention.attend(q, kv, batch, spec)[0]

    error = float((attend().float() - expected.float()).abs().max())
    scale = float(expected.float().abs().max())
    result = {
        "seconds": seconds_queued(attend, setting.device),
        "max_error": error,
        "passes": error <= TOLERANCE * scale,
    }
    if name == "flashinfer" and batch.shared_pages:
        attention.plan(replace(batch, shared_pages=0))
        plain = replace(batch, shared_pages=0)
        result["seconds_without_cascade"] = seconds_queued(
            lambda: attention.attend(q, kv, plain, spec)[0], setting.device
        )
    return result


def _made(setting: Setting, name: str) -> Attention:
    """Return the attention of a backend, or of `STATIC`."""
    if name == STATIC:
        return StaticAttention()
    return backend_named(name).make(setting.device, None, _nothing)


def _tensors(setting: Setting, case: Case) -> tuple[torch.Tensor, LayerKV, ForwardBatch]:
    """Return page numbers in a random order."""
    generator = torch.Generator().manual_seed(0)
    shared = case.shared // PAGE_SIZE
    own = -(-case.kv_len // PAGE_SIZE) - shared
    order = torch.randperm(shared + own * case.rows, generator=generator)
    table = torch.stack(
        [torch.cat((order[:shared], order[shared + own * row :][:own])) for row in range(case.rows)]
    ).to(setting.device, torch.int32)
    size = (len(order), PAGE_SIZE, KV_HEADS, HEAD_DIM)
    kv = LayerKV(*(torch.randn(size, device=setting.device).to(setting.dtype) for _ in range(2)))
    q = torch.randn((case.rows * case.q_len, HEADS, HEAD_DIM), device=setting.device).to(setting.dtype)
    return q, kv, _batch(setting.device, table, [case.q_len] * case.rows, [case.kv_len] * case.rows, shared)


def _batch(
    device: torch.device, table: torch.Tensor, q_lens: Sequence[int], kv_lens: Sequence[int], shared: int
) -> ForwardBatch:
    tokens = torch.zeros(sum(q_lens), dtype=torch.int64, device=device)
    return ForwardBatch(
        input_ids=tokens,
        positions=tokens,
        kv_slots=tokens,
        page_table=table,
        q_starts=torch.tensor([0, *accumulate(q_lens)], dtype=torch.int32, device=device),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32, device=device),
        logit_rows=tokens[:0],
        q_lens=tuple(q_lens),
        kv_lens_host=tuple(kv_lens),
        num_decodes=len(q_lens) if max(q_lens) == 1 else 0,
        shared_pages=shared,
    )


def _kv_bytes(case: Case, kv: LayerKV) -> int:
    """Return the bytes that must be read at least once."""
    tokens = case.shared + case.rows * (case.kv_len - case.shared)
    return 2 * tokens * KV_HEADS * HEAD_DIM * kv.k.element_size()


def _nothing() -> None:
    """A heartbeat that no process waits for."""
