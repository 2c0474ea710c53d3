"""Which part of each weight a shard holds (Shoeybi et al., "Megatron-LM", 2019).

A layer cut by its outputs computes some of them, and the next one, cut by its inputs, computes a part of every output
from these. The parts are summed over the shards (`linear.RowParallel`), and a bias of such a layer is on the first
shard alone. Embeddings and norms are whole on every shard.

Every block says how its weights are cut. A weight without a rule is an error, and not silently whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from sluice.models.checkpoint import CheckpointError
from sluice.models.quantized import Int4Weight, QuantizedWeight
from sluice.models.spec import ModelSpec
from sluice.models.stored_blocks import StoredBlocks
from sluice.parallel.layout import WORD, Layout, Place

OUTPUTS, INPUTS = 0, 1
"""Dimensions of a weight [out_features, in_features]."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a weight that is on a shard.

    Args:
        dim: `OUTPUTS` or `INPUTS`.
        ranges: parts of the dimension, in order.
    """

    dim: int
    ranges: tuple[range, ...]

    def of(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the part of a weight [out, in] or a bias [out]; of a single range a view."""
        parts = [weight.narrow(self.dim, each.start, len(each)) for each in self.ranges]
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)

    def of_quantized(self, weight: QuantizedWeight) -> QuantizedWeight:
        """Return the part of a quantised weight, with the scales of all of it.

        Raises:
            ValueError: it would begin or end inside a group of inputs with one scale, or inside a block.
        """
        if isinstance(weight, StoredBlocks):
            return weight.inputs(*self.ranges) if self.dim == INPUTS else weight.outputs(*self.ranges)
        if not isinstance(weight, Int4Weight):
            return type(weight)(self.of(weight.values), weight.scales if self.dim == INPUTS else self.of(weight.scales))
        if self.dim == OUTPUTS:
            minimums = None if weight.minimums is None else self.of(weight.minimums)
            return Int4Weight(self.of(weight.values), self.of(weight.scales), minimums)
        if any(each.start % weight.group or len(each) % weight.group for each in self.ranges):
            sizes = " and ".join(str(len(each)) for each in self.ranges)
            raise ValueError(f"groups of {weight.group} inputs do not divide a shard's {sizes}")
        in_bytes, in_groups = self._divided(2), self._divided(weight.group)
        minimums = None if weight.minimums is None else in_groups.of(weight.minimums)
        return Int4Weight(in_bytes.of(weight.values), in_groups.of(weight.scales), minimums)

    def _divided(self, by: int) -> Cut:
        return Cut(self.dim, tuple(range(each.start // by, each.stop // by) for each in self.ranges))


Ranges = Callable[[int, ModelSpec, Place], tuple[range, ...]]


@dataclass(frozen=True, slots=True)
class Rule:
    """How a weight is cut.

    Args:
        dim: the dimension that is cut.
        ranges: from the size of the dimension, the model and the rank's place to the rank's part of it.
    """

    dim: int
    ranges: Ranges


def _evenly(size: int, spec: ModelSpec, place: Place) -> tuple[range, ...]:
    return (place.part(size),)


def _queries_keys_values(size: int, spec: ModelSpec, place: Place) -> tuple[range, ...]:
    """Cut each of q, k and v, which have one matrix."""
    heads, kv_heads = spec.num_heads, spec.num_kv_heads
    q = place.part(heads)
    k = place.part(kv_heads)
    parts = (q, range(k.start + heads, k.stop + heads), range(k.start + heads + kv_heads, k.stop + heads + kv_heads))
    head_dim = size // (heads + 2 * kv_heads)
    return tuple(range(part.start * head_dim, part.stop * head_dim) for part in parts)


def _halves(size: int, spec: ModelSpec, place: Place) -> tuple[range, ...]:
    """Cut each of gate and up, which have one matrix."""
    half, own = size // 2, place.part(size // 2)
    return own, range(own.start + half, own.stop + half)


def _vocabulary(size: int, spec: ModelSpec, place: Place) -> tuple[range, ...]:
    return (place.vocabulary(size),)


BY_OUTPUT = Rule(OUTPUTS, _evenly)
"""Also by heads, whose outputs are neighbours."""
BY_INPUT = Rule(INPUTS, _evenly)
INSIDE_QKV = Rule(OUTPUTS, _queries_keys_values)
INSIDE_GATE_UP = Rule(OUTPUTS, _halves)
BY_VOCABULARY = Rule(OUTPUTS, _vocabulary)


def by_kv_heads(count: int) -> Rule:
    """Return the rule for so many KV heads. If there are more shards than these, several shards hold the same one."""

    def ranges(size: int, spec: ModelSpec, place: Place) -> tuple[range, ...]:
        heads, head_dim = place.part(count), size // count
        return (range(heads.start * head_dim, heads.stop * head_dim),)

    return Rule(OUTPUTS, ranges)


Rules = Mapping[str, Rule | None]
"""Names of a block's own modules and parameters -> how they are cut; None: they are whole on every shard."""


class Block(nn.Module):
    """A part of a model that says how its weights are cut."""

    cuts: Rules


def cut_of(model: nn.Module, name: str, shape: Sequence[int], spec: ModelSpec, place: Place) -> Cut | None:
    """Return the part of a parameter that is on a shard; None: all of it is.

    Args:
        model: all of it, with the blocks that its weights are in.
        name: of the parameter.
        shape: of all of it.
        spec: the whole model's.

    Raises:
        KeyError: no block has a rule for the name.
    """
    rule = _rule(model, name)
    if rule is None or place.layout.tensor_size == 1 or rule.dim >= len(shape):  # a bias is that of the outputs
        return None
    return Cut(rule.dim, rule.ranges(shape[rule.dim], spec, place))


def _rule(model: nn.Module, name: str) -> Rule | None:
    """Return the rule of the innermost block that a parameter is in."""
    path = name.split(".")
    for length in range(len(path) - 1, -1, -1):
        block = _submodule(model, path[:length])
        if isinstance(block, Block):
            own = path[length:]
            return block.cuts[".".join(own[:-1]) or own[0]]
    raise KeyError(name)


def _submodule(model: nn.Module, path: Sequence[str]) -> nn.Module | None:
    """Return a module by its path; None: there is none, such as a head that is the embedding."""
    try:
        return model.get_submodule(".".join(path))
    except AttributeError:
        return None


def check_layout(spec: ModelSpec, inner_sizes: Collection[int], layout: Layout) -> None:
    """Check that a model can be cut into the parts of a layout.

    Args:
        inner_sizes: elements between the matrices of MLPs and of experts.

    Raises:
        CheckpointError: it cannot; the message says into how many it can.
    """
    stages, shards = layout.pipeline_size, layout.tensor_size
    if stages > spec.num_layers:
        raise CheckpointError(
            f"--pp-size {stages}: the model has {spec.num_layers} layers, and every stage needs one; accepted: 1 to"
            f" {spec.num_layers}"
        )
    heads, kv_heads = spec.num_heads, sorted({layer.num_kv_heads for layer in spec.kv_layers})
    accepted = [
        size
        for size in range(1, heads + 1)
        if heads % size == 0
        and all(inner % size == 0 for inner in inner_sizes)
        and all(count % size == 0 or size % count == 0 for count in kv_heads)
        and size <= -(-spec.vocab_size // WORD)
    ]
    if shards not in accepted:
        counts, inner = (" and ".join(map(str, sorted(each))) for each in (kv_heads, inner_sizes))
        raise CheckpointError(
            f"--tp-size {shards}: shards cannot share {heads} heads, {counts} KV heads, {inner} inner elements"
            f" and a vocabulary of {spec.vocab_size} in blocks of {WORD}; accepted: {', '.join(map(str, accepted))}"
        )
