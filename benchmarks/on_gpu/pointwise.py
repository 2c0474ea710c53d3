"""Compares operations between matrix products, and operations on logits, in Sluice's Triton kernels and in torch.

Shapes are those of the large model, with the larger vocabulary of the small one. Results must be equal: rows of
bfloat16 to a unit in the last place, and tokens except where two nearly tie.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from benchmarks.on_gpu.clocks import seconds_queued
from benchmarks.on_gpu.setting import Setting
from sluice.attention.base import LayerKV
from sluice.models.ops import Angles, HeadNorms, Norm, Ops
from sluice.runner.features.penalties import TokenCounts
from sluice.runner.logit_ops import TORCH_LOGIT_OPS, LogitOps, PenaltyValues
from sluice.runner.noise import noise_key
from sluice.runner.sampler import RowGroup, SamplingRows, row_kind
from sluice.types import SamplingParams

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 4096, 14336, 32, 8, 128, 151936
PAGE_SIZE = 64
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(),
    "top-k 20, top-p 0.8": SamplingParams(temperature=0.7, top_k=20, top_p=0.8),
    "top-p 0.95": SamplingParams(top_p=0.95),
}
TIES = 0.02
"""Share of rows whose two best tokens may differ by only the last bits of a logarithm. Far fewer do."""


class Case(NamedTuple):
    """An operation, by torch and by Sluice's kernels."""

    name: str
    torch: Callable[[], torch.Tensor]
    triton: Callable[[], torch.Tensor]
    num_bytes: int
    """Bytes that must be read and written at least once."""
    agree: Callable[[torch.Tensor, torch.Tensor], bool]


def measure(setting: Setting) -> dict[str, Any]:
    """Return the seconds of a call for each case."""
    ops, logit_ops = _kernels(setting)
    rows = []
    for tokens in (setting.pick(64, 2), setting.pick(2048, 3)):
        rows += [_row(setting, case) for case in _between_matrices(setting, ops, tokens)]
    for count in [setting.pick(size, 2) for size in (1, 64, 256)][: setting.pick(3, 1)]:
        rows += [_row(setting, case) for case in _on_logits(setting, logit_ops, count)]
    return {"kernels": type(ops).__name__, "rows": rows, "reached": all(row["passes"] for row in rows)}


def _kernels(setting: Setting) -> tuple[Ops, LogitOps]:
    """Return Triton's operations where they can run: a CPU needs its interpreter."""
    interprets = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
    if setting.device.type != "cuda" and not interprets:
        return Ops(), TORCH_LOGIT_OPS
    from sluice.models.triton_ops import TritonOps
    from sluice.runner.triton_logit_ops import TritonLogitOps

    return TritonOps(), TritonLogitOps()


def _row(setting: Setting, case: Case) -> dict[str, Any]:
    try:
        passes = case.agree(case.triton(), case.torch())
        ours, theirs = (seconds_queued(work, setting.device) for work in (case.triton, case.torch))
    except Exception as error:  # noqa: BLE001 - one that fails is a row of the report
        return {"case": case.name, "passes": False, "error": f"{type(error).__name__}: {error}"}
    return {
        "case": case.name,
        "passes": passes,
        "seconds": ours,
        "bytes_per_second": case.num_bytes / ours,
        "speed_over_torch": theirs / ours,
    }


def _between_matrices(setting: Setting, ours: Ops, tokens: int) -> Iterator[Case]:
    device, dtype, plain = setting.device, setting.dtype, Ops()
    hidden, inner = setting.pick(HIDDEN, 64), setting.pick(INNER, 96)
    size = dtype.itemsize

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).to(dtype)

    x, delta, norm = normal(tokens, hidden), normal(tokens, hidden), Norm(normal(hidden), 1e-5)
    yield Case(
        f"add and norm, {tokens} tokens",
        lambda: plain.add_norm(x, delta, norm)[1],
        lambda: ours.add_norm(x, delta, norm)[1],
        4 * tokens * hidden * size,
        _near,
    )
    gate, up = normal(tokens, 2 * inner).chunk(2, dim=1)
    yield Case(
        f"gate, {tokens} tokens",
        lambda: plain.gate_and_mul(gate, up, "silu"),
        lambda: ours.gate_and_mul(gate, up, "silu"),
        3 * tokens * inner * size,
        _near,
    )
    heads = HEADS + 2 * KV_HEADS
    fused = normal(tokens, heads, HEAD_DIM)
    turn = torch.randn((tokens, 1, HEAD_DIM // 2), device=device).repeat(1, 1, 2)
    angles = Angles(turn.cos().to(dtype), turn.sin().to(dtype))
    norms = HeadNorms(Norm(normal(HEAD_DIM), 1e-6), Norm(normal(HEAD_DIM), 1e-6))
    kv = LayerKV(*normal(2, -(-tokens // PAGE_SIZE), PAGE_SIZE, KV_HEADS, HEAD_DIM))
    slots = torch.randperm(tokens, device=device)

    def rotated(ops: Ops) -> torch.Tensor:
        q, k, v = fused.clone().split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        return ops.rotate_and_store(q, k, v, angles, norms, kv, slots)

    moved = (2 * fused.numel() + 2 * fused.numel()) * size  # with the copy, in both
    yield Case(f"rotate and store, {tokens} tokens", lambda: rotated(plain), lambda: rotated(ours), moved, _near)


def _on_logits(setting: Setting, ours: LogitOps, rows: int) -> Iterator[Case]:
    device, vocab = setting.device, setting.pick(VOCAB, 600)
    logits = (torch.randn((rows, vocab), device=device) * 3).to(setting.dtype)
    once = logits.numel() * logits.element_size()
    for name, params in SAMPLINGS.items():
        sampling, group = _rows(params, rows, vocab, device)
        yield Case(
            f"sample {rows} rows, {name}",
            lambda s=sampling, g=group: TORCH_LOGIT_OPS.sample(logits, s, [g]),
            lambda s=sampling, g=group: ours.sample(logits, s, [g]),
            once,
            lambda a, b: float((a != b).float().mean()) <= TIES,
        )
    counts = TokenCounts(vocab, device)
    for slot in range(rows):
        counts.open(counts.row_for(slot), torch.arange(50, device=device), torch.arange(40, 90, device=device))
    numbers = PenaltyValues(*torch.tensor([[1.2], [0.1], [0.3]], dtype=torch.float64, device=device).repeat(1, rows))
    at = torch.arange(rows, device=device)
    wide = logits.float()

    def penalized(ops: LogitOps) -> torch.Tensor:
        copy = wide.clone()
        ops.penalize(copy, at, counts.tables, at, numbers)
        return copy

    moved = wide.numel() * (2 * 4 + 4 + 1) + 2 * 4 * wide.numel()
    yield Case(f"penalise {rows} rows", lambda: penalized(TORCH_LOGIT_OPS), lambda: penalized(ours), moved, _near)
    yield Case(
        f"totals of {rows} rows", lambda: TORCH_LOGIT_OPS.totals(logits), lambda: ours.totals(logits), once, _near
    )


def _rows(params: SamplingParams, rows: int, vocab: int, device: torch.device) -> tuple[SamplingRows, RowGroup]:
    numbers = (
        torch.full((rows,), value, dtype=torch.float64) for value in (params.temperature, params.min_p, params.top_p)
    )
    temperature, min_p, top_p = (column.to(device) for column in numbers)
    top_k = torch.full((rows,), params.top_k if params.top_k > 0 else vocab, device=device)
    noise_keys = torch.tensor([noise_key(row, 0) for row in range(rows)], device=device)
    positions = torch.arange(rows, device=device)
    group = RowGroup(row_kind(params, vocab), torch.arange(rows, device=device))
    return SamplingRows(temperature, min_p, top_k, top_p, noise_keys, positions), group


def _near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether values are equal to a unit in the last place of bfloat16 of the largest value."""
    error = (found.float() - expected.float()).abs()
    return bool((error <= 2**-7 * expected.float().abs() + 2**-5 * (found.dtype == torch.bfloat16) + 1e-4).all())
