"""The experts of a layer by Triton against their definition in torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sluice.models.cuda_packer import CudaPacker
from sluice.models.experts import ClampedSwiGLU, ExpertActivation, ExpertLayers, PlainExperts, weighted_sum
from sluice.models.linear import Packer
from sluice.models.ops import Ops
from sluice.models.quantized import Int8Weight, QuantizedLinear
from sluice.models.triton_experts import TritonExperts
from triton_device import each_device, quiet

pytestmark = quiet
EXPERTS, CHOSEN, HIDDEN, INNER = 5, 3, 80, 48


def normal(*size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def layers(device: torch.device, dtype: torch.dtype, *, bias: bool) -> list[ExpertLayers]:
    made = []
    for expert in range(EXPERTS):
        each = []
        for number, (outputs, inputs) in enumerate(((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))):
            seed, layer = 10 * expert + number, nn.Linear(inputs, outputs, bias=bias)
            layer.weight = nn.Parameter(normal(outputs, inputs, seed=seed) * inputs**-0.5, requires_grad=False)
            if bias:
                layer.bias = nn.Parameter(normal(outputs, seed=seed + 7), requires_grad=False)
            each.append(layer.to(device, dtype))
        made.append(ExpertLayers(*each))
    return made


def chosen(rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids, of which low ones are more frequent and the last is never chosen, and weights."""
    draw = torch.Generator().manual_seed(rows)
    scores = torch.rand((rows, EXPERTS - 1), generator=draw) - 0.2 * torch.arange(EXPERTS - 1)
    ids = scores.sort(1, descending=True).indices[:, :CHOSEN]
    return ids.to(device), torch.rand((rows, CHOSEN), generator=draw).to(device)


@each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("activation", "bias"), [("silu", False), (ClampedSwiGLU(limit=0.7, alpha=1.3), True)], ids=["silu", "clamped"]
)
@torch.inference_mode()
def test_experts_are_those_of_the_definition(
    dtype: torch.dtype, activation: ExpertActivation, bias: bool, device: torch.device
) -> None:
    """Rows of another token or expert, an expert that nobody chose, sizes that fill no tile, and several blocks."""
    experts = CudaPacker(device).experts(iter(layers(device, dtype, bias=bias)), activation)
    assert isinstance(experts, TritonExperts)
    definition = Packer().experts(layers(device, dtype, bias=bias), activation)
    for rows in (1, 3, 40):
        x, (ids, weights) = normal(rows, HIDDEN + 16, seed=rows).to(device, dtype)[:, 8:-8], chosen(rows, device)
        got, wanted = experts(x, ids, weights, Ops()), definition(x, ids, weights, Ops())
        assert got.dtype == dtype
        torch.testing.assert_close(got.float(), wanted.float(), rtol=2**-6, atol=0.02)
    assert experts(x[:0], ids[:0], weights[:0], Ops()).shape == (0, HIDDEN)


@each_device
@torch.inference_mode()
def test_a_token_does_not_depend_on_others(device: torch.device) -> None:
    """Otherwise a neighbour's choice of experts would change a request's tokens."""
    experts = CudaPacker(device).experts(layers(device, torch.bfloat16, bias=False), "silu")
    x, (ids, weights) = normal(40, HIDDEN, seed=3).to(device, torch.bfloat16), chosen(40, device)
    together = experts(x, ids, weights, Ops())
    for some in (slice(0, 1), slice(7, 8), slice(20, 31)):
        assert torch.equal(experts(x[some], ids[some], weights[some], Ops()), together[some])


@each_device
@torch.inference_mode()
def test_sums_round_as_defined(device: torch.device) -> None:
    """A product that is added before it is rounded."""
    from sluice.kernels.triton.experts import sort_pairs, weighted_sums

    ids, weights = chosen(40, device)
    found = normal(40, CHOSEN, 33, seed=1).to(device, torch.bfloat16)
    pairs = sort_pairs(ids, EXPERTS)
    assert torch.equal(weighted_sums(found.flatten(0, 1)[pairs.order], pairs, weights), weighted_sum(found, weights))


@each_device
@torch.inference_mode()
def test_other_weights_are_computed_one_by_one(device: torch.device) -> None:
    """Addresses of numbers that the kernel would read as bfloat16."""
    made = layers(device, torch.float32, bias=False)
    assert type(CudaPacker(device).experts(made, "silu")) is PlainExperts
    for number, each in enumerate(layers(device, torch.bfloat16, bias=False)):
        weight = Int8Weight.quantize(each.down.weight)
        made[number] = each._replace(down=QuantizedLinear(weight, None, torch.bfloat16))
    made[1] = layers(device, torch.bfloat16, bias=False)[1]
    experts = CudaPacker(device).experts(made, "silu")
    x, (ids, weights) = normal(6, HIDDEN, seed=3).to(device, torch.bfloat16), chosen(6, device)
    assert experts(x, ids, weights, Ops()).isfinite().all()
