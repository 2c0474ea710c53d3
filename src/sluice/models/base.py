"""The interfaces of models: from a batch and its KV to hidden states, and from these to logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import nn

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.states import StateSpec
from sluice.models.checkpoint import CheckpointConfig
from sluice.models.linear import EmptyLinear, Layer, Packer
from sluice.models.ops import Ops
from sluice.models.shards import Block
from sluice.models.spec import ModelSpec
from sluice.parallel.layout import Layout
from sluice.parallel.member import ALONE, Member

Report = Callable[[int, int], None]
"""Called with how much of something is done, and how much there is to do."""


def no_report(done: int, total: int) -> None:
    """Report nothing."""


INNER = ("model.language_model.", "language_model.model.", "language_model.")
"""What the names of a text model's weights begin with inside a model that has further parts, for images or sound."""


@dataclass(frozen=True, slots=True)
class Stack:
    """How the matrices of all experts of a layer, or their biases, are stored as one tensor, whose first dimension is
    that of experts; or how several matrices of one MLP are."""

    stored: str
    """End of the name, behind a dot, once its parts were renamed."""
    parts: tuple[str, ...]
    """Layers of an expert that it has, one below the other."""
    into: str = "mlp.experts"
    """The experts' module, by its name in the place of `stored`."""
    leaf: str = "weight"
    transposed: bool = False
    """Matrices are stored as [in, out]."""
    interleaved: bool = False
    """The outputs of the parts take turns."""
    is_of_experts: bool = True
    """False: `into` is an MLP."""

    def matches(self, name: str) -> bool:
        """Return whether a tensor is stored so, by its name in the module."""
        return name.endswith(f".{self.stored}")

    def name(self, stored: str, expert: int, part: str) -> str:
        """Return the module's name of a part of an expert."""
        module = f"{self.into}.{expert}" if self.is_of_experts else self.into
        return f"{stored.removesuffix(self.stored)}{module}.{part}.{self.leaf}"

    def part(self, value: torch.Tensor, number: int) -> torch.Tensor:
        """Return a view of one part of an expert's value [out, in] or [out]."""
        value = value.t() if self.transposed else value
        if self.interleaved:
            return value[number :: len(self.parts)]
        return value.chunk(len(self.parts))[number]


@dataclass(frozen=True, slots=True)
class HeadRows:
    """How matrices of a gated delta net are stored as one tensor, whose rows are those of each k head in turn."""

    stored: str
    """End of the name, behind a dot, once its parts were renamed."""
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    """(end of the module's name, what its rows are of each k head: a "k" or a "v" head's size, or "1" for each v
    head)."""

    def divided(self, value: torch.Tensor, state: StateSpec) -> Iterator[tuple[str, torch.Tensor]]:
        """Iterate over the matrices, with the ends of their names.

        Raises:
            ValueError: there is another number of rows.
        """
        shared = state.value_heads // state.key_heads
        sizes = {"k": state.key_dim, "v": shared * state.value_dim, "1": shared}
        rows = [[sizes[each] for each in kinds] for _, kinds in self.parts]
        if len(value) != state.key_heads * sum(map(sum, rows)):
            raise ValueError(f"{state.key_heads} k heads have {sum(map(sum, rows))} rows each")
        parts = iter(value.unflatten(0, (state.key_heads, -1)).split([each for part in rows for each in part], dim=1))
        for (name, kinds), _ in zip(self.parts, rows, strict=True):
            yield name, torch.cat([next(parts).flatten(0, 1) for _ in kinds])


GATE_UP, DOWN = ("gate_proj", "up_proj"), ("down_proj",)
STACKS = (Stack("mlp.experts.gate_up_proj", GATE_UP), Stack("mlp.experts.down_proj", DOWN))
"""How transformers holds experts."""


@dataclass(frozen=True, slots=True)
class WeightRules:
    """Rules that turn tensors of a checkpoint into parameters of the module."""

    prefix: str = "model."
    """Prefix of the base model's names, which some checkpoints omit."""
    ignored: tuple[str, ...] = tuple(f"rotary_emb.{name}" for name in ("inv_freq", "cos_cached", "sin_cached"))
    """Suffixes of buffers that some versions store and that are no weights."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Parts of stored names, between dots, and what stands for them in the module."""
    stacks: tuple[Stack, ...] = ()
    """Tensors that hold all experts of a layer."""
    head_rows: tuple[HeadRows, ...] = ()
    """Tensors that hold several matrices of a layer with a state."""
    transposed: tuple[str, ...] = ()
    """Suffixes of matrices that are stored as [in, out]."""
    plus_one: tuple[str, ...] = ()
    """Suffixes of weights that are stored less 1."""
    negative_exp: tuple[str, ...] = ()
    """Suffixes of negative weights whose stored form is the logarithm of their amount."""
    convolutions: tuple[str, ...] = ()
    """Suffixes of weights [channels, taps] that may be stored as [channels, 1, taps]."""
    head: str = "lm_head.weight"
    embedding: str = "embed_tokens.weight"
    """The parameter that is also the head if the two are tied."""

    def inner(self, name: str) -> str:
        """Return the module's name of a stored tensor, or of a module in the checkpoint."""
        outer = next((prefix for prefix in INNER if name.startswith(prefix)), self.prefix)
        name = f".{name.removeprefix(outer)}."
        for stored, ours in self.renamed:
            name = name.replace(f".{stored}.", f".{ours}.")
        return name[1:-1]

    def stack_of(self, name: str) -> Stack | None:
        """Return how a tensor holds all experts of a layer; None: it does not.

        Args:
            name: the module's (`inner`).
        """
        return next((each for each in self.stacks if each.matches(name)), None)


class NoHead(nn.Module):
    """Stands for the head of a checkpoint that has none, or of a stage that is not the last: it gives no rows.

    Args:
        vocab_size: tokens of the shard.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self._vocab_size = vocab_size

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [0, vocab_size] of hidden states [0, hidden_size]."""
        assert not len(hidden), f"logits of {len(hidden)} rows of a model without a head"
        return hidden.new_empty((0, self._vocab_size))


class PagedLM(nn.Module, ABC):
    """A decoder-only language model over paged KV. It holds weights and no state of requests."""

    spec: ModelSpec
    has_head: bool = True
    """False: the checkpoint holds none, so there are hidden states and no logits."""
    member: Member = ALONE
    """The rank that it is the part of."""

    @abstractmethod
    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        """Compute one step: write the KV of every token, and return the hidden states that logits are computed from.

        Args:
            batch: the step.
            kv: the pages of each layer; written at `batch.kv_slots`.
            attention: the backend for this step.

        Returns:
            [R, hidden_size], the normed last hidden states of the tokens `batch.logit_rows`, in the model's dtype.
        """

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [R, vocab_size] of hidden states [R, hidden_size].

        They are in the model's dtype, or, of a model in bfloat16, in float32: in bfloat16, two numbers near 20 differ
        by an eighth or not at all.

        This is separate from `forward` so that a caller can compute many rows in slices: a row of logits is as large as
        dozens of hidden states.
        """


class CausalLM(PagedLM, Block):
    """A native model, whose weights are read tensor by tensor, or a rank's part of it.

    Ranks call `forward` with the same batch, each with the pages of its own layers and KV heads. A stage that is not
    the last sends the residual on, and returns the hidden states of no tokens. Shards compute the same hidden states,
    bit for bit, and `logits` gives those of a shard's own part of the vocabulary (`Place.vocabulary`).

    Args:
        spec: sizes and limits of all of it.
        tied: the head is the embedding.
        member: the rank.
    """

    rules: WeightRules
    reads: ClassVar[tuple[str, ...]] = ()
    """Fields of a config that it reads although most families do not support them (`checkpoint.NEUTRAL`)."""
    lm_head: Layer | None
    """The head; None until a tied one is packed."""

    def __init__(self, spec: ModelSpec, *, tied: bool, member: Member) -> None:
        super().__init__()
        self.spec = spec
        self.tied = tied
        self.member = member
        self.ops = Ops()

    def new_head(self) -> nn.Module | None:
        """Return a head with unset weights, None if it is the embedding."""
        spec, place = self.spec, self.member.place
        own = len(place.vocabulary(spec.vocab_size))
        if not place.is_last:
            return NoHead(own)
        is_embedding = self.tied and place.is_first
        return None if is_embedding else EmptyLinear(spec.hidden_size, own, bias=False, dtype=spec.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        assert self.lm_head is not None, "the weights are not packed"
        logits: torch.Tensor = self.lm_head(hidden)
        return logits

    def drop_head(self) -> None:
        """Do without the head, which the checkpoint lacks. Called before the weights are packed."""
        own = self.member.place.vocabulary(self.spec.vocab_size)
        self.lm_head, self.has_head = NoHead(len(own)), False

    def pack_head(self, packer: Packer, embedding: Layer | None) -> Layer | None:
        """Pack the head, and return the embedding to use from now on: a tied one shares its weight with the head."""
        if self.lm_head is None:
            assert embedding is not None
            embedding, self.lm_head = packer.tied(embedding, self.member.place.vocabulary(self.spec.vocab_size))
            return embedding
        if not isinstance(self.lm_head, NoHead):
            self.lm_head = packer.head(self.lm_head)
        return None if embedding is None else packer.embedding(embedding)

    def receive(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the residual [N, hidden_size] and what is to be added to it, from the stage before."""
        group, spec, tokens = self.member.pipeline_group, self.spec, len(batch.input_ids)
        both = torch.empty((2, tokens, spec.hidden_size), dtype=spec.dtype, device=batch.input_ids.device)
        x, delta = group.recv(both, self.member.place.stage - 1)
        return x, delta

    def send(self, x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Send what `receive` returns to the next stage, and return the hidden states of no tokens."""
        self.member.pipeline_group.send(torch.stack((x, delta)), self.member.place.stage + 1)
        return x.new_empty((0, x.shape[1]))

    def ignores(self, name: str) -> bool:
        """Return whether a stored tensor is no weight of a model with this config, by the name in the module."""
        return False

    def use(self, ops: Ops) -> None:
        """Compute the small operations with `ops`."""
        self.ops = ops

    @classmethod
    @abstractmethod
    def check_layout(cls, checkpoint: CheckpointConfig, layout: Layout) -> None:
        """Check that a model can be cut into the parts of a layout.

        Raises:
            CheckpointError: it cannot, or the config is not supported.
        """

    @classmethod
    @abstractmethod
    def from_checkpoint(cls, checkpoint: CheckpointConfig, dtype: torch.dtype, member: Member = ALONE) -> Self:
        """Build a rank's part of the module, with unset weights, on the default device. Its layout was checked.

        Raises:
            CheckpointError: the config is not supported.
        """

    @abstractmethod
    def pack(self, packer: Packer, report: Report = no_report) -> None:
        """Pack the weights, once, after they are loaded and before the first forward.

        Modules whose weights are packed into others are removed, and parameters change their names.

        Args:
            report: called with the layers that are packed, and with the number of all and the head.
        """
