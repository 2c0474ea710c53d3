"""What is computed of logits, as an interface: chosen once, for a device. `TorchLogitOps` defines it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from sluice.runner import sampler
from sluice.runner.penalties import Penalties, penalized
from sluice.runner.sampler import SLICE_ELEMENTS, RowGroup, SamplingRows
from sluice.runner.token_counts import TokenCounts


class LogitOps(Protocol):
    """The large operations of a step after the model: each reads rows as long as the vocabulary."""

    def sample(self, logits: torch.Tensor, params: SamplingRows, groups: Sequence[RowGroup]) -> torch.Tensor:
        """One token for each row, see `sampler.sample`."""
        ...

    def penalize(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        counts: TokenCounts,
        count_rows: torch.Tensor,
        penalties: Penalties,
    ) -> None:
        """Penalise P rows of logits in place.

        Args:
            logits: [S, vocab] float32 or float64, contiguous.
            rows: [P] int64, which of them, no row twice.
            counts: of the tokens so far.
            count_rows: [P] int64, which of these.
            penalties: of P rows.
        """
        ...

    def totals(self, logits: torch.Tensor) -> torch.Tensor:
        """log(sum(exp(logits))) of each row of [R, vocab]: [R], float64 for float64, else float32.

        NaN where a row holds NaN or +inf, or nothing above -inf.
        """
        ...


class TorchLogitOps:
    """Plain torch."""

    def sample(self, logits: torch.Tensor, params: SamplingRows, groups: Sequence[RowGroup]) -> torch.Tensor:
        """See `LogitOps.sample`."""
        return sampler.sample(logits, params, groups)

    def penalize(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        counts: TokenCounts,
        count_rows: torch.Tensor,
        penalties: Penalties,
    ) -> None:
        """See `LogitOps.penalize`. Some rows at a time: the work takes several times their memory."""
        per_slice = max(1, SLICE_ELEMENTS[logits.device.type] // logits.shape[1])
        for start in range(0, len(rows), per_slice):
            part = slice(start, start + per_slice)
            in_prompt, outputs = counts.in_prompt(count_rows[part]), counts.outputs(count_rows[part])
            theirs = penalized(logits.index_select(0, rows[part]), in_prompt, outputs, penalties.of(part))
            logits.index_copy_(0, rows[part], theirs)

    def totals(self, logits: torch.Tensor) -> torch.Tensor:
        """See `LogitOps.totals`."""
        total = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32).logsumexp(-1)
        return total.masked_fill_(~total.isfinite(), torch.nan)


TORCH_LOGIT_OPS = TorchLogitOps()
