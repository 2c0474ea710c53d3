"""compressed-tensors: weights must be those that the library itself unpacks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import quantized_checkpoints as made
import tiny_models
from models.formats.loading import assert_same, load, refusal

SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "fp8-channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "fp8-tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "fp8-block": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 16]},
    ),
    "int8": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "int8-zero-points": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False}),
    "int4-groups": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16}),
    "int4-zero-points": (
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16, "symmetric": False},
    ),
    "int8-packed": ("pack-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
}


def config_of(stored_as: str, weights: dict[str, Any], **changes: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": stored_as,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    } | changes


def storing(stored_as: str, weights: dict[str, Any]) -> Callable[[torch.Tensor], made.Stored]:
    """Return what quantises a weight by the library, and unpacks it by the library again."""

    def store(weight: torch.Tensor) -> made.Stored:
        from compressed_tensors.compressors import BaseCompressor  # takes three seconds, in every worker
        from compressed_tensors.quantization import QuantizationScheme

        scheme = QuantizationScheme(targets=["Linear"], weights=weights)
        compressor = BaseCompressor.get_value_from_registry(stored_as)
        low, high = _ranges(weight, scheme.weights)
        top = 448.0 if weights["type"] == "float" else 2 ** (weights["num_bits"] - 1) - 1
        state = {"weight": weight}
        if weights.get("symmetric", True):
            state["weight_scale"] = torch.maximum(high.abs(), low.abs()) / top
        else:
            state["weight_scale"] = (high.clamp(min=0) - low.clamp(max=0)) / (2 * top + 1)
            zeros = (-top - 1 - low.clamp(max=0) / state["weight_scale"]).round().to(torch.int8)
            state["weight_zero_point"] = zeros
        parts = compressor.compress(state, scheme)
        return parts, compressor.decompress(parts, scheme)["weight"].bfloat16()

    return store


def _ranges(weight: torch.Tensor, args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least and the greatest weight that share a scale, in the shape of the scales."""
    if args.strategy == "tensor":
        return weight.min().reshape(1), weight.max().reshape(1)
    if args.strategy == "block":
        rows, columns = args.block_structure
        parts = [list(row.split(columns, 1)) for row in weight.split(rows)]
        low, high = ([[float(f(block)) for block in row] for row in parts] for f in (torch.min, torch.max))
        return torch.tensor(low), torch.tensor(high)
    groups = weight.unflatten(1, (-1, args.group_size or weight.shape[1]))
    return groups.amin(2), groups.amax(2)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose sizes groups of 16 divide."""
    folder = tmp_path_factory.mktemp("llama")
    tiny_models.llama(intermediate_size=48).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", SCHEMES)
def test_weights_are_those_of_the_library(name: str, plain: Path, tmp_path: Path) -> None:
    """A scale of another row, or a nibble in another place, would serve a model that writes nonsense."""
    stored_as, weights = SCHEMES[name]
    ours, theirs = made.quantized(plain, tmp_path, config_of(stored_as, weights), storing(stored_as, weights))
    assert_same(load(ours), load(theirs))


def test_slices_of_a_large_weight_fit_together(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight is dequantised a slice at a time; zero points and scales must be those of the slice's rows."""
    monkeypatch.setattr("sluice.models.formats.dequantize.AT_ONCE", 1)
    for number, name in enumerate(("int4-zero-points", "fp8-block", "int8-zero-points")):
        stored_as, weights = SCHEMES[name]
        folder = tmp_path / str(number)
        folder.mkdir()
        ours, theirs = made.quantized(plain, folder, config_of(stored_as, weights), storing(stored_as, weights))
        assert_same(load(ours), load(theirs))


def test_what_is_ignored_is_plain(plain: Path, tmp_path: Path) -> None:
    """Most checkpoints leave some layers as they were."""
    stored_as, weights = SCHEMES["int4-groups"]
    keep = "model.layers.1.mlp.down_proj"
    config = config_of(stored_as, weights, ignore=["lm_head", "re:.*layers.1.mlp.down.*"])
    ours, theirs = made.quantized(plain, tmp_path, config, storing(stored_as, weights), keep=(keep,))
    assert_same(load(ours), load(theirs))
    made.reconfigure(ours, lambda settings: settings.update(ignore=["lm_head"]))
    assert f"tensor {keep}.weight is not quantised" in refusal(ours)


def test_two_groups(plain: Path, tmp_path: Path) -> None:
    """Layers may be quantised in different ways, each by its own group."""
    int4, fp8 = SCHEMES["int4-groups"], SCHEMES["fp8-channel"]
    config = config_of("mixed-precision", {})
    config["config_groups"] = {
        "group_0": {"targets": ["re:.*mlp.*"], "weights": int4[1], "format": int4[0]},
        "group_1": {"targets": ["re:.*self_attn.*"], "weights": fp8[1], "format": fp8[0]},
    }
    stores = {True: storing(*int4), False: storing(*fp8)}

    def store(weight: torch.Tensor) -> made.Stored:
        return stores[48 in weight.shape](weight)  # a side of 48 is that of the MLP

    ours, theirs = made.quantized(plain, tmp_path, config, store)
    assert_same(load(ours), load(theirs))


def test_scales_of_activations_and_kv_are_left_out(plain: Path, tmp_path: Path) -> None:
    """Static scales of inputs, and of an FP8 KV cache, are no weights; they must not stop a checkpoint from loading."""
    stored_as, weights = SCHEMES["fp8-tensor"]
    ours, theirs = made.quantized(plain, tmp_path, config_of(stored_as, weights), storing(stored_as, weights))
    extra = {"layers.0.self_attn.k_scale", "layers.0.self_attn.v_scale", "layers.0.mlp.down_proj.input_scale"}
    made.change(ours, lambda tensors: tensors | {f"model.{name}": torch.ones(1) for name in extra})
    assert_same(load(ours), load(theirs))


Q = "model.layers.0.self_attn.q_proj"
BROKEN: dict[str, tuple[Callable[[made.Tensors], made.Tensors], str]] = {
    "no scale": (lambda t: {k: v for k, v in t.items() if k != f"{Q}.weight_scale"}, f"tensor {Q}.weight_scale is mi"),
    "shape": (lambda t: t | {f"{Q}.weight_scale": torch.ones(3, 2)}, f"tensor {Q}.weight_scale has shape (3, 2), "),
    "dtype": (lambda t: t | {f"{Q}.weight_packed": t[f"{Q}.weight_packed"].float()}, "packed has dtype float32, "),
    "unknown": (lambda t: t | {f"{Q}.weight_g_idx": torch.ones(3)}, f"unexpected tensor {Q}.weight_g_idx"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_part_is_refused(name: str, plain: Path, tmp_path: Path) -> None:
    """The message must name the tensor, so that a user sees which file is at fault."""
    stored_as, weights = SCHEMES["int4-groups"]
    edit, message = BROKEN[name]
    ours, _ = made.quantized(plain, tmp_path, config_of(stored_as, weights), storing(stored_as, weights))
    assert message in refusal(made.change(ours, edit))


INT4 = SCHEMES["int4-groups"][1]
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "group": (config_of("pack-quantized", INT4 | {"group_size": 20}), "groups of 20 do not divide its 48 inputs"),
    "format": (config_of("marlin-24", INT4), "format 'marlin-24' is not supported; accepted are int-quantized, float-"),
    "fp4": (config_of("float-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor"}), "4-bit floats"),
    "transform": (config_of("pack-quantized", INT4, transform_config={"config_groups": {"a": 1}}), "transform_config"),
    "sparsity": (config_of("pack-quantized", INT4, sparsity_config={"format": "sparse-bitmask"}), "sparsity_config"),
    "value": (config_of("pack-quantized", INT4 | {"num_bits": "four"}), "config_groups.group_0"),
    "no weights": (config_of("pack-quantized", INT4, config_groups={"a": {"targets": ["Linear"]}}), "weight_packed"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_that_is_not_supported_is_refused(name: str, plain: Path, tmp_path: Path) -> None:
    """A scheme that is ignored would serve wrong numbers."""
    config, message = CONFIGS[name]
    ours, _ = made.quantized(plain, tmp_path, config, storing(*SCHEMES["int4-groups"]))
    assert message in refusal(ours)


def test_without_the_package(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message must say what to install."""
    ours, _ = made.quantized(plain, tmp_path, config_of(*SCHEMES["int8"]), storing(*SCHEMES["int8"]))
    monkeypatch.setitem(sys.modules, "compressed_tensors.quantization", None)
    assert "needs the package compressed-tensors: pip install 'sluice-llm[quantized]'" in refusal(ours)
