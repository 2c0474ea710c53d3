"""Linear layers over packed weights, at every level, against a product in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sluice.kernels.cpu.library import Kernels, KernelsUnavailable, Level, Library
from sluice.models.ops import ACTIVATIONS, Ops
from sluice.models.packers import NativePacker

try:
    LIBRARY = Library()
except KernelsUnavailable as error:
    pytest.skip(f"no compiled kernels: {error}", allow_module_level=True)
ROWS = (1, 2, 5, 12, 13, 16, 31, 33, 241)
TILES = (Level.AMX, Level.SCALAR_TILES, Level.AVX512_TILES)


def bfloat16(*size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).bfloat16()


def layer(outputs: int, inputs: int, *, bias: bool, seed: int = 1) -> nn.Linear:
    made = nn.Linear(inputs, outputs, bias=bias, dtype=torch.bfloat16).requires_grad_(False)
    made.weight.copy_(bfloat16(outputs, inputs, seed=seed))
    if bias:
        made.bias.copy_(bfloat16(outputs, seed=seed + 1))
    return made


@pytest.mark.parametrize("level", LIBRARY.levels())
@pytest.mark.parametrize(("outputs", "inputs"), [(33, 20), (64, 64), (1, 2), (131, 96), (40, 2112)])
@torch.inference_mode()
def test_errors_are_at_most_those_of_torch(level: Level, outputs: int, inputs: int) -> None:
    """An incomplete last block, a tile higher than the remaining rows, and a bias that must be added once."""
    source = layer(outputs, inputs, bias=outputs != 64)
    weight, bias = source.weight.double(), 0.0 if source.bias is None else source.bias.double()
    packed = NativePacker(Kernels(LIBRARY, level, 2)).linear(source)
    for rows in ROWS:
        # Strided rows: part of the output of a wider layer.
        x = bfloat16(rows, inputs + 6, seed=rows)[:, 3 : inputs + 3]
        wanted = x.double() @ weight.T + bias
        got = packed(x)
        # One rounding to bfloat16, and sums in float32.
        tolerance = 2**-8 * wanted.abs() + 1e-5 * inputs
        assert got.shape == wanted.shape
        assert bool(((got.double() - wanted).abs() <= tolerance).all()), f"{rows} rows"


@pytest.mark.parametrize("level", [level for level in LIBRARY.levels() if level not in TILES])
@torch.inference_mode()
def test_a_row_does_not_depend_on_other_rows(level: Level) -> None:
    """Otherwise other rows, or the number of threads, would change a request's tokens."""
    one, three = (NativePacker(Kernels(LIBRARY, level, threads)) for threads in (1, 3))
    x = bfloat16(300, 64, seed=3)
    alone = torch.cat([one.linear(layer(100, 64, bias=True))(x[row : row + 1]) for row in range(0, 300, 29)])
    for packer in (one, three):
        packed = packer.linear(layer(100, 64, bias=True))
        for rows in (30, 300):
            got = packed(x[:rows])
            shared = range(0, rows, 29)
            assert torch.equal(got[list(shared)], alone[: len(shared)])


@pytest.mark.parametrize("level", LIBRARY.levels())
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("outputs", [64, 44])
@torch.inference_mode()
def test_activations_and_gates(level: Level, activation: str, outputs: int) -> None:
    """The right half must be activated, and the gate not rounded before it is multiplied."""
    packer = NativePacker(Kernels(LIBRARY, level, 2))
    gate, up, again = (layer(outputs, 32, bias=True, seed=seed) for seed in (1, 5, 1))
    x = bfloat16(40, 32, seed=9)
    x[0], x[1] = 100 * x[0], torch.zeros(32)
    first, second = (x.double() @ part.weight.double().T + part.bias.double() for part in (gate, up))
    for got, wanted in (
        (packer.linear(again, activation=activation)(x), ACTIVATIONS[activation](first)),
        (packer.gated(gate, up, activation=activation)(x, Ops()), ACTIVATIONS[activation](first) * second),
    ):
        # If nothing is fused, four roundings.
        assert bool(((got.double() - wanted).abs() <= 2**-6 * wanted.abs() + 2e-2 * second.abs() + 1e-2).all())


@torch.inference_mode()
def test_whole_blocks_are_packed_in_place() -> None:
    """Otherwise the head of a large vocabulary would exist twice while it is packed."""
    packer = NativePacker(Kernels(LIBRARY, LIBRARY.best(), 1))
    for outputs, is_same in ((64, True), (65, False)):
        source = layer(outputs, 16, bias=False)
        address = source.weight.data_ptr()
        assert (packer.linear(source).packed.data_ptr() == address) == is_same


@torch.inference_mode()
def test_torch_computes_layers_that_cannot_be_packed() -> None:
    packer = NativePacker(Kernels(LIBRARY, LIBRARY.best(), 1))
    odd = nn.Linear(15, 32, dtype=torch.bfloat16)
    wide = nn.Linear(16, 32)
    for source in (odd, wide):
        x = torch.randn(3, source.in_features).to(source.weight.dtype)
        assert torch.equal(packer.linear(source)(x), source(x))


@torch.inference_mode()
def test_no_rows() -> None:
    """A step may need no logits."""
    packed = NativePacker(Kernels(LIBRARY, LIBRARY.best(), 2)).linear(layer(64, 16, bias=True))
    assert packed(torch.empty(0, 16, dtype=torch.bfloat16)).shape == (0, 64)
