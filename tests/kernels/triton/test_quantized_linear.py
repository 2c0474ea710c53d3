"""Products with quantised weights by Triton and `torch._scaled_mm`, against their definitions in torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import quantized_checkpoints as made
import tiny_models
from models.formats.test_compressed import SCHEMES, config_of, storing
from models.formats.test_four_bits import FORMATS
from paged_model import chunked_logits
from slow import slow
from sluice.kernels.triton.fp8 import quantize_rows
from sluice.models.checkpoint import CheckpointError
from sluice.models.cuda_packer import PRODUCTS, CudaPacker, W4A16Linear
from sluice.models.fp8_rows import Fp8Rows, fp8_rows
from sluice.models.linear import Fp8Linear, Packer, PlainLinear
from sluice.models.loader import load_model
from sluice.models.ops import Norm, Ops
from sluice.models.quantized import Fp8Weight, Int4Weight, Int8Weight, QuantizedLinear
from sluice.models.triton_ops import TritonOps
from triton_device import each_device, quiet

pytestmark = quiet
PROMPTS = [tiny_models.prompt(4, 0), tiny_models.prompt(3, 1)]
W8A8 = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}


def normal(*size: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def assert_same(found: object, expected: Fp8Rows) -> None:
    assert isinstance(found, Fp8Rows)
    assert found.dtype == expected.dtype
    assert torch.equal(found.scales, expected.scales)
    assert torch.equal(found.values.view(torch.uint8), expected.values.view(torch.uint8))


@each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rows_are_quantised_as_defined(dtype: torch.dtype, device: torch.device) -> None:
    """Every bit: small numbers of e4m3, which have less precision, rows of zeros, and rows far from 1."""
    x = normal(6, 1000).to(device, dtype)
    x[1], x[2], x[3] = 0.0, x[2] * 1e-20, x[3] * torch.linspace(-6, 2, 1000, device=device).exp().to(dtype)
    assert_same(Fp8Rows(*quantize_rows(x), dtype), fp8_rows(x))
    ops, weight = TritonOps(), normal(1000, seed=2).to(device, dtype)
    for norm in (Norm(weight, 1e-6), Norm(weight, 1e-5, weight.flip(0))):
        quantised = norm._replace(is_fp8=True)
        assert_same(ops.norm(x, quantised), fp8_rows(ops.norm(x, norm)))
        total, rows = ops.add_norm(x.clone(), x.flip(0), quantised)
        wanted_total, wanted = ops.add_norm(x.clone(), x.flip(0), norm)
        assert torch.equal(total, wanted_total)
        assert_same(rows, fp8_rows(wanted))
    gate, up = x.repeat(1, 2).chunk(2, 1)
    assert_same(ops.gate_and_mul(gate, up, "silu", to_fp8=True), fp8_rows(ops.gate_and_mul(gate, up, "silu")))
    assert ops.gate_and_mul(gate[:0], up[:0], "silu", to_fp8=True).values.shape == (0, 1000)


@each_device
def test_a_row_without_a_number_has_none(device: torch.device) -> None:
    """A broken row turned into plausible tokens."""
    x = normal(3, 64).to(device)
    x[0, 3], x[2, 5] = torch.nan, torch.inf
    values, scales = quantize_rows(x)
    assert (values.float() * scales[:, None]).sum(1).isfinite().tolist() == [False, True, False]


def weight_of(outputs: int, inputs: int, group: int, kind: str) -> Int4Weight:
    weight = Int4Weight.quantize(normal(outputs, inputs), group)
    if kind == "symmetric":
        return weight
    zeros = torch.arange(weight.scales.numel()).view_as(weight.scales) % 16
    return Int4Weight.with_zero_points(weight.values, weight.scales * 1.001, zeros)


@each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, slow(torch.float16)], ids=str)
@pytest.mark.parametrize(
    ("outputs", "inputs", "group", "kind"),
    [
        (40, 128, 32, "symmetric"),
        slow(70, 256, 128, "zero points"),
        (33, 80, 80, "zero points"),
        slow(64, 48, 16, "zero points"),
        slow(1, 192, 64, "symmetric"),
    ],
)
def test_four_bits(outputs: int, inputs: int, group: int, kind: str, dtype: torch.dtype, device: torch.device) -> None:
    """Nibbles in another order, the scale of another group, inputs and outputs behind the last whole tile."""
    weight, bias = weight_of(outputs, inputs, group, kind), normal(outputs, seed=3).to(device, dtype)
    layer = CudaPacker(device).linear(QuantizedLinear(weight.to(device), bias, dtype))
    assert isinstance(layer, W4A16Linear)
    dense = weight.dense(dtype).double().to(device)
    for rows in (0, 1, 17, 70):
        # Strided rows: part of the output of a wider layer.
        x = normal(rows, inputs + 8, seed=rows).to(device, dtype)[:, 8:]
        wanted = functional.linear(x.double(), dense, bias.double())
        error = (layer(x).double() - wanted).abs().max() if rows else 0.0
        assert error <= torch.finfo(dtype).eps * float(wanted.abs().max() if rows else 1.0)
        assert layer(x).shape == (rows, outputs)


@each_device
def test_weights_that_no_product_takes_are_dequantised(device: torch.device) -> None:
    """Sizes that the instruction does not have are an error in the middle of a step."""
    packer = CudaPacker(device)
    for weight in (
        Fp8Weight.quantize(normal(40, 64)),
        Fp8Weight.quantize(normal(32, 40)),
        Int4Weight.quantize(normal(32, 96), 48),
        Int8Weight.quantize(normal(32, 64)),
    ):
        layer = packer.linear(QuantizedLinear(weight.to(device), None, torch.bfloat16))
        assert isinstance(layer, PlainLinear)
        assert torch.equal(layer.weight.cpu(), weight.dense(torch.bfloat16))
    assert packer.widened == 4
    assert isinstance(
        packer.linear(QuantizedLinear(Fp8Weight.quantize(normal(32, 64)).to(device), None, torch.bfloat16)), Fp8Linear
    )


def loaded(folder: Path, device: torch.device, **options: Any) -> Any:
    return load_model(folder, device=device, progress=False, **({"dtype": "bfloat16"} | options))[0]


def logits(model: Any, ops: Ops) -> torch.Tensor:
    model.use(ops)
    return torch.cat(chunked_logits(model, PROMPTS, page_size=4, seed=0)).double()


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    tiny_models.llama(hidden_size=64, head_dim=16, intermediate_size=96, num_hidden_layers=2).save_pretrained(folder)
    return folder


def fp8(source: Path, folder: Path) -> tuple[Path, Path]:
    """Return a checkpoint of LLM Compressor's FP8_DYNAMIC, and the plain one that it stands for."""
    scheme = SCHEMES["fp8-channel"]
    folders = made.quantized(source, folder, config_of(*scheme), storing(*scheme))
    made.reconfigure(folders[0], lambda config: config["config_groups"]["group_0"].update(input_activations=W8A8))
    return folders


@pytest.mark.slow
def test_fp8_in_a_model(source: Path, tmp_path: Path) -> None:
    """Norms that quantise for a layer that does not expect it, and rows that are quantised twice."""
    cpu, folders = torch.device("cpu"), fp8(source, tmp_path)
    model = loaded(folders[0], cpu, packer=CudaPacker(cpu))
    assert (model.spec.quantization, model.spec.stored_as.kept) == ("fp8-as-stored", 14)
    assert all(layer.input_layernorm.is_fp8 and layer.mlp.gate_up_proj.to_fp8 for layer in model.layers.values())
    assert not model.norm.is_fp8
    fused = logits(model, TritonOps())
    wanted = logits(loaded(folders[1], cpu), Ops())
    assert 0 < distance(fused, wanted) < 0.2
    assert distance(fused, logits(model, Ops())) < 0.05
    again = loaded(source, cpu, packer=CudaPacker(cpu), quantization="fp8", dtype="auto")
    assert (again.spec.quantization, again.spec.dtype) == ("fp8", torch.bfloat16)
    found, exact = logits(again, TritonOps()), logits(loaded(source, cpu), Ops())
    assert 0 < distance(found, exact) < 0.2
    assert loaded(folders[0], cpu, packer=Packer()).spec.quantization == "none"


FOUR_BITS: dict[str, Callable[[], tuple[Any, Any]]] = {
    **{name: lambda name=name: FORMATS[name] for name in ("gptq", "gptq-act-order", "awq")},
    "packed": lambda: (config_of(*SCHEMES["int4-zero-points"]), storing(*SCHEMES["int4-zero-points"])),
}


@pytest.mark.parametrize("name", ["gptq", *(slow(name) for name in FOUR_BITS if name != "gptq")])
def test_checkpoints_of_four_bits_stay_so(name: str, source: Path, tmp_path: Path) -> None:
    """On a GPU most of these are used because nothing else fits."""
    cpu = torch.device("cpu")
    ours, plain = made.quantized(source, tmp_path, *FOUR_BITS[name]())
    for dtype in ("bfloat16", "float16"):
        model = loaded(ours, cpu, packer=CudaPacker(cpu), dtype=dtype)
        assert (model.spec.quantization, model.spec.stored_as.kept) == (
            "int4-as-stored",
            0 if name == "gptq-act-order" else 14,
        )
        wanted = logits(loaded(plain, cpu, dtype=dtype), Ops())
        assert distance(logits(model, Ops()), wanted) < 0.02


def test_refusals(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FP8 that is silently computed in bfloat16 takes twice the memory that was planned for."""
    cpu = torch.device("cpu")
    with pytest.raises(CheckpointError, match="--quantization fp8 is not supported here: products in fp8 need a GPU"):
        loaded(source, cpu, quantization="fp8")
    with pytest.raises(CheckpointError, match="products in fp8 need --dtype bfloat16"):
        loaded(source, cpu, quantization="fp8", dtype="float16", packer=CudaPacker(cpu))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    problems = {product.kind: product.supports(torch.device("cuda")) for product in PRODUCTS}
    assert problems == {"fp8": "compute capability 9.0 or newer is needed, a GPU has 8.6", "int4": None}
