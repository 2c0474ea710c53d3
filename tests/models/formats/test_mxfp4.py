"""Experts in MXFP4, as gpt-oss is published and as GGUF files have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_families
import tiny_models
from compiled import library
from models.formats.loading import load
from paged_model import chunked_logits
from sluice.kernels.cpu.library import Kernels
from sluice.models.checkpoint import CheckpointError
from sluice.models.decoder import Decoder
from sluice.models.formats.mxfp4 import mxfp4_blocks
from sluice.models.packers import NativePacker

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NUMBERS = torch.tensor([*MAGNITUDES, *(-each for each in MAGNITUDES)], dtype=torch.float64)
"""What four bits of e2m1 stand for, by the standard."""
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
PROMPTS = (tiny_models.prompt(40), tiny_models.prompt(5, 1))
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def defined(numbers: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Return what blocks [..., outputs, groups, 16] stand for, [..., outputs, inputs] float64."""
    pairs = torch.stack((NUMBERS[(numbers & 15).long()], NUMBERS[(numbers >> 4).long()]), -1).flatten(-2)
    return (pairs * torch.exp2(exponents.double() - 127)[..., None]).flatten(-2)


def test_all_bytes_and_scales_mean_what_the_standard_says() -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).expand(256, -1, -1)
    exponents = torch.arange(256, dtype=torch.uint8)[:, None].expand(-1, 16)
    found = mxfp4_blocks(numbers, exponents).dense(torch.float32)
    assert torch.equal(found, defined(numbers, exponents).float())


def published(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """Write a tiny gpt-oss with experts in MXFP4, and one with the same numbers in float32."""
    quantised, plain = folder / "mxfp4", folder / "plain"
    tiny_families.gpt_oss(**(SIZES | changes)).save_pretrained(plain)
    tensors, stored, draw = load_file(plain / WEIGHTS), {}, torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors[name].shape
        shape = (experts, outputs, inputs // 32)
        numbers = torch.randint(0, 256, (*shape, 16), generator=draw, dtype=torch.uint8)
        exponents = torch.randint(121, 124, shape, generator=draw, dtype=torch.uint8)
        stored |= {f"{name}_blocks": numbers, f"{name}_scales": exponents}
        tensors[name] = defined(numbers, exponents).float().transpose(1, 2).contiguous()
    quantised.mkdir()
    save_file(
        {name: value for name, value in tensors.items() if f"{name}_blocks" not in stored} | stored, quantised / WEIGHTS
    )
    save_file(tensors, plain / WEIGHTS)
    config = json.loads((plain / CONFIG).read_text())
    section = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (quantised / CONFIG).write_text(json.dumps(config | {"quantization_config": section}))
    return quantised, plain


def logits(folder: Path, **options: Any) -> torch.Tensor:
    model = load(folder, **options)
    assert isinstance(model, Decoder)
    return torch.cat(chunked_logits(model, PROMPTS, page_size=4, seed=0)).float()


def test_a_published_checkpoint_has_the_numbers_that_it_stores(tmp_path: Path) -> None:
    """Without products in it, experts are dequantised: the numbers are exact in any dtype."""
    quantised, plain = published(tmp_path)
    assert torch.equal(logits(quantised, dtype="float32"), logits(plain, dtype="float32"))


def test_experts_are_multiplied_as_they_are_stored(tmp_path: Path) -> None:
    quantised, plain = published(tmp_path)
    packer = NativePacker(Kernels(library(), library().best(), 1))
    model = load(quantised, dtype="bfloat16", packer=packer)
    assert isinstance(model, Decoder)
    assert model.spec.quantization == "blocks-as-stored"
    assert model.spec.stored_as is not None
    assert model.spec.stored_as.kept == 4 * 10 * 3
    assert model.spec.weight_bytes < 0.6
    found = torch.cat(chunked_logits(model, PROMPTS, page_size=4, seed=0)).float()
    expected = logits(plain, dtype="float32")
    assert float((found - expected).norm() / expected.norm()) < 0.1


REFUSED = {
    "no scales": (lambda t: t.pop("model.layers.1.mlp.experts.down_proj_scales"), "lacks the tensor layers.1.mlp.exp"),
    "fewer experts": (
        lambda t: [t.update({n: v[:7].clone()}) for n, v in t.items() if "0.mlp.experts.down_proj_" in n],
        "down_proj_.* has 7 experts, and the config says 10",
    ),
    "groups": (
        lambda t: t.update({(n := "model.layers.0.mlp.experts.down_proj_scales"): t[n][..., :2].clone()}),
        r"must be uint8 \[experts, outputs, groups, 16\]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tensors_that_do_not_fit_are_refused(case: str, tmp_path: Path) -> None:
    change, message = REFUSED[case]
    quantised, _ = published(tmp_path)
    tensors = load_file(quantised / WEIGHTS)
    change(tensors)
    save_file(tensors, quantised / WEIGHTS)
    with pytest.raises(CheckpointError, match=message):
        load(quantised, dtype="float32")
