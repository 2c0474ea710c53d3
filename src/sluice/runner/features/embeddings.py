"""Embeddings: the hidden states of last tokens, for requests whose result they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sluice.runner.features.base import Feature, Outcome, StagedFeature, StepLogits
from sluice.runner.inputs import HostBatch
from sluice.types import NewSlot

BAD_EMBEDDING = "the model gave a hidden state that is NaN or infinite, which is no embedding"


class StagedEmbeddings(StagedFeature):
    """Embeddings of one step."""

    def sampled(self, logits: StepLogits) -> tuple[torch.Tensor, ...]:
        return (logits.embedded.float(),)

    def report(self, tensors: Sequence[torch.Tensor], outcome: Outcome) -> None:
        vectors = tensors[0].numpy().astype("<f4", copy=False)
        outcome.embeddings = [vector.tobytes() for vector in vectors]
        for row in outcome.host.embed_rows[~np.isfinite(vectors).all(axis=1)].tolist():
            outcome.failed.setdefault(row, BAD_EMBEDDING)


class Embeddings(Feature):
    """Keeps nothing by slot: the plan says which rows embed."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        pass

    def fill(self, new: NewSlot) -> None:
        pass

    def stage(self, host: HostBatch) -> StagedEmbeddings | None:
        return StagedEmbeddings() if len(host.embed_rows) else None
