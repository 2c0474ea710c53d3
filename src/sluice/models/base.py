"""What every model is: a module from a batch and its KV to hidden states to logits, with rules to read its weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import nn

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.models.checkpoint import CheckpointConfig
from sluice.models.linear import Packer
from sluice.models.ops import Ops
from sluice.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class WeightRules:
    """How tensor names in a checkpoint become parameter names of the module."""

    prefix: str
    """Put before the base model's names by some checkpoints and left out by others."""
    ignored: tuple[str, ...]
    """Ends of the names of buffers that some versions store and that carry no weight."""
    transposed: tuple[str, ...] = ()
    """Ends of the names of matrices stored as [in, out]."""
    head: str = "lm_head.weight"
    embedding: str = "embed_tokens.weight"
    """The parameter that the head is when the two are tied."""


class PagedLM(nn.Module, ABC):
    """A decoder-only language model over paged KV. It holds weights and nothing of any request."""

    spec: ModelSpec

    @abstractmethod
    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        """One step: write the KV of every token of the batch and return what the logits asked for are made of.

        Args:
            batch: the step.
            kv: the pages of each layer; written at `batch.kv_slots`.
            attention: what attends.

        Returns:
            [R, hidden_size], the last hidden states of the tokens `batch.logit_rows`, normed, in the model's dtype.
        """

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden_size] to [R, vocab_size], in the model's dtype.

        Apart from `forward`, so that a caller who wants many rows can take them in slices: a row of logits is as large
        as dozens of hidden states.
        """


class CausalLM(PagedLM):
    """One of our own: it says how its weights are read, tensor by tensor."""

    rules: ClassVar[WeightRules]

    @classmethod
    @abstractmethod
    def from_checkpoint(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> Self:
        """Build the module, with unset weights, on the default device.

        Raises:
            CheckpointError: the config is not supported.
        """

    @property
    @abstractmethod
    def tied(self) -> bool:
        """Whether the head is the embedding."""

    @abstractmethod
    def pack(self, packer: Packer) -> None:
        """Lay the weights out, once, when all are there. Only then can the model be computed.

        Modules whose weights are packed into others are gone afterwards, and parameters have other names.
        """

    def use(self, ops: Ops) -> None:
        """Take the small operations from `ops`. A model that has none of them does nothing."""
