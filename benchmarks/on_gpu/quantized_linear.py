"""Compares products with quantised weights with those in bfloat16, by the number of rows.

Shapes are of the large model's MLP. Every product is also compared with its definition in torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from benchmarks.on_gpu.clocks import seconds_queued
from benchmarks.on_gpu.setting import Setting
from sluice.models.cuda_packer import CudaPacker
from sluice.models.fp8_rows import fp8_rows
from sluice.models.linear import PlainLinear
from sluice.models.quantized import Fp8Weight, Int4Weight, QuantizedLinear, QuantizedWeight

SHAPES = ((4096, 28672), (14336, 4096))
"""Inputs and outputs."""
ROWS = (1, 16, 64, 512, 2048)
ERROR = 0.01
"""Largest accepted error, over the norm of the result."""


class Case(NamedTuple):
    """A weight, and what its product must give."""

    name: str
    weight: QuantizedWeight
    defined: Callable[[torch.Tensor], torch.Tensor]


def measure(setting: Setting) -> dict[str, Any]:
    """Return the seconds of a product for each weight and number of rows."""
    if not can_run(setting):
        return {"rows": [], "reached": True, "skipped": "Triton interprets only under TRITON_INTERPRET=1"}
    rows = []
    for inputs, outputs in [(setting.pick(a, 64), setting.pick(b, 96)) for a, b in SHAPES][: setting.pick(2, 1)]:
        dense = (torch.randn((outputs, inputs), device=setting.device) / inputs**0.5).to(setting.dtype)
        for case in _cases(dense, setting):
            rows += [_row(setting, case, dense, count) for count in ROWS[: setting.pick(len(ROWS), 1)]]
    return {"rows": rows, "reached": all(row["passes"] for row in rows)}


def _cases(dense: torch.Tensor, setting: Setting) -> Iterator[Case]:
    fp8 = Fp8Weight.quantize(dense)
    weight = fp8.dense(torch.float32)

    def in_fp8(x: torch.Tensor) -> torch.Tensor:
        values, scales, _ = fp8_rows(x)
        return functional.linear(values.float() * scales[:, None], weight)

    yield Case("fp8", fp8, in_fp8)
    for group in (32, 128)[: setting.pick(2, 1)]:
        int4 = Int4Weight.quantize(dense, group)
        widened = partial(functional.linear, weight=int4.dense(setting.dtype).float())
        yield Case(f"int4, groups of {group}", int4, lambda x, of=widened: of(x.float()))


def _row(setting: Setting, case: Case, dense: torch.Tensor, rows: int) -> dict[str, Any]:
    outputs, inputs = dense.shape
    name = f"{case.name}, {inputs} x {outputs}, {rows} rows"
    x = torch.randn((rows, inputs), device=setting.device).to(setting.dtype)
    try:
        layer = CudaPacker(setting.device).linear(QuantizedLinear(case.weight, None, setting.dtype))
        if isinstance(layer, PlainLinear):
            return {"case": name, "passes": False, "error": "no product for it on this device"}
        found, wanted = layer(x).float(), case.defined(x)
        error = float((found - wanted).norm() / wanted.norm())
        ours, theirs = (
            seconds_queued(work, setting.device) for work in (lambda: layer(x), lambda: functional.linear(x, dense))
        )
    except Exception as failure:  # noqa: BLE001 - one that fails is a row of the report
        return {"case": name, "passes": False, "error": f"{type(failure).__name__}: {failure}"}
    return {"case": name, "passes": error < ERROR, "seconds": ours, "speed_over_bfloat16": theirs / ours}


def can_run(setting: Setting) -> bool:
    """Return whether Triton's kernels can run: a CPU needs its interpreter."""
    return setting.device.type == "cuda" or (
        os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
    )
