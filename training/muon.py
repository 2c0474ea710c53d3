"""Muon (Jordan et al., 2024), whose updates of the matrices are computed in parts by all workers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration that pushes all singular values towards 1."""


class Muon(torch.optim.Optimizer):
    """Momentum whose direction is made orthogonal, for weights that are matrices.

    Every worker has all weights and equal gradients. It keeps the momentum of its share of the weights, and computes
    their updates; then all workers exchange their shares.

    Args:
        index, of: which of the workers this is.
    """

    def __init__(self, weights: Sequence[nn.Parameter], lr: float, index: int, of: int) -> None:
        super().__init__(weights, {"lr": lr})
        self.index = index
        self.of = of

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        weights: list[Tensor] = self.param_groups[0]["params"]
        updates = torch.zeros(sum(weight.numel() for weight in weights))
        places = updates.split([weight.numel() for weight in weights])
        for batch in same_shapes(weights)[self.index :: self.of]:
            self._update([weights[number] for number in batch], [places[number] for number in batch])
        if self.of > 1:
            distributed.all_reduce(updates)
        for weight, place in zip(weights, places, strict=True):
            weight.add_(place.view_as(weight), alpha=-self.param_groups[0]["lr"])

    def _update(self, weights: Sequence[Tensor], places: Sequence[Tensor]) -> None:
        """Write the updates of weights of one shape; their size is that of an update of AdamW."""
        directions = []
        for weight in weights:
            state = self.state[weight]
            momentum = state.setdefault("momentum", torch.zeros_like(weight))
            assert weight.grad is not None
            momentum.lerp_(weight.grad, 1 - MOMENTUM)
            directions.append(weight.grad.lerp(momentum, MOMENTUM))
        scale = 0.2 * max(weights[0].shape) ** 0.5
        for place, update in zip(places, orthogonal(torch.stack(directions)), strict=True):
            place.copy_(update.flatten()).mul_(scale)


def same_shapes(weights: Sequence[Tensor], most: int = 4) -> list[list[int]]:
    """Return the numbers of the weights, in groups of one shape and of at most `most`; the largest come first."""
    by_shape: dict[torch.Size, list[int]] = {}
    for number, weight in enumerate(weights):
        by_shape.setdefault(weight.shape, []).append(number)
    groups = sorted(by_shape.items(), key=lambda item: -item[0].numel())
    return [numbers[at : at + most] for _, numbers in groups for at in range(0, len(numbers), most)]


def orthogonal(matrices: Tensor) -> Tensor:
    """Return the nearest matrices whose singular values are about 1, of matrices [count, rows, columns]."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.transpose(1, 2)
        x = a * x + torch.baddbmm(gram, gram, gram, beta=b, alpha=c) @ x
    return x.transpose(1, 2) if tall else x
