"""`LogitOps` by Triton's kernels: a few launches for all rows, nothing sorted and nothing widened."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sluice.runner.logit_ops import TORCH_LOGIT_OPS
from sluice.runner.penalties import Penalties
from sluice.runner.sampler import SLICE_ELEMENTS, RowGroup, RowKind, SamplingRows
from sluice.runner.token_counts import TokenCounts
from sluice.triton.penalties import penalize
from sluice.triton.sampling import sample_rows
from sluice.triton.totals import totals

RANKED = (RowKind.SHORT, RowKind.FULL)


class TritonLogitOps:
    """See `LogitOps`. float64 is left to torch."""

    def sample(self, logits: torch.Tensor, params: SamplingRows, groups: Sequence[RowGroup]) -> torch.Tensor:
        """See `LogitOps.sample`."""
        if logits.dtype == torch.float64:
            return TORCH_LOGIT_OPS.sample(logits, params, groups)
        ranked = [group.rows for group in groups if group.kind in RANKED]
        return sample_rows(
            _dense_rows(logits),
            params.temperature,
            params.min_p,
            params.top_k,
            params.top_p,
            params.streams,
            params.positions,
            torch.cat(ranked) if ranked else None,
            max(1, SLICE_ELEMENTS[logits.device.type] // logits.shape[1]),
        )

    def penalize(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        counts: TokenCounts,
        count_rows: torch.Tensor,
        penalties: Penalties,
    ) -> None:
        """See `LogitOps.penalize`."""
        if logits.dtype == torch.float64:
            TORCH_LOGIT_OPS.penalize(logits, rows, counts, count_rows, penalties)
            return
        all_in_prompt, all_outputs = counts.tables
        penalize(
            logits,
            rows,
            all_in_prompt,
            all_outputs,
            count_rows,
            penalties.repetition.contiguous(),  # on a CPU they are rows of a table
            penalties.frequency.contiguous(),
            penalties.presence.contiguous(),
        )

    def totals(self, logits: torch.Tensor) -> torch.Tensor:
        """See `LogitOps.totals`."""
        return TORCH_LOGIT_OPS.totals(logits) if logits.dtype == torch.float64 else totals(_dense_rows(logits))


def _dense_rows(logits: torch.Tensor) -> torch.Tensor:
    """[R, vocab] with gaps between rows at most."""
    return logits if logits.stride(1) == 1 else logits.contiguous()
