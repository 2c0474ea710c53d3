"""Packed linear layers against a product in float64."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import tiny_models
from paged_model import chunked_logits
from sluice.kernels.cpu.library import Kernels, KernelsUnavailable, Library
from sluice.models.linear import Packer
from sluice.models.loader import load_model
from sluice.models.packers import NativePacker, OneDNNPacker, has_onednn_bfloat16
from sluice.models.quantized import Int4Weight, Int8Weight, QuantizedLinear, int4_linear

PACKERS: dict[str, Packer] = {"plain": Packer()}
if has_onednn_bfloat16():
    PACKERS["onednn"] = OneDNNPacker()
with contextlib.suppress(KernelsUnavailable):
    PACKERS["native"] = NativePacker(Kernels(Library(), Library().best(), 2))


def layer(outputs: int, inputs: int, *, bias: bool, dtype: torch.dtype, seed: int) -> nn.Linear:
    made = nn.Linear(inputs, outputs, bias=bias, dtype=dtype).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted).abs().max())


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_parts_side_by_side(name: str, dtype: torch.dtype, bias: bool) -> None:
    """No wrong order of parts, no bias at the wrong part, no lost outputs at the end."""
    parts = [layer(outputs, 20, bias=bias, dtype=dtype, seed=seed) for seed, outputs in enumerate((33, 5, 64))]
    exact = [part.weight.double() for part in parts], [part.bias.double() if bias else 0.0 for part in parts]
    x = torch.randn(13, 20, generator=torch.Generator().manual_seed(7)).to(dtype)
    wanted = torch.cat([x.double() @ weight.T + shift for weight, shift in zip(*exact, strict=True)], dim=-1)
    tolerance = 16 * torch.finfo(dtype).eps * float(wanted.abs().max())
    packed = PACKERS[name].linear(*parts)
    for rows in (0, 1, 2, 13):
        got = packed(x[:rows])
        assert got.shape == (rows, 102)
        assert got.dtype == dtype
        assert rows == 0 or error(got, wanted[:rows]) <= tolerance


@pytest.mark.parametrize("name", PACKERS)
@torch.inference_mode()
def test_four_bits_in_different_groups_stay_four_bits(name: str) -> None:
    """q in groups of 32 and k in groups of 16 became bfloat16: four times the bytes, and nothing said so."""
    torch.manual_seed(0)
    weights = [Int4Weight.quantize(torch.randn(32, 96), group) for group in (32, 48)]
    weights[1] = Int4Weight(weights[1].values, weights[1].scales, -7 * weights[1].scales)
    packer = copy.copy(PACKERS[name])
    layer = packer.linear(*(QuantizedLinear(weight, None, torch.bfloat16) for weight in weights))
    x = torch.randn(5, 96).bfloat16()
    wanted = torch.cat([int4_linear(x, weight, None) for weight in weights], dim=1)
    assert torch.allclose(layer(x).float(), wanted.float(), rtol=2**-7, atol=1e-4)
    assert packer.widened == 0
    int8 = QuantizedLinear(Int8Weight.quantize(torch.randn(8, 96)), None, torch.bfloat16)
    packer.linear(int8, QuantizedLinear(weights[0], None, torch.bfloat16))
    assert packer.widened == 1


@pytest.mark.parametrize("name", PACKERS)
@torch.inference_mode()
def test_an_embedding_that_is_the_head(name: str) -> None:
    """Lookups must find rows that were rearranged for the product."""
    embedding = nn.Embedding(131, 24, dtype=torch.bfloat16).requires_grad_(False)
    weight = embedding.weight.clone()
    looked_up, head = PACKERS[name].tied(embedding, range(131))
    ids = torch.tensor([0, 130, 31, 32, 33, 32])
    assert torch.equal(looked_up(ids), weight[ids])
    x = torch.randn(3, 24).bfloat16()
    assert error(head(x), x.double() @ weight.double().T) < 0.2


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("family", ["llama", "llama2", "qwen3", "gpt2"])
def test_models_compute_the_same(name: str, family: str, tiny_folder: Callable[[str], Path]) -> None:
    """No layer may be joined or removed in the wrong place."""
    folder, prompts = tiny_folder(family), [tiny_models.prompt(30, 0), tiny_models.prompt(5, 1)]
    exact = [tiny_models.logits(tiny_models.load_reference(folder, torch.float64), prompt) for prompt in prompts]
    theirs = [tiny_models.logits(tiny_models.load_reference(folder, torch.bfloat16), prompt) for prompt in prompts]
    model, _ = load_model(folder, dtype="bfloat16", device=torch.device("cpu"), progress=False, packer=PACKERS[name])
    ours = chunked_logits(model, prompts, page_size=4, seed=0)
    their_error = max(error(a, b) for a, b in zip(theirs, exact, strict=True))
    assert 0 < max(error(a, b) for a, b in zip(ours, exact, strict=True)) <= 2 * their_error


def test_no_weight_is_there_twice(tiny_folder: Callable[[str], Path]) -> None:
    """Original weights kept beside the packed ones would take twice the memory."""
    model, _ = load_model(tiny_folder("qwen3"), dtype="bfloat16", device=torch.device("cpu"), progress=False)
    reference = tiny_models.load_reference(tiny_folder("qwen3"), torch.bfloat16)
    held = {weight.untyped_storage().data_ptr(): weight.untyped_storage().nbytes() for weight in model.parameters()}
    sizes = [weight.numel() * (4 if "norm" in name else 2) for name, weight in reference.named_parameters()]
    assert sum(held.values()) == sum(sizes)
