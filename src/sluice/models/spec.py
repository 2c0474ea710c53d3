"""What the rest of the engine needs to know about a loaded model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch

from sluice.attention.spec import AttentionSpec, LayerHeads
from sluice.attention.states import StateSpec
from sluice.parallel.layout import Place

DTYPES: Mapping[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
INT4 = "int4"
FP8 = "fp8"
BLOCKS = "blocks"
"""Block types of a GGUF file, several in one model: never made here, only held as stored."""
ON_LOAD = ("int8", INT4, FP8)
"""How weights can be quantised while they are loaded. FP8 is also a format of checkpoints."""
AS_STORED = "-as-stored"
"""Follows a kind: weights that the checkpoint stores in it for such products are held so, and others in `dtype`."""


def holds(quantization: str, kind: str) -> bool:
    """Return whether a model of this quantisation holds weights of a kind as they are stored."""
    return quantization.removesuffix(AS_STORED) == kind


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint's weights are quantised."""

    method: str
    """The name of the format, which `--quantization` may give: "gptq", "compressed-tensors", ..."""
    description: str
    """Details such as "4-bit GPTQ in groups of 128"."""
    level: str = ""
    """How most matrices are stored, in a word: the method, or a type of GGUF."""
    kept: int = 0
    """Weights that are held as they are stored."""
    number_bytes: float = 0.0
    """Bytes of one number in them, on average."""


@dataclass(frozen=True, slots=True)
class BlockDiffusion:
    """How a model generates that fills a block of masked tokens in several passes."""

    block_size: int
    """Tokens of a block. Attention is causal across blocks, and sees all of its own."""
    mask_token_id: int
    """The input at positions that have no token yet."""


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Sizes of a model's mixtures of experts."""

    layers: int
    """Layers that have one."""
    count: int
    """Experts of a layer."""
    chosen: int
    """Experts that compute a token."""
    parameters: int
    """Numbers in the matrices of one expert."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and limits of a model, as loaded."""

    architecture: str
    """The name in `config.json`."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_model_len: int
    """Most tokens of one request, prompt and output together."""
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype
    """Dtype of weights, KV and computation."""
    implementation: str = "native"
    """"native" or "transformers": whose code computes it."""
    stored_as: Quantization | None = None
    """How the checkpoint's weights are quantised; None: they are not."""
    quantization: str = "none"
    """How its weights are held: "none", in `dtype`; one of `ON_LOAD`; or one of them with `AS_STORED`."""
    diffusion: BlockDiffusion | None = None
    """Block diffusion; None if the model generates token by token."""
    media_token_ids: tuple[int, ...] = ()
    """Tokens that stand for images and sound, which the text model alone does not take."""
    num_parameters: int = 0
    """Numbers in the weights of a native model; a head that is the embedding counts once."""
    experts: ExpertSizes | None = None
    """None: it has none."""
    unequal_kv: tuple[LayerHeads, ...] = ()
    """Heads of the layers that have keys and values of their own, in order, if they differ or if others have none."""
    state: StateSpec | None = None
    """Sizes of the state of a layer that has one; None: no layer has one."""
    num_states: int = 0
    """Layers that have a state in the place of keys and values."""

    @property
    def weight_bytes(self) -> float:
        """Bytes of one number in a linear layer; of four bits with the scales of groups of 32."""
        kind = self.quantization.removesuffix(AS_STORED)
        if kind == BLOCKS and self.stored_as is not None and self.stored_as.kept:
            return self.stored_as.number_bytes
        return {"int8": 1 + 2 / 32, FP8: 1, INT4: 0.5 + 2 / 32}.get(kind, self.dtype.itemsize)

    @property
    def table_bytes(self) -> float:
        """Bytes of one number in the embedding and the head."""
        if holds(self.quantization, BLOCKS):
            return self.weight_bytes
        return 1 + 2 / 32 if self.quantization in ("int8", INT4) else self.dtype.itemsize

    @property
    def kv_layers(self) -> tuple[LayerHeads, ...]:
        """Heads of each layer's keys and values, of those that have some of their own."""
        return self.unequal_kv or (LayerHeads(self.num_kv_heads, self.head_dim),) * self.num_layers

    @property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        """Sizes of its layers' attention, with the usual scale; equal ones once."""
        return tuple(
            replace(self.attention, num_kv_heads=layer.num_kv_heads, head_dim=layer.head_dim)
            for layer in dict.fromkeys(self.kv_layers)
        )

    @property
    def attention(self) -> AttentionSpec:
        """Sizes of its layers' attention, with the usual scale."""
        block_size = None if self.diffusion is None else self.diffusion.block_size
        scale = self.head_dim**-0.5
        return AttentionSpec(self.num_heads, self.num_kv_heads, self.head_dim, self.dtype, scale, block_size=block_size)

    def of(self, place: Place) -> Self:
        """Return the sizes of a rank's part: its layers and heads. Its part of the vocabulary is `Place.vocabulary`."""
        own = place.layers(self.num_layers)
        unequal = (
            layer._replace(num_kv_heads=len(place.part(layer.num_kv_heads)))
            for layer in self.unequal_kv[own.start : own.stop]
        )
        return replace(
            self,
            num_layers=len(own),
            num_heads=len(place.part(self.num_heads)),
            num_kv_heads=len(place.part(self.num_kv_heads)),
            unequal_kv=tuple(unequal),
        )
