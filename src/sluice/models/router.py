"""Routers, which choose the experts of each token."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

import torch

from sluice.models.ops import compute_dtype


class Score(Enum):
    """How the logits of experts become scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


class Choice(NamedTuple):
    """The experts of each token, by descending score."""

    ids: torch.Tensor
    """[T, k] int64"""
    weights: torch.Tensor
    """[T, k] float32; float64 in a model of float64."""


class Chooser(Protocol):
    """Chooses experts, as `Router` defines it."""

    def choose(self, logits: torch.Tensor, select_bias: torch.Tensor | None = None) -> Choice:
        """Choose the experts of each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """How experts are chosen. Where scores are equal, those with lower numbers are chosen."""

    experts: int
    chosen: int
    """Experts of each token."""
    score: Score = Score.SOFTMAX
    chooses_first: bool = False
    """The highest logits are chosen, and scores are made of those alone."""
    groups: int = 1
    """Groups of neighbouring experts, of which only `chosen_groups` may be chosen from."""
    chosen_groups: int = 1
    group_score: int = 1
    """The score of a group is the sum of so many of its highest ones."""
    renorm_eps: float | None = None
    """Weights are divided by their sum and this number; None: they are not."""
    scale: float = 1.0
    """Factor of the weights."""
    has_bias: bool = False
    """The logits have a bias."""
    has_select_bias: bool = False
    """A bias of the scores counts in the choice, and not in the weights."""
    is_wide: bool = False
    """The logits are computed in float32 in a model of a narrower dtype."""

    def choose(self, logits: torch.Tensor, select_bias: torch.Tensor | None = None) -> Choice:
        """Choose the experts of each token.

        Args:
            logits: [T, experts], in any floating-point dtype.
            select_bias: [experts] of `has_select_bias`, else None.
        """
        logits = logits.to(compute_dtype(logits.dtype))
        if self.chooses_first:
            ids = _highest(logits, self.chosen)
            return Choice(ids, logits.gather(1, ids).softmax(1))
        scores = logits.softmax(1) if self.score is Score.SOFTMAX else logits.sigmoid()
        choice = scores if select_bias is None else scores + select_bias
        if self.groups > 1:
            choice = self._within_groups(choice)
        ids = _highest(choice, self.chosen)
        weights = scores.gather(1, ids)
        if self.renorm_eps is not None:
            weights = weights / (weights.sum(1, keepdim=True) + self.renorm_eps)
        return Choice(ids, weights * self.scale)

    def _within_groups(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores, with those outside the best groups at minus infinity."""
        grouped = scores.unflatten(1, (self.groups, -1))
        best = _highest(grouped.topk(self.group_score, dim=2).values.sum(2), self.chosen_groups)
        is_out = torch.ones(grouped.shape[:2], dtype=torch.bool, device=scores.device).scatter_(1, best, value=False)
        return grouped.masked_fill(is_out[..., None], -torch.inf).flatten(1)


def _highest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Return the places [T, count] of the highest scores [T, N], the highest first. Of equal ones, lower places win.

    `topk` promises no order of equal ones.
    """
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
