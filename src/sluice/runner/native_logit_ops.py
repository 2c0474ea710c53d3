"""`LogitOps` for a CPU with compiled kernels."""

from __future__ import annotations

import torch

from sluice.kernels.cpu.abi import MaskCall
from sluice.kernels.cpu.library import Kernels
from sluice.runner.cpu_logit_ops import MINUS_INF, CpuLogitOps


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
