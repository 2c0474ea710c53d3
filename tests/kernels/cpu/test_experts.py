"""The experts of a layer in one call, at every level, against calls for each expert and the definition in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from block_makers import random_blocks
from compiled import library
from sluice.kernels.cpu.library import Kernels, Level
from sluice.models.block_types import BLOCK_TYPES
from sluice.models.experts import ClampedSwiGLU, ExpertActivation, ExpertLayers, PlainExperts
from sluice.models.linear import Packer, Source
from sluice.models.native_experts import NativeExperts
from sluice.models.ops import Ops
from sluice.models.packers import NativePacker
from sluice.models.quantized import Int4Weight, Int8Weight, QuantizedLinear
from sluice.models.stored_blocks import StoredBlocks

LIBRARY = library()
EXPERTS, CHOSEN, HIDDEN, INNER = 5, 3, 256, 256
ROWS = (1, 2, 7, 40)
TILES = (Level.AMX, Level.SCALAR_TILES, Level.AVX512_TILES)

Make = Callable[[int, int, int], Source]
"""Returns a layer of some outputs and inputs, drawn with a seed."""


def normal(*size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def plain(outputs: int, inputs: int, seed: int) -> Source:
    layer = nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16)
    layer.weight = nn.Parameter(normal(outputs, inputs, seed=seed).mul(inputs**-0.5).bfloat16(), requires_grad=False)
    return layer


def quantised(weight: Int8Weight | Int4Weight | StoredBlocks) -> Source:
    return QuantizedLinear(weight, None, torch.bfloat16)


def int8(outputs: int, inputs: int, seed: int) -> Source:
    return quantised(Int8Weight.quantize(normal(outputs, inputs, seed=seed) * inputs**-0.5))


def int4(outputs: int, inputs: int, seed: int) -> Source:
    return quantised(Int4Weight.quantize(normal(outputs, inputs, seed=seed) * inputs**-0.5))


def int4_with_zero_points(outputs: int, inputs: int, seed: int) -> Source:
    made = Int4Weight.quantize(normal(outputs, inputs, seed=seed) * inputs**-0.5)
    zeros = torch.randint(0, 16, made.scales.shape, generator=torch.Generator().manual_seed(seed))
    return quantised(Int4Weight.with_zero_points(made.values, made.scales, zeros))


def blocks(kind: str) -> Make:
    return lambda outputs, inputs, seed: quantised(
        StoredBlocks(kind, random_blocks(kind, outputs, inputs, seed=seed, tame=True))
    )


MAKERS: dict[str, Make] = {
    "bfloat16": plain,
    "int8": int8,
    "int4": int4,
    "int4 with zero points": int4_with_zero_points,
    **{kind: blocks(kind) for kind in BLOCK_TYPES},
}


def layers(up: Make, down: Make, experts: int = EXPERTS, inner: int = INNER) -> Sequence[ExpertLayers]:
    return [
        ExpertLayers(up(inner, HIDDEN, 10 * n), up(inner, HIDDEN, 10 * n + 1), down(HIDDEN, inner, 10 * n + 2))
        for n in range(experts)
    ]


def packed(
    level: Level, made: Sequence[ExpertLayers], activation: ExpertActivation = "silu", threads: int = 2
) -> NativeExperts:
    experts = NativePacker(Kernels(LIBRARY, level, threads)).experts(iter(made), activation)
    assert isinstance(experts, NativeExperts)
    return experts


def chosen(rows: int, seed: int, experts: int = EXPERTS, count: int = CHOSEN) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids, of which low ones are more frequent, and weights."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.rand((rows, experts), generator=draw) - 0.2 * torch.arange(experts)
    return scores.sort(1, descending=True).indices[:, :count], torch.rand((rows, count), generator=draw)


def inputs(rows: int, seed: int = 3) -> torch.Tensor:
    """Return strided rows: part of the output of a wider layer. One has outliers."""
    x = normal(rows, HIDDEN + 6, seed=seed).bfloat16()[:, 3 : HIDDEN + 3]
    x[0, 5] *= 50
    return x


def definition(experts: NativeExperts) -> PlainExperts:
    """Return the same experts, each with calls of its own."""
    return PlainExperts(list(experts.experts))


@pytest.mark.parametrize("level", LIBRARY.levels())
@pytest.mark.parametrize("kind", MAKERS)
@torch.inference_mode()
def test_every_bit_is_that_of_calls_for_each_expert(level: Level, kind: str) -> None:
    """Rows of another token, an expert that nobody chose, outliers of other rows, and sums in another order."""
    experts = packed(level, layers(MAKERS[kind], MAKERS[kind]))
    for rows in ROWS:
        x, (ids, weights) = inputs(rows), chosen(rows, seed=rows)
        got, wanted = experts(x, ids, weights, Ops()), definition(experts)(x, ids, weights, Ops())
        if kind == "bfloat16" and level in TILES:
            assert torch.allclose(got.float(), wanted.float(), rtol=2**-6, atol=1e-2), f"{rows} rows"
        else:
            assert torch.equal(got, wanted), f"{rows} rows"


@pytest.mark.parametrize("level", LIBRARY.levels())
@pytest.mark.parametrize("kind", ["bfloat16", "int8", "int4", "Q4_K", "MXFP4"])
@torch.inference_mode()
def test_a_token_does_not_depend_on_others(level: Level, kind: str) -> None:
    """Otherwise a neighbour's choice of experts, or the number of threads, would change a request's tokens."""
    makers = layers(MAKERS[kind], MAKERS[kind])
    experts = packed(level, makers)
    x, (ids, weights) = inputs(90), chosen(90, seed=1)
    together = experts(x, ids, weights, Ops())
    for row in range(0, 90, 11):
        alone = slice(row, row + 1)
        assert torch.equal(experts(x[alone], ids[alone], weights[alone], Ops())[0], together[row]), f"row {row}"
    assert torch.equal(experts(x[50:59], ids[50:59], weights[50:59], Ops()), together[50:59])
    others = packed(level, layers(MAKERS[kind], MAKERS[kind]), threads=3)
    assert torch.equal(others(x, ids, weights, Ops()), together)


@pytest.mark.parametrize("level", LIBRARY.levels())
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh", ClampedSwiGLU(limit=0.5, alpha=1.3)], ids=str)
@torch.inference_mode()
def test_activations_are_those_of_the_definition(level: Level, activation: ExpertActivation) -> None:
    """Gate and up are exchanged, only one is limited, or the limits are those of another model."""
    experts = packed(level, layers(plain, plain), activation)
    reference = Packer().experts(layers(plain, plain), activation)
    x, (ids, weights) = inputs(9), chosen(9, seed=2)
    got, wanted = (each(x, ids, weights, Ops()).float() for each in (experts, reference))
    assert torch.allclose(got, wanted, rtol=2**-5, atol=0.02)
    grouped = packed(level, layers(blocks("Q8_0"), blocks("Q8_0")), activation)
    reference = Packer().experts(
        [ExpertLayers(*map(_dense, each)) for each in layers(blocks("Q8_0"), blocks("Q8_0"))], activation
    )
    got, wanted = (each(x, ids, weights, Ops()).float() for each in (grouped, reference))
    assert torch.allclose(got, wanted, rtol=2**-4, atol=0.05 * float(wanted.abs().max()))


def _dense(layer: QuantizedLinear) -> nn.Linear:
    made = nn.Linear(layer.in_features, layer.out_features, bias=False, dtype=torch.bfloat16)
    made.weight = nn.Parameter(layer.weight.dense(torch.bfloat16), requires_grad=False)
    return made


@pytest.mark.parametrize("level", LIBRARY.levels())
@torch.inference_mode()
def test_biases_and_types_may_differ_between_layers(level: Level) -> None:
    """Q4_K_M stores gate and up in another type than down, and the experts of gpt-oss have biases."""
    made = []
    for n, each in enumerate(layers(blocks("Q4_K"), blocks("Q6_K"))):
        for seed, layer in enumerate(each):
            layer.bias = nn.Parameter(normal(layer.out_features, seed=100 * n + seed).bfloat16(), requires_grad=False)
        made.append(each)
    made[2].up.weight = StoredBlocks("Q5_0", random_blocks("Q5_0", INNER, HIDDEN, tame=True))
    experts = packed(level, made)
    x, (ids, weights) = inputs(20), chosen(20, seed=2)
    assert torch.equal(experts(x, ids, weights, Ops()), definition(experts)(x, ids, weights, Ops()))


@pytest.mark.parametrize("level", LIBRARY.levels())
@torch.inference_mode()
def test_a_row_without_a_number_has_none(level: Level) -> None:
    """A broken row turned into plausible tokens, or into those of its neighbours."""
    experts = packed(level, layers(blocks("Q8_0"), int8), ClampedSwiGLU())
    x, (ids, weights) = normal(4, HIDDEN, seed=2).bfloat16(), chosen(4, seed=2)
    x[1, 19], x[2, 200] = float("nan"), float("-inf")
    got = experts(x, ids, weights, Ops())
    assert got.isfinite().all(1).tolist() == [True, False, False, True]
    assert experts(x[:0], ids[:0], weights[:0], Ops()).shape == (0, HIDDEN)


@torch.inference_mode()
def test_experts_that_differ_in_form_are_computed_one_by_one() -> None:
    """A call that reads the rows of one form with the weights of another."""
    made = list(layers(int4, int4))
    made[1] = layers(int4_with_zero_points, int4)[1]
    experts = NativePacker(Kernels(LIBRARY, LIBRARY.best(), 2)).experts(made, "silu")
    assert type(experts) is PlainExperts
    x, (ids, weights) = inputs(6), chosen(6, seed=1)
    assert experts(x, ids, weights, Ops()).isfinite().all()


@torch.inference_mode()
def test_more_rows_than_a_slab_and_more_experts_than_rows() -> None:
    """Work that is divided into items: none may be missing or done twice."""
    for level in {LIBRARY.best(), Level.SCALAR}:
        experts = packed(level, layers(blocks("Q4_0"), blocks("Q4_0"), experts=3, inner=64), threads=3)
        x = inputs(600)
        ids, weights = torch.tensor([[0, 2]]).expand(600, 2), chosen(600, seed=1)[1][:, :2]
        assert torch.equal(experts(x, ids, weights, Ops()), definition(experts)(x, ids, weights, Ops()))
    many = packed(LIBRARY.best(), layers(int8, int8, experts=70, inner=32))
    x, (ids, weights) = inputs(3), chosen(3, seed=4, experts=70, count=8)
    assert torch.equal(many(x, ids, weights, Ops()), definition(many)(x, ids, weights, Ops()))
