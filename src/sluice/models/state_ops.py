"""The operations of layers with a recurrent state, as an interface that is chosen like `Ops`."""

from __future__ import annotations

import torch

from sluice.attention.states import StateStep
from sluice.models.recurrence import (
    ConvWeights,
    DeltaHeads,
    DeltaInputs,
    Mamba2Heads,
    Mamba2Inputs,
    Tokens,
    causal_conv,
    recurrence,
)


class StateOps:
    """The operations in plain torch on any device and dtype. Each reads and moves the state of its step's rows."""

    def causal_conv(self, x: torch.Tensor, conv: ConvWeights, step: StateStep) -> torch.Tensor:
        """Return the convolution over each token of x [N, channels] and those before it in its row, and keep the
        columns that later steps need.

        Sums are in float32 (float64 for float64), over tokens in ascending order, and are rounded once.

        Args:
            x: the raw columns, in the model's dtype.
        """
        return causal_conv(x, conv, step)

    def recurrence(self, tokens: Tokens, step: StateStep) -> torch.Tensor:
        """Return what each token reads of its row's state, [N, value_heads, value_dim] in the state's dtype, and
        update the state (`models/recurrence.py`)."""
        return recurrence(tokens, step)

    def delta_net(self, given: DeltaInputs, heads: DeltaHeads, step: StateStep) -> torch.Tensor:
        """Return the `recurrence` of a gated delta net.

        q and k are divided by their lengths, and q by the root of `key_dim`. The decay is
        `decay_rates * softplus(steps + step_bias)`, and beta is `sigmoid(rates)`. Rows of inputs may be strided.
        """
        return self.recurrence(given.tokens(heads), step)

    def mamba2(self, given: Mamba2Inputs, heads: Mamba2Heads, step: StateStep) -> torch.Tensor:
        """Return the `recurrence` of Mamba-2, and `skip * v` added to it.

        A step is `softplus(steps + step_bias)` within the limits, the decay is `decay_rates * step`, and v counts times
        its step. Rows of inputs may be strided.
        """
        found = self.recurrence(given.tokens(heads), step)
        return found + given.v.to(found.dtype) * heads.skip.unsqueeze(-1)


TORCH_STATE_OPS = StateOps()
