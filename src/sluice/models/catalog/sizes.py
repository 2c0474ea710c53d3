"""Sizes of a model, as far as its memory and speed depend on them.

This imports no torch: the server, which suggests models by their sizes, has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sluice.models.spec import ExpertSizes

NUMBER_BYTES = 2
"""Bytes of a number of weights and KV, in bfloat16."""


class StateBytes(NamedTuple):
    """What the recurrent states of a model take."""

    layers: int
    """Layers that have one."""
    attending: int
    """Layers that have keys and values."""
    slot: int
    """Bytes of a running request, with one token behind the firm ones."""
    record: int
    """Bytes of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Sizes of a model. Only its matrices are counted: norms and biases weigh next to nothing."""

    name: str
    architecture: str = ""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_model_len: int
    """Length of the model's context, in tokens."""
    stored: int
    """Numbers in memory."""
    table: int
    """Numbers of the embedding; the head has as many, or is the embedding."""
    tied: bool
    """The head is the embedding."""
    kv: int
    """Numbers of a token's keys and values."""
    lookups: int = 0
    """Numbers of further tables of which a token needs one row."""
    experts: ExpertSizes | None = None
    """None: it has none."""
    states: StateBytes | None = None
    """None: its layers have no recurrent states."""

    @property
    def weights(self) -> int:
        """Numbers that each token is multiplied by."""
        return self.stored - self.lookups - self.idle - (0 if self.tied else self.table)

    @property
    def idle(self) -> int:
        """Numbers of the experts that do not compute a token."""
        experts = self.experts
        return 0 if experts is None else experts.layers * (experts.count - experts.chosen) * experts.parameters

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values."""
        return self.kv * NUMBER_BYTES
