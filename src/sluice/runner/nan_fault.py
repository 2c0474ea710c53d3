"""A model whose logits are NaN where a fault is injected."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.runner.forwards import Model
from sluice.runner.layers import NewWalk, Walk
from sluice.types.faults import Fault


class NanFaultModel:
    """Makes some logits of another model NaN.

    Args:
        inner: the model that computes.
        faults: each names a step, whose first row gets NaN, or a token, whose rows do.
    """

    def __init__(self, inner: Model, faults: Sequence[Fault]) -> None:
        self._inner = inner
        self._numbers = {fault.number for fault in faults}
        self._tokens = [fault.token for fault in faults if fault.token is not None]
        self._steps = 0

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        return self._spoilt(batch, self._inner.forward(batch, kv, attention))

    def over(self, new_walk: NewWalk) -> NewWalk:
        """Return what begins the walks of `new_walk`, whose logits are NaN where a fault is injected."""

        def walk(batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> Walk:
            hidden, states = yield from new_walk(batch, kv, attention)
            return self._spoilt(batch, hidden), states

        return walk

    def _spoilt(self, batch: ForwardBatch, hidden: torch.Tensor) -> torch.Tensor:
        step, self._steps = self._steps, self._steps + 1
        device = batch.input_ids.device
        rows = torch.repeat_interleave(torch.tensor(batch.q_lens, device=device))
        bad = rows[torch.isin(batch.input_ids, torch.tensor(self._tokens, dtype=torch.int64, device=device))]
        of_logits = rows[batch.logit_rows]
        if step in self._numbers:
            bad = torch.cat((bad, of_logits[:1]))
        return hidden.masked_fill(torch.isin(of_logits, bad)[:, None], torch.nan)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._inner.logits(hidden)
