"""Linear layers with int8 weights, at every level, against their definition in torch."""

from __future__ import annotations

import pytest
import torch

from compiled import library
from sluice.kernels.cpu.library import Kernels, Level
from sluice.models.native_linear import NativeLinear
from sluice.models.ops import ACTIVATIONS, Ops
from sluice.models.packers import NativePacker
from sluice.models.quantized import Int4Weight, Int8Weight, QuantizedLinear, int8_linear

LIBRARY = library()
ROWS = (1, 2, 5, 12, 13, 16, 31, 33, 241)


def normal(*size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def weight(outputs: int, inputs: int, seed: int = 1) -> Int8Weight:
    return Int8Weight.quantize(normal(outputs, inputs, seed=seed))


def layer(outputs: int, inputs: int, *, bias: bool, seed: int = 1) -> QuantizedLinear:
    added = normal(outputs, seed=seed + 1).bfloat16() if bias else None
    return QuantizedLinear(weight(outputs, inputs, seed), added, torch.bfloat16)


@pytest.mark.parametrize("level", LIBRARY.levels())
@pytest.mark.parametrize(("outputs", "inputs"), [(33, 20), (64, 64), (1, 4), (131, 96), (40, 560), (33, 4224)])
@torch.inference_mode()
def test_every_bit_is_as_defined(level: Level, outputs: int, inputs: int) -> None:
    """An incomplete last block, a tile higher than the remaining rows, a correction that is missing or added twice,
    and rounding another way."""
    source = layer(outputs, inputs, bias=outputs != 64)
    definition, bias = weight(outputs, inputs), source.bias
    packed = NativePacker(Kernels(LIBRARY, level, 2)).linear(source)
    for rows in ROWS:
        # Strided rows: part of the output of a wider layer.
        x = normal(rows, inputs + 6, seed=rows).bfloat16()[:, 3 : inputs + 3]
        assert torch.equal(packed(x), int8_linear(x, definition, bias)), f"{rows} rows"


@pytest.mark.parametrize("level", LIBRARY.levels())
@torch.inference_mode()
def test_the_largest_numbers_do_not_saturate(level: Level) -> None:
    """Sums of pairs in 16 bits, where the instruction has no others: 255 * 127 twice does not fit. Published
    checkpoints hold -128, too."""
    for x_sign in (1.0, -1.0):
        for value in (127, -127, -128):
            values = torch.full((32, 4096), value, dtype=torch.int8)
            x = torch.full((3, 4096), x_sign, dtype=torch.bfloat16)
            made = NativePacker(Kernels(LIBRARY, level, 1)).linear(
                QuantizedLinear(Int8Weight(values, torch.ones(32)), None, torch.bfloat16)
            )
            assert made(x).unique().tolist() == [torch.tensor(x_sign * value * 4096).bfloat16()]


@pytest.mark.parametrize("level", LIBRARY.levels())
@torch.inference_mode()
def test_a_row_does_not_depend_on_other_rows(level: Level) -> None:
    """Otherwise a neighbour with large activations, or the number of threads, would change a request's tokens."""
    x = normal(300, 64, seed=3).bfloat16()
    x[100] *= 1000
    alone, *packed = (
        NativePacker(Kernels(LIBRARY, level, threads)).linear(layer(100, 64, bias=True)) for threads in (1, 1, 3)
    )
    wanted = torch.cat([alone(x[row : row + 1]) for row in range(0, 300, 29)])
    for each in packed:
        for rows in (30, 300):
            shared = range(0, rows, 29)
            assert torch.equal(each(x[:rows])[list(shared)], wanted[: len(shared)])


@pytest.mark.parametrize("level", LIBRARY.levels())
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("outputs", [64, 44])
@torch.inference_mode()
def test_activations_and_gates(level: Level, activation: str, outputs: int) -> None:
    """The right half must be activated, and have the scales of its own outputs."""
    packer = NativePacker(Kernels(LIBRARY, level, 2))
    gate, up, again = (layer(outputs, 32, bias=True, seed=seed) for seed in (1, 5, 1))
    x = normal(40, 32, seed=9).bfloat16()
    x[0], x[1] = 100 * x[0], torch.zeros(32)
    first, second = (
        int8_linear(x.float(), weight(outputs, 32, seed), part.bias) for seed, part in ((1, gate), (5, up))
    )
    for got, wanted in (
        (packer.linear(again, activation=activation)(x), ACTIVATIONS[activation](first)),
        (packer.gated(gate, up, activation=activation)(x, Ops()), ACTIVATIONS[activation](first) * second),
    ):
        # If nothing is fused, four roundings.
        assert bool(((got.float() - wanted).abs() <= 2**-6 * wanted.abs() + 2e-2 * second.abs() + 1e-2).all())


@pytest.mark.parametrize("level", LIBRARY.levels())
@torch.inference_mode()
def test_a_row_without_a_number_has_none(level: Level) -> None:
    """A broken row turned into plausible tokens."""
    packed = NativePacker(Kernels(LIBRARY, level, 1)).linear(layer(32, 20, bias=False))
    x = normal(4, 20, seed=2).bfloat16()
    x[1, 19], x[2, 3] = float("nan"), float("-inf")
    finite = packed(x).isfinite()
    assert finite.all(1).tolist() == [True, False, False, True]
    assert not finite[1:3].any()


@torch.inference_mode()
def test_a_tied_embedding_is_stored_once() -> None:
    """Rows of the embedding in the order of the packed head, each with its own scale."""
    definition = weight(70, 24)
    source = QuantizedLinear(weight(70, 24), None, torch.bfloat16)
    tied = NativePacker(Kernels(LIBRARY, LIBRARY.best(), 1)).tied(source, range(70))
    assert isinstance(tied.head, NativeLinear)
    assert tied.embedding.packed.data_ptr() == tied.head.packed.data_ptr()
    assert torch.equal(tied.embedding(torch.arange(70)), definition.dense(torch.bfloat16))
    x = normal(3, 24, seed=4).bfloat16()
    assert torch.equal(tied.head(x), int8_linear(x.float(), definition, None))  # logits are in float32


@torch.inference_mode()
def test_torch_computes_what_cannot_be_packed() -> None:
    """Inputs in no multiple of four, and layers that are quantised only in part or in another way."""
    packer = NativePacker(Kernels(LIBRARY, LIBRARY.best(), 1))
    x = normal(3, 18, seed=4).bfloat16()
    assert torch.equal(
        packer.linear(layer(32, 18, bias=True))(x), int8_linear(x, weight(32, 18), layer(32, 18, bias=True).bias)
    )
    plain = torch.nn.Linear(20, 32, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    four_bits = Int4Weight(torch.full((8, 10), 0x21, dtype=torch.uint8), torch.ones(8, 2), torch.zeros(8, 2))
    x = normal(3, 20, seed=4).bfloat16()
    wanted = [
        x.float() @ part.T
        for part in (weight(16, 20).dense(torch.bfloat16).float(), plain.weight.float(), four_bits.dense(torch.float32))
    ]
    others = QuantizedLinear(four_bits, None, torch.bfloat16)
    got = packer.linear(layer(16, 20, bias=False), plain, others)(x)
    assert torch.allclose(got.float(), torch.cat(wanted, 1), rtol=2**-7, atol=1e-2)
