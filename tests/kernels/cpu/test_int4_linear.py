"""Linear layers with weights of four bits, at every level, against their definition in torch."""

from __future__ import annotations

import pytest
import torch

from compiled import library
from sluice.kernels.cpu.library import Kernels, Level
from sluice.models.linear import Int4Linear
from sluice.models.native_linear import NativeLinear
from sluice.models.ops import ACTIVATIONS, Ops
from sluice.models.packers import NativePacker
from sluice.models.quantized import Int4Weight, QuantizedLinear, int4_linear

LIBRARY = library()
ROWS = (1, 2, 5, 12, 13, 31, 241)


def normal(*size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def weight(outputs: int, inputs: int, group: int, kind: str, seed: int = 1) -> Int4Weight:
    """Return a weight with scales in bfloat16 ("symmetric") or float16, or in float32 with zero points or minimums."""
    made = Int4Weight.quantize(normal(outputs, inputs, seed=seed), group)
    if kind == "symmetric":
        return made
    if kind == "float16":
        # Numbers below the smallest normal one of float16 are among them.
        return Int4Weight(made.values, torch.where(made.scales > 0.4, 1e-6, made.scales * 1.1).half().float())
    draw = torch.Generator().manual_seed(seed)
    scales = made.scales * (1 + torch.rand(made.scales.shape, generator=draw))
    zeros = torch.randint(0, 16, scales.shape, generator=draw)
    minimums = -zeros * scales if kind == "zero points" else torch.randn(scales.shape, generator=draw)
    values = torch.randint(0, 256, made.values.shape, generator=draw, dtype=torch.uint8)
    return Int4Weight(values, scales, minimums)


def layer(definition: Int4Weight, bias: torch.Tensor | None = None) -> QuantizedLinear:
    """Return a layer that owns its weight: packing changes it in place."""
    minimums = None if definition.minimums is None else definition.minimums.clone()
    copy = Int4Weight(definition.values.clone(), definition.scales.clone(), minimums)
    return QuantizedLinear(copy, bias, torch.bfloat16)


@pytest.mark.parametrize("level", LIBRARY.levels())
@pytest.mark.parametrize(
    ("outputs", "inputs", "group", "kind"),
    [
        (33, 96, 32, "symmetric"),
        (64, 256, 128, "zero points"),
        (131, 40, 4, "minimums"),
        (40, 560, 560, "symmetric"),
        (33, 96, 32, "float16"),
        (1, 20, 20, "zero points"),
    ],
)
@torch.inference_mode()
def test_every_bit_is_as_defined(level: Level, outputs: int, inputs: int, group: int, kind: str) -> None:
    """Nibbles in another order, an incomplete last block, a tile higher than the remaining rows, a scale of another
    group, and sums that are rounded once more."""
    definition = weight(outputs, inputs, group, kind)
    bias = normal(outputs, seed=2).bfloat16() if outputs != 64 else None
    packed = NativePacker(Kernels(LIBRARY, level, 2)).linear(layer(definition, bias))
    assert isinstance(packed, NativeLinear)
    for rows in ROWS:
        # Strided rows: part of the output of a wider layer.
        x = normal(rows, inputs + 6, seed=rows).bfloat16()[:, 3 : inputs + 3]
        assert torch.equal(packed(x), int4_linear(x, definition, bias)), f"{rows} rows"


@pytest.mark.parametrize("level", LIBRARY.levels())
@torch.inference_mode()
def test_the_largest_numbers_do_not_saturate(level: Level) -> None:
    """Sums in 16 bits where the instruction has no others."""
    for byte, number in ((0xFF, 7), (0x00, -8)):
        definition = Int4Weight(torch.full((32, 2048), byte, dtype=torch.uint8), torch.ones(32, 1))
        made = NativePacker(Kernels(LIBRARY, level, 1)).linear(layer(definition))
        assert made(torch.ones(3, 4096, dtype=torch.bfloat16)).unique().tolist() == [4096.0 * number]


@pytest.mark.parametrize("level", LIBRARY.levels())
@torch.inference_mode()
def test_a_row_does_not_depend_on_other_rows(level: Level) -> None:
    """Otherwise a neighbour with large activations, or the number of threads, would change a request's tokens."""
    definition, x = weight(100, 64, 32, "zero points"), normal(300, 64, seed=3).bfloat16()
    x[100] *= 1000
    alone, *packed = (NativePacker(Kernels(LIBRARY, level, threads)).linear(layer(definition)) for threads in (1, 1, 3))
    wanted = torch.cat([alone(x[row : row + 1]) for row in range(0, 300, 29)])
    for each in packed:
        for rows in (30, 300):
            shared = range(0, rows, 29)
            assert torch.equal(each(x[:rows])[list(shared)], wanted[: len(shared)])


@pytest.mark.parametrize("level", LIBRARY.levels())
@pytest.mark.parametrize("activation", ["silu", None])
@torch.inference_mode()
def test_gates_have_scales_of_their_own(level: Level, activation: str | None) -> None:
    """The right half must be activated, and have the scales and minimums of its own outputs."""
    packer = NativePacker(Kernels(LIBRARY, level, 2))
    gate, up = weight(64, 64, 32, "symmetric"), weight(64, 64, 32, "minimums", seed=5)
    x = normal(40, 64, seed=9).bfloat16()
    x[0], x[1] = 100 * x[0], torch.zeros(64)
    first, second = (int4_linear(x.float(), each, None) for each in (gate, up))
    if activation is None:
        got, wanted = packer.linear(layer(gate), layer(up))(x), torch.cat([first, second], 1)
    else:
        got, wanted = (
            packer.gated(layer(gate), layer(up), activation=activation)(x, Ops()),
            ACTIVATIONS[activation](first) * second,
        )
    assert torch.allclose(got.float(), wanted, rtol=2**-6, atol=1e-2)


@pytest.mark.parametrize("level", LIBRARY.levels())
@torch.inference_mode()
def test_a_row_without_a_number_has_none(level: Level) -> None:
    """A broken row turned into plausible tokens."""
    packed = NativePacker(Kernels(LIBRARY, level, 1)).linear(layer(weight(32, 64, 32, "zero points")))
    x = normal(4, 64, seed=2).bfloat16()
    x[1, 19], x[2, 3] = float("nan"), float("-inf")
    finite = packed(x).isfinite()
    assert finite.all(1).tolist() == [True, False, False, True]
    assert not finite[1:3].any()


@torch.inference_mode()
def test_scales_take_two_bytes_if_they_are_exact() -> None:
    """Half a bit for each weight in groups of 32, for nothing; or scales of a checkpoint that are rounded."""
    packer = NativePacker(Kernels(LIBRARY, LIBRARY.best(), 1))
    kinds = {"symmetric": torch.bfloat16, "float16": torch.float16, "minimums": torch.float32}
    assert {kind: packer.linear(layer(weight(32, 64, 32, kind))).scales.dtype for kind in kinds} == kinds


@torch.inference_mode()
def test_torch_computes_what_cannot_be_packed() -> None:
    """Groups in no multiple of four."""
    packer = NativePacker(Kernels(LIBRARY, LIBRARY.best(), 1))
    x, odd = normal(3, 36, seed=4).bfloat16(), weight(32, 36, 6, "symmetric")
    made = packer.linear(layer(odd))
    assert isinstance(made, Int4Linear)
    assert torch.equal(made(x), int4_linear(x, odd, None))
