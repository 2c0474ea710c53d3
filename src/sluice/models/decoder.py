"""The walk through a decoder that all families share: embedding, layers, last norm, head."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from torch import nn

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.models.base import CausalLM, Report, no_report
from sluice.models.blocks.attention import LayerContext
from sluice.models.blocks.layer import DecoderLayer, sum_and_norm
from sluice.models.checkpoint import CheckpointConfig, CheckpointError
from sluice.models.fp8_rows import plain
from sluice.models.layers import RMSNorm, Rotary, new_embedding
from sluice.models.linear import Layer, Packer
from sluice.models.plan import DecoderConfig, LayerPlan, QueryGrowth
from sluice.models.shards import BY_VOCABULARY, check_layout
from sluice.models.windows import WindowedLayers, windowed_layers
from sluice.parallel.layout import Layout
from sluice.parallel.member import ALONE, Member


class Decoder(CausalLM):
    """A decoder, or a rank's part of it. A family says what its layers are and how its config is read."""

    cuts = MappingProxyType({"embed_tokens": None, "norm": None, "lm_head": BY_VOCABULARY})
    layer: ClassVar[type[DecoderLayer]]

    @classmethod
    @abstractmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        """Read the config of a checkpoint.

        Raises:
            CheckpointError: a field is missing, out of range, or requires something unsupported.
        """

    def __init__(self, config: DecoderConfig, member: Member = ALONE) -> None:
        spec, place = config.spec, member.place
        super().__init__(spec, tied=config.tied, member=member)
        self.config = config
        self.has_adapters = False
        """Whether its layers have slots for adapters (`adapters/bank.py`)."""
        self.embed_tokens: Layer | None = (
            new_embedding(spec.vocab_size, spec.hidden_size, spec.dtype) if place.is_first else None
        )
        own = place.layers(spec.num_layers)
        self._plans = [config.layers[number] for number in own]
        size = config.rotary_dim or spec.head_dim
        turns = [None if plan.rope is None else (plan.rope, plan.head_dim or size) for plan in self._plans]
        distinct = [turn for turn in dict.fromkeys(turns) if turn is not None]
        self.rotaries = nn.ModuleList(Rotary(rope, rotated, spec.dtype) for rope, rotated in distinct)
        self._rotary_of = [None if turn is None else distinct.index(turn) for turn in turns]
        self._kv_of = places_of_kv(self._plans)
        self._state_of = places_of_states(self._plans)
        windowed = self.windowed_layers
        self._is_windowed = [windowed is not None and windowed.are_windowed[place] for place in self._kv_of]
        self.layers = nn.ModuleDict({str(number): self.layer(config, config.layers[number], member) for number in own})
        is_layer_norm = config.is_layer_norm
        self.norm = (
            RMSNorm(spec.hidden_size, config.norm_eps, spec.dtype, has_bias=is_layer_norm) if place.is_last else None
        )
        self.lm_head = self.new_head()

    @classmethod
    def check_layout(cls, checkpoint: CheckpointConfig, layout: Layout) -> None:
        config = cls.read(checkpoint, torch.bfloat16)
        reads_others = config.extra_size > 0 or any(plan.donor is not None for plan in config.layers)
        if layout.pipeline_size > 1 and reads_others:
            raise CheckpointError(
                f"--pp-size {layout.pipeline_size}: this {checkpoint.architecture} runs in one stage, as its last"
                " layers read keys and values, or embeddings, of the first ones: leave out --pp-size"
            )
        inner = {plan.inner_size or config.inner_size for plan in config.layers if plan.has_mlp}
        inner |= {plan.experts.inner_size for plan in config.layers if plan.experts is not None}
        if layout.size > 1 and config.spec.num_states:
            raise CheckpointError(
                f"--tp-size {layout.tensor_size} --pp-size {layout.pipeline_size}: {checkpoint.architecture} has layers"
                " with a recurrent state, which one device computes alone: leave out --tp-size and --pp-size"
            )
        check_layout(config.spec, inner, layout)

    @property
    def windowed_layers(self) -> WindowedLayers | None:
        """Its layers, or a rank's, with a window; None: there are none."""
        return windowed_layers(self._plans)

    @classmethod
    def from_checkpoint(cls, checkpoint: CheckpointConfig, dtype: torch.dtype, member: Member = ALONE) -> Self:
        return cls(cls.read(checkpoint, dtype), member)

    def pack(self, packer: Packer, report: Report = no_report) -> None:
        for number, layer in enumerate(self.layers.values()):
            report(number, len(self.layers) + 1)
            assert isinstance(layer, DecoderLayer)
            layer.pack(packer)
        self.embed_tokens = self.pack_head(packer, self.embed_tokens)

    def embed(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the residual [N, hidden_size] of a step's tokens, and what is to be added to it, if anything."""
        assert self.embed_tokens is not None, "a stage that is not the first"
        x = self.embed_tokens(batch.input_ids)
        return (x if self.config.embedding_scale == 1 else x * self.config.embedding_scale), None

    def extras(self, batch: ForwardBatch, x: torch.Tensor) -> Sequence[torch.Tensor | None]:
        """Return what each layer gets of each token beside the residual, [N, size] each.

        Args:
            x: [N, hidden_size], the embeddings.
        """
        return [None] * len(self.layers)

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        return self.forward_with_states(batch, kv, attention, ())[0]

    def forward_with_states(
        self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention, layers: Sequence[int]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Compute a step as `forward` does, and hand out what enters some layers: heads like EAGLE-3's draft from that.

        Args:
            layers: numbers of layers, from 0, ascending. Only a model that is not cut into stages has all of them.

        Returns:
            What `forward` returns, and the residual [N, hidden_size] that enters each of `layers`, of all tokens.
        """
        walk = self.walk(batch, kv, attention, layers)
        while True:
            try:
                next(walk)
            except StopIteration as ended:
                found: tuple[torch.Tensor, list[torch.Tensor]] = ended.value
                return found

    def walk(
        self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention, layers: Sequence[int] = ()
    ) -> Generator[None, None, tuple[torch.Tensor, list[torch.Tensor]]]:
        """Compute a step as `forward_with_states` does, and pause before each layer. The model may compute other steps
        meanwhile: what this one needs from layer to layer is its own. A stage behind the first one waits for what the
        one before it sends before the first pause, and what it sends itself follows on its last layer."""
        x, delta = self.receive(batch) if self.embed_tokens is None else self.embed(batch)
        extras = self.extras(batch, x)
        angles = [rotary(batch.positions) for rotary in self.rotaries]
        growth = None if self.config.query_growth is None else query_factors(batch, self.config.query_growth, x.dtype)
        adapters = batch.adapters if self.has_adapters else None
        states: list[torch.Tensor] = []
        last = len(self.layers) - 1 if self.member.place.is_last else None
        of_windows = batch.of_windows()
        for number, layer in enumerate(self.layers.values()):
            yield
            if number in layers:
                states.append(x.clone() if delta is None else x + delta)
            rotary = self._rotary_of[number]
            own = None if rotary is None else angles[rotary]
            pages, extra, place = kv[self._kv_of[number]], extras[number], self._state_of[number]
            view = of_windows if self._is_windowed[number] else batch
            state = None if place is None else batch.layer_states[place]
            context = LayerContext(view, pages, attention, self.ops, own, growth, extra, adapters, state)
            # Of the model's last layer's other tokens only the keys and values are needed.
            x, delta = layer(x, delta, context, batch.logit_rows if number == last else None)
        if self.norm is None:
            return self.send(x, torch.zeros_like(x) if delta is None else delta), states
        return plain(sum_and_norm(x, delta, self.norm, self.ops)[1]), states

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits, cap = super().logits(hidden), self.config.logit_softcap
        if self.config.logit_divisor != 1:
            logits = logits / self.config.logit_divisor
        return logits if cap is None else torch.tanh(logits / cap) * cap


def places_of_kv(plans: Sequence[LayerPlan]) -> list[int]:
    """Return the place of each layer's pages among those of the layers that have some of their own; 0 for a layer that
    has none."""
    places: list[int] = []
    count = 0
    for plan in plans:
        if not plan.has_kv:
            places.append(0)
            continue
        places.append(count if plan.donor is None else places[plan.donor])
        count += plan.donor is None
    return places


def places_of_states(plans: Sequence[LayerPlan]) -> list[int | None]:
    """Return the place of each layer's state among those of the layers that have one; None for the others."""
    numbers = iter(range(len(plans)))
    return [None if plan.state is None else next(numbers) for plan in plans]


def query_factors(batch: ForwardBatch, growth: QueryGrowth, dtype: torch.dtype) -> torch.Tensor:
    """Return the factor of each token's queries, [N, 1, 1]."""
    lengths = (batch.positions // growth.length).to(torch.float64)
    return (1 + growth.beta * torch.log1p(lengths)).to(dtype)[:, None, None]
