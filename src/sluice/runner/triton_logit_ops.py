"""`LogitOps` by Triton's kernels: a few launches for all rows, nothing sorted or widened."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sluice.kernels.triton.masks import mask_rows
from sluice.kernels.triton.penalties import penalize
from sluice.kernels.triton.sampling import sample_rows
from sluice.kernels.triton.totals import totals
from sluice.runner.logit_ops import LogitOps, PenaltyValues, TokenTables
from sluice.runner.sampler import SLICE_ELEMENTS, RowGroup, RowKind, SamplingRows

RANKED = (RowKind.SHORT, RowKind.FULL)


class TritonLogitOps(LogitOps):
    """The operations by Triton's kernels. Torch computes float64."""

    def sample(self, logits: torch.Tensor, params: SamplingRows, groups: Sequence[RowGroup]) -> torch.Tensor:
        if logits.dtype == torch.float64:
            return super().sample(logits, params, groups)
        ranked = [group.rows for group in groups if group.kind in RANKED]
        return sample_rows(
            _dense_rows(logits),
            *params,
            torch.cat(ranked) if ranked else None,
            max(1, SLICE_ELEMENTS[logits.device.type] // logits.shape[1]),
        )

    def penalize(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        tables: TokenTables,
        table_rows: torch.Tensor,
        values: PenaltyValues,
    ) -> None:
        if logits.dtype == torch.float64:
            super().penalize(logits, rows, tables, table_rows, values)
            return
        # On a CPU the values are rows of a table, with gaps.
        penalize(logits, rows, *tables, table_rows, *(value.contiguous() for value in values))

    def mask(self, logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
        mask_rows(logits, rows, bits)

    def totals(self, logits: torch.Tensor) -> torch.Tensor:
        return super().totals(logits) if logits.dtype == torch.float64 else totals(_dense_rows(logits))


def _dense_rows(logits: torch.Tensor) -> torch.Tensor:
    """Return [R, vocab] with gaps between rows at most."""
    return logits if logits.stride(1) == 1 else logits.contiguous()
