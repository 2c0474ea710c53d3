"""Quantised checkpoints of the families of `tiny_families`, and these families quantised while they are loaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import torch

import quantized_checkpoints as made
import tiny_families
import tiny_models
from compiled import library
from models.formats.loading import assert_same, load
from models.formats.test_compressed import SCHEMES, config_of, storing
from models.formats.test_four_bits import AWQ_CONFIG, GPTQ_CONFIG, awq, gptq
from models.formats.test_fp8 import BLOCKS, in_blocks
from paged_model import chunked_logits
from slow import products, slow
from sluice.kernels.cpu.library import Kernels
from sluice.models.linear import Packer
from sluice.models.packers import NativePacker

SIZES = {"hidden_size": 64, "intermediate_size": 96}
OTHERS: dict[str, dict[str, Any]] = {
    "phi4-mini": {"hidden_size": 32},
    "gemma4": {"hidden_size_per_layer_input": 32},
    "lfm2": {"block_auto_adjust_ff_dim": False},
}
OTHERS["qwen3-moe"] = {"moe_intermediate_size": 96}
OTHERS["gemma4-26b"] = {"top_k_experts": 10}  # all of them: rounding may choose others where two are nearly equal
ALL = {"num_experts_per_tok": 10}
TWO: dict[str, Any] = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
"""Few layers, and all experts: rounding is large where a state amplifies it from layer to layer."""
OF_EXPERTS = {"moe_intermediate_size": 96, "shared_expert_intermediate_size": 96}
LINEAR = {"linear_num_value_heads": 8, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
MAMBA = {"mamba_num_heads": 8, "ssm_state_size": 16, "head_dim": 16}
OTHERS |= {
    "qwen3.5": LINEAR,
    "qwen3.5-moe": LINEAR | OF_EXPERTS | ALL | TWO,
    "qwen3-next": LINEAR | OF_EXPERTS | ALL | TWO | {"mlp_only_layers": []},
    "granite-hybrid": ALL | TWO,
    "lfm2-moe": {"moe_intermediate_size": 96} | ALL,
    "nemotron-h": MAMBA,
    "nemotron-3": MAMBA | {"moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 96},
}
IN_STACKS = (
    "qwen3-next",
    "granite-hybrid",
    "granite-hybrid-dense",
    "mixtral",
    "gpt-oss",
    "granite-moe",
    "granite-moe-shared",
    "gemma4-26b",
)
"""Families whose experts have other names, or are stored together, so that no such checkpoint is made of them here."""
PROMPTS = (tiny_models.prompt(30), tiny_models.prompt(5, 1))
NATIVE = NativePacker(Kernels(library(), library().best(), 1))
ACTIVATIONS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
Folder = Callable[[str], Path]


def of_scheme(name: str) -> tuple[dict[str, Any], Callable[[torch.Tensor], made.Stored]]:
    config = config_of(*SCHEMES[name])
    if name == "int8":  # W8A8: its products take activations in int8, too
        config["config_groups"]["group_0"]["input_activations"] = ACTIVATIONS
    return config, storing(*SCHEMES[name])


FORMATS: dict[str, Callable[[], tuple[dict[str, Any], Callable[[torch.Tensor], made.Stored]]]] = {
    "w8a8": lambda: of_scheme("int8"),
    "fp8": lambda: of_scheme("fp8-channel"),
    "w4a16": lambda: of_scheme("int4-groups"),
    "fp8-blocks": lambda: (BLOCKS, in_blocks),
    "gptq": lambda: (GPTQ_CONFIG, gptq()),
    "awq": lambda: (AWQ_CONFIG, awq),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    @functools.cache
    def saved(family: str) -> Path:
        path = tmp_path_factory.mktemp(family)
        sizes = SIZES | OTHERS.get(family, {})
        tiny_families.FAMILIES[family](**sizes).save_pretrained(path)
        return path

    return saved


@products(family=[name for name in tiny_families.FAMILIES if name not in IN_STACKS], stored_as=list(FORMATS))
def test_a_family_in_each_format(family: str, stored_as: str, folder: Folder, tmp_path: Path) -> None:
    """Matrices of three parts, layers without keys or without values, and names that another family does not have."""
    config, store = FORMATS[stored_as]()
    ours, theirs = made.quantized(folder(family), tmp_path, config, store)
    plain = load(theirs)
    assert_same(load(ours), plain)
    exact, found = (
        chunked_logits(load(each, packer=packer), PROMPTS, page_size=4, seed=0)
        for each, packer in ((theirs, Packer()), (ours, NATIVE))
    )
    for one, other in zip(found, exact, strict=True):
        assert float((one.double() - other.double()).norm() / other.double().norm()) < 0.3


QUANTISED = [*zip(tiny_families.FAMILIES, cycle(("int8", "int4")), strict=False)]
IN_NO_FORMAT = (*IN_STACKS, "gemma4", "phi3")
"""Families of which no checkpoint is quantised above, and two more."""


@pytest.mark.parametrize(
    ("family", "quantization"),
    [
        case if case in QUANTISED and case[0] in IN_NO_FORMAT else slow(*case)
        for case in product(tiny_families.FAMILIES, ("int8", "int4"))
    ],
)
def test_a_family_quantised_while_it_is_loaded(family: str, quantization: str, folder: Folder) -> None:
    """As the weights say that it holds: the kernels alone take the activations of int4 in int8, too."""
    options = {"dtype": "bfloat16", "quantization": quantization}
    plain, native = (load(folder(family), packer=packer, **options) for packer in (Packer(), NATIVE))
    assert native.spec.quantization == quantization
    exact, found = (chunked_logits(model, PROMPTS, page_size=4, seed=0) for model in (plain, native))
    for one, other in zip(found, exact, strict=True):
        assert float((one.double() - other.double()).norm() / other.double().norm()) <= 0.3
