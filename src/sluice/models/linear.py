"""Linear layers as they are computed, and the packer that creates them.

A checkpoint stores q, k and v, or gate and up, as separate matrices, and `nn.Linear` holds them while they are read. A
packer then joins layers with the same input into one, lays out its weight for the machine and drops the originals. So a
step computes fewer and larger products, and no weight is stored twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from sluice.models.blocks.lora import LoraSlots
from sluice.models.experts import (
    ClampedGate,
    ClampedSwiGLU,
    ExpertActivation,
    ExpertLayers,
    PackedExpert,
    PlainExperts,
    Ungated,
)
from sluice.models.fp8_rows import Fp8Rows, Rows, fp8_rows
from sluice.models.ops import ACTIVATIONS, Ops
from sluice.models.quantized import (
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    QuantizedLinear,
    QuantizedWeight,
    int4_linear,
    int8_linear,
)
from sluice.models.router import Chooser, Router
from sluice.models.spec import BLOCKS
from sluice.parallel.group import Group

Source = nn.Linear | QuantizedLinear
Layer = Any
"""A layer of a model: a `Source` until the weights are packed, then the module that a `Packer` made of it."""
"""A layer as it was read."""


class EmptyLinear(nn.Linear):
    """A linear layer whose weight has no values until it is read. `nn.Linear` draws random ones, also on "meta"."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class WideLinear(EmptyLinear):
    """A linear layer that is not quantised while it is loaded, such as that of a router: its errors choose others."""


class Tied(NamedTuple):
    """An embedding and the head that shares its weight."""

    embedding: nn.Module
    """[N] int64 token ids to [N, hidden_size]."""
    head: nn.Module
    """[R, hidden_size] to [R, vocab_size]."""


class PlainLinear(nn.Module):
    """A product by torch."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        return functional.linear(x, self.weight, self.bias)


class Int8Linear(nn.Module):
    """A product with an int8 weight by torch: slow, for processors and dtypes without kernels."""

    def __init__(self, weight: Int8Weight, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.values, self.scales, self.bias = weight.values, weight.scales, bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        return int8_linear(x, Int8Weight(self.values, self.scales), self.bias)


class Int4Linear(nn.Module):
    """A product with a weight of four bits by torch: slow, for processors and dtypes without kernels."""

    def __init__(self, weight: Int4Weight, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.values, self.scales, self.minimums, self.bias = weight.values, weight.scales, weight.minimums, bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        return int4_linear(x, Int4Weight(self.values, self.scales, self.minimums), self.bias)


class Int8Embedding(nn.Module):
    """Looks up tokens in an int8 weight.

    Args:
        dtype: of the rows that it returns.
    """

    def __init__(self, weight: Int8Weight, dtype: torch.dtype) -> None:
        super().__init__()
        self.values, self.scales, self.dtype = weight.values, weight.scales, dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[N] int64 to [N, in_features]."""
        return (self.values[ids] * self.scales[ids][:, None]).to(self.dtype)


class Fp8Linear(nn.Module):
    """A product with a weight in e4m3, and rows that are quantised, each by itself (W8A8 dynamic).

    Args:
        quantize: quantises rows that were not quantised where they were computed.
    """

    def __init__(
        self, weight: Fp8Weight, bias: torch.Tensor | None, quantize: Callable[[torch.Tensor], Fp8Rows] = fp8_rows
    ) -> None:
        super().__init__()
        self.values, self.scales = (nn.Parameter(each, requires_grad=False) for each in (weight.values, weight.scales))
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._quantize = quantize

    def forward(self, x: Rows) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        rows = x if isinstance(x, Fp8Rows) else self._quantize(x)
        if not len(rows.values):
            return self.scales.new_empty((0, len(self.scales)), dtype=rows.dtype)
        return torch._scaled_mm(
            rows.values,
            self.values.t(),
            scale_a=rows.scales[:, None],
            scale_b=self.scales[None],
            bias=self.bias,
            out_dtype=rows.dtype,
        )


class Activated(nn.Module):
    """A layer followed by an activation."""

    def __init__(self, layer: nn.Module, activation: str) -> None:
        super().__init__()
        self.layer = layer
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        return self.activation(self.layer(x))


class Gated(nn.Module):
    """A layer that computes gate and up side by side, followed by `activation(gate) * up`."""

    def __init__(self, layer: nn.Module, activation: str) -> None:
        super().__init__()
        self.layer = layer
        self.activation = activation
        self.to_fp8 = False

    def forward(self, x: Rows, ops: Ops) -> Rows:
        """[N, in_features] to [N, half of the layer's outputs]."""
        return self._gated(self.layer(x), ops)

    def adapted(self, x: Rows, ops: Ops, adapters: torch.Tensor, slots: LoraSlots) -> Rows:
        """Return what `forward` does, with what adapters add to gate and up: see `Ops.add_lora`."""
        both: torch.Tensor = self.layer(x)
        ops.add_lora(both, x, adapters, slots)
        return self._gated(both, ops)

    def _gated(self, both: torch.Tensor, ops: Ops) -> Rows:
        gate, up = both.chunk(2, dim=-1)
        return ops.gate_and_mul(gate, up, self.activation, to_fp8=self.to_fp8)


def takes_fp8(layer: nn.Module) -> bool:
    """Return whether a layer quantises its inputs to e4m3, so that they may come quantised."""
    return isinstance(layer.layer if isinstance(layer, Gated | RowParallel) else layer, Fp8Linear)


class RowParallel(nn.Module):
    """A layer that is cut by its inputs: a shard computes a part of every output, and the parts are summed.

    Args:
        group: the shards.
    """

    def __init__(self, layer: nn.Module, group: Group) -> None:
        super().__init__()
        self.layer = layer
        self.group = group

    def forward(self, x: Rows) -> torch.Tensor:
        """[N, the shard's in_features] to [N, out_features]."""
        return self.group.all_reduce(self.layer(x))


def with_added(layer: Layer, x: Rows, add: Callable[[torch.Tensor], None]) -> torch.Tensor:
    """Return the outputs of a packed layer, with what `add` adds in place to those that a shard computes."""
    y: torch.Tensor
    if isinstance(layer, RowParallel):
        y = layer.layer(x)
        add(y)
        return layer.group.all_reduce(y)
    y = layer(x)
    add(y)
    return y


class Packer:
    """Creates layers with packed weights, and owns the layers that are passed to it.

    This packer only joins weights and leaves the products to torch, on any device and in any dtype.
    """

    def why_not(self, kind: str, dtype: torch.dtype) -> str | None:
        """Return why weights that are quantised already are better dequantised; None: products take them as they are.

        Args:
            kind: "int8", "int4", "fp8" or "blocks".
            dtype: of the model.
        """
        if kind == BLOCKS:
            return "blocks of a GGUF file are multiplied as they are stored by the compiled kernels, in bfloat16"
        return f"products in {kind} need a GPU; on a CPU there are those of --quantization int8 and int4"

    widened: int = 0
    """Layers that were dequantised: their parts have no common form, or no product takes them."""

    def linear(self, *parts: Source, activation: str | None = None) -> nn.Module:
        """Join layers with the same input into one.

        Args:
            parts: layers of one dtype, all with or all without a bias. Unless all are quantised to numbers of one kind,
                those that are quantised are dequantised.
            activation: applied to the outputs; a key of `ACTIVATIONS`.

        Returns:
            A module from [N, in_features] to [N, sum of the parts' out_features], the parts' outputs in their order.
        """
        dtype = parts[0].dtype if isinstance(parts[0], QuantizedLinear) else parts[0].weight.dtype
        return activated(self._product(*self._joined(*parts), dtype), activation)

    def head(self, layer: Source) -> nn.Module:
        """Create a head: a linear layer whose outputs are logits, in the model's dtype or in float32."""
        return self.linear(layer)

    def gated(self, *parts: Source, activation: str) -> nn.Module:
        """Join two layers with the same input: the activation of the first, times the second.

        Args:
            parts: both, or one layer that is both, side by side.

        Returns:
            A module from (x [N, in_features], the model's `Ops`) to [N, out_features].
        """
        return Gated(self.linear(*parts), activation)

    def router(self, router: Router) -> Chooser:
        """Return what chooses experts as this router does."""
        return router

    def experts(self, experts: Iterable[ExpertLayers], activation: ExpertActivation) -> nn.Module:
        """Create the experts of a layer, or a shard's part of each.

        Args:
            experts: in their order. Each is dropped once it is packed, so that at most one exists twice.

        Returns:
            A module like `PlainExperts`: from (x [T, hidden_size], ids [T, k] int64, weights [T, k] float32, the
            model's `Ops`) to [T, hidden_size].
        """
        return PlainExperts([self._expert(layers, activation) for layers in experts])

    def _expert(self, layers: ExpertLayers, activation: ExpertActivation) -> PackedExpert:
        if isinstance(activation, ClampedSwiGLU):
            gated: nn.Module = ClampedGate(self.linear(layers.gate, layers.up), activation)
        elif layers.gate is None:
            gated = Ungated(self.linear(layers.up, activation=activation))
        else:
            gated = self.gated(layers.gate, layers.up, activation=activation)
        return PackedExpert(gated, self.linear(layers.down))

    def row_parallel(self, layer: Source, group: Group) -> nn.Module:
        """Create a layer that is cut by its inputs; its outputs are summed over the shards."""
        packed = self.linear(layer)
        return packed if group.size == 1 else RowParallel(packed, group)

    def tied(self, embedding: nn.Embedding | QuantizedLinear, rows: range) -> Tied:
        """Create embedding and head from one weight.

        Args:
            rows: of the weight, that the head has. They begin at a multiple of `BLOCK`.
        """
        own = slice(rows.start, rows.stop)
        if isinstance(embedding, QuantizedLinear):
            weight = int8_of(embedding)
            head = Int8Linear(Int8Weight(weight.values[own], weight.scales[own]), None)
            return Tied(Int8Embedding(weight, embedding.dtype), head)
        return Tied(embedding, PlainLinear(embedding.weight[own], None))

    def embedding(self, embedding: nn.Embedding | QuantizedLinear) -> nn.Module:
        """Create an embedding whose weight is not shared."""
        if isinstance(embedding, QuantizedLinear):
            return Int8Embedding(int8_of(embedding), embedding.dtype)
        return embedding

    def _product(
        self, weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> nn.Module:
        """Create the layer of one weight, in a model of `dtype`."""
        match weight:
            case Int8Weight():
                return Int8Linear(weight, bias)
            case Int4Weight():
                return Int4Linear(weight, bias)
            case Fp8Weight():
                return Fp8Linear(weight, bias)
        assert isinstance(weight, torch.Tensor), f"a product by torch with {type(weight).__name__}"
        return PlainLinear(weight, bias)

    def _joined(self, *parts: Source) -> tuple[torch.Tensor | QuantizedWeight, torch.Tensor | None]:
        """Return the joined weight [sum of out_features, in_features] and bias; of a single layer its own, no copy."""
        bias = joined_bias(parts)
        quantised = [part.weight for part in parts if isinstance(part, QuantizedLinear)]
        for kind in (Int8Weight, Int4Weight, Fp8Weight):
            same: list[Any] = [weight for weight in quantised if isinstance(weight, kind)]
            if len(same) == len(parts):
                return kind.joined(same), bias
        self.widened += bool(quantised)
        weights = [
            part.weight.dense(part.dtype) if isinstance(part, QuantizedLinear) else part.weight.data for part in parts
        ]
        return weights[0] if len(parts) == 1 else torch.cat(weights), bias


def joined_bias(parts: Sequence[Source]) -> torch.Tensor | None:
    """Return the biases of layers, one behind the other; of a single layer its own. All or none must have one."""
    biases = [part.bias.data for part in parts if part.bias is not None]
    assert len(biases) in (0, len(parts)), f"{len(biases)} of {len(parts)} layers have a bias"
    return None if not biases else biases[0] if len(parts) == 1 else torch.cat(biases)


def activated(layer: nn.Module, activation: str | None) -> nn.Module:
    """Return the layer, followed by an activation if one is given."""
    return layer if activation is None else Activated(layer, activation)


def int8_of(embedding: QuantizedLinear) -> Int8Weight:
    """Return the weight of an embedding, which is int8: no other kind can be looked up."""
    assert isinstance(embedding.weight, Int8Weight), f"an embedding of {type(embedding.weight).__name__}"
    return embedding.weight
