"""`LogitOps` for a CPU, where most of a mask need not be looked at bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sluice.kernels.cpu.abi import MaskCall
from sluice.kernels.cpu.library import Kernels
from sluice.runner.logit_ops import LogitOps

MINUS_INF: Mapping[torch.dtype, tuple[torch.dtype, int]] = {
    torch.float64: (torch.int64, -0x10000000000000),
    torch.float32: (torch.int32, -0x800000),
    torch.float16: (torch.int16, -0x400),
    torch.bfloat16: (torch.int16, -0x80),
}
"""Type of logits -> an integer of the same size, and that of -inf's bits."""


class CpuLogitOps(LogitOps):
    """The operations on a CPU."""

    def mask(self, logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
        """Exclude tokens as `LogitOps.mask` does, by whole words of the mask.

        Between quotes a grammar allows nearly everything, outside of them nearly nothing: what is written is only what
        is excluded, or the row anew with the little that is allowed.
        """
        kind, minus_inf = MINUS_INF[logits.dtype]
        values = logits.view(kind).numpy()
        for row, words in zip(rows.tolist(), bits.numpy(), strict=True):
            _mask_row(values[row], words, minus_inf)


def _mask_row(values: npt.NDArray[Any], words: npt.NDArray[np.int32], minus_inf: int) -> None:
    """Mask a row of logits, whose bits are those of integers."""
    used = np.flatnonzero(words)
    if len(used) < len(words) // 2:
        allowed = _ids(words, used, len(values))
        kept = values[allowed]
        values.fill(minus_inf)
        values[allowed] = kept
    else:
        values[_ids(~words, np.flatnonzero(~words), len(values))] = minus_inf


def _ids(words: npt.NDArray[np.int32], used: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.intp]:
    """Return the tokens below `count` whose bits are set in some words of a mask."""
    found = np.unpackbits(words[used].view(np.uint8), bitorder="little").reshape(-1, 32).nonzero()
    ids = used[found[0]] * 32 + found[1]
    return ids[ids < count]


CPU_LOGIT_OPS = CpuLogitOps()


class NativeLogitOps(CpuLogitOps):
    """The operations on a CPU, masks by a compiled kernel on all threads."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def mask(self, logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
        """Exclude tokens as `LogitOps.mask` does; `rows` and `bits` without gaps."""
        call = MaskCall(
            logits=logits.data_ptr(),
            rows=rows.data_ptr(),
            bits=bits.data_ptr(),
            stride=logits.stride(0),
            minus_inf=MINUS_INF[logits.dtype][1],
            count=len(rows),
            vocab=logits.shape[1],
            words=bits.shape[1],
            size=logits.element_size(),
        )
        self._kernels.mask_rows(call)
