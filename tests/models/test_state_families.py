"""Configs of families whose layers have a state: older spellings, variants, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import tiny_families
import tiny_models
from paged_model import chunked_logits
from sluice.models.checkpoint import CheckpointConfig, CheckpointError
from sluice.models.decoder import Decoder
from sluice.models.loader import check_layout, load_model
from sluice.models.plan import DecoderConfig
from sluice.parallel.layout import Layout

PROMPTS = (tiny_models.prompt(70), tiny_models.prompt(9, 1))
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def load(folder: Path) -> Decoder:
    model = load_model(folder, dtype="float64", device=torch.device("cpu"), progress=False)[0]
    assert isinstance(model, Decoder)
    return model


def error(folder: Path, reference: transformers.PreTrainedModel) -> float:
    """Return how far logits are from those of transformers, at most."""
    found = chunked_logits(load(folder), PROMPTS, page_size=16, seed=0, max_chunk=40)
    expected = [tiny_models.logits(reference, prompt) for prompt in PROMPTS]
    return max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True))


def rewritten(source: Path, folder: Path, changes: dict[str, Any], dropped: tuple[str, ...] = ()) -> Path:
    """Write a config with changes beside the same weights."""
    folder.mkdir()
    fields = json.loads((source / CONFIG).read_text()) | changes
    (folder / CONFIG).write_text(json.dumps({name: fields[name] for name in fields if name not in dropped}))
    (folder / WEIGHTS).symlink_to(source / WEIGHTS)
    return folder


DROPPED: list[tuple[str, dict[str, Any]]] = [
    ("granite-hybrid", {"groups": 1}),
    ("granite-hybrid", {"time_step_limit": (0.0, float("inf"))}),
    ("granite-hybrid", {"norm_eps": 1e-2}),
    ("qwen3.5", {"norm_eps": 1e-2}),
]
"""Family -> what its layers with a state would be if a field was not read."""


@pytest.mark.parametrize(("family", "changes"), DROPPED)
def test_a_field_that_is_dropped_shows(
    family: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise these tests could not fail for want of it."""
    tiny_families.FAMILIES[family]().save_pretrained(tmp_path)
    plain = load(tmp_path)
    expected = chunked_logits(plain, PROMPTS, page_size=16, seed=0)
    read = type(plain).read

    def changed(checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config = read(checkpoint, dtype)
        layers = (
            layer if layer.state is None else replace(layer, state=replace(layer.state, **changes))
            for layer in config.layers
        )
        return replace(config, layers=tuple(layers))

    monkeypatch.setattr(type(plain), "read", changed)
    found = chunked_logits(load(tmp_path), PROMPTS, page_size=16, seed=0)
    assert max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True)) > 1e-3


def test_value_heads_that_take_turns_show(tmp_path: Path) -> None:
    """The order of a GGUF file's heads, with the weights of another checkpoint."""
    tiny_families.qwen3_5().save_pretrained(tmp_path / "plain")
    turned = rewritten(tmp_path / "plain", tmp_path / "turned", {"linear_value_heads_take_turns": True})
    found, expected = (
        chunked_logits(load(each), PROMPTS, page_size=16, seed=0) for each in (turned, tmp_path / "plain")
    )
    assert max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True)) > 0.1


NO_BIAS = {"conv_bias": False, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": False}
VARIANTS: dict[str, Callable[[], transformers.PreTrainedModel]] = {
    "lfm2, no biases": lambda: tiny_families.lfm2(**NO_BIAS),
    "lfm2, four taps": lambda: tiny_families.lfm2(conv_L_cache=4),
    "qwen3.5, biases": lambda: tiny_families.qwen3_5(attention_bias=True, linear_num_value_heads=2),
    "qwen3.5, half of a head": lambda: tiny_families.qwen3_5(
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}
    ),
    "granite, no bias of the convolution": lambda: tiny_families.granite_hybrid_dense(
        mamba_conv_bias=False, mamba_proj_bias=False, attention_bias=True, mamba_n_groups=1
    ),
    "nemotron, biases": lambda: tiny_families.nemotron_h(use_bias=True, use_conv_bias=False, mlp_bias=False),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_a_family(variant: str, tmp_path: Path) -> None:
    """Change each option of a config that changes the numbers."""
    VARIANTS[variant]().save_pretrained(tmp_path)
    assert error(tmp_path, tiny_families.load_reference(tmp_path, torch.float64)) <= 1e-9


OLDER: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "lfm2": (
        {"full_attn_idxs": [1, 4], "block_ff_dim": 44, "tie_embedding": True, "rope_theta": 1000.0},
        ("layer_types", "intermediate_size", "tie_word_embeddings", "rope_parameters"),
    ),
    "granite-hybrid": (
        {"layer_types": ["mamba", "attention", "mamba", "mamba", "attention"], "position_embedding_type": "nope"},
        (),
    ),
    "nemotron-3": ({"hybrid_override_pattern": "MEM*E"}, ("layers_block_type",)),
}
"""Family -> fields as older configs spell them, and those that they stand for."""


@pytest.mark.parametrize("family", OLDER)
def test_older_spellings_mean_the_same(family: str, tmp_path: Path) -> None:
    tiny_families.FAMILIES[family]().save_pretrained(tmp_path / "new")
    old = rewritten(tmp_path / "new", tmp_path / "old", *OLDER[family])
    assert load(old).config == load(tmp_path / "new").config


def test_a_bound_without_an_end_may_be_spelled_in_two_ways(tmp_path: Path) -> None:
    """transformers writes infinity as an object, and published configs as JSON's extension."""
    tiny_families.granite_hybrid(time_step_limit=(0.0, float("inf"))).save_pretrained(tmp_path / "new")
    old = rewritten(tmp_path / "new", tmp_path / "old", {"time_step_limit": [0.0, float("inf")]})
    assert "Infinity" in (tmp_path / "new" / CONFIG).read_text()
    assert load(old).config == load(tmp_path / "new").config


def test_names_of_published_files_are_known(tmp_path: Path) -> None:
    """Nemotron-H's begin with `backbone`, and its layers' parts are all called `mixer`."""
    tiny_families.nemotron_3().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    expected = chunked_logits(load(tmp_path), PROMPTS, page_size=16, seed=0)
    for outer in ("backbone.", "model."):
        renamed = {name.replace("backbone.", outer).replace("model.", outer): part for name, part in tensors.items()}
        save_file(renamed, tmp_path / WEIGHTS, metadata={"format": "pt"})
        found = chunked_logits(load(tmp_path), PROMPTS, page_size=16, seed=0)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_text_model_of_qwen3_5_with_images(tmp_path: Path) -> None:
    """Positions of a text are the same on all grids of its rotation; layers that draft are skipped."""
    text = tiny_families.qwen3_5().config.to_dict()
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision)
    model = tiny_models.made(transformers.Qwen3_5ForConditionalGeneration, config)
    tiny_families.with_random_rates(model).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    save_file(tensors | {"mtp.fc.weight": torch.ones(2, 2)}, tmp_path / WEIGHTS, metadata={"format": "pt"})
    with tiny_models.exact(torch.float64):
        reference = transformers.Qwen3_5ForConditionalGeneration.from_pretrained(
            tmp_path, dtype=torch.float64, attn_implementation="eager"
        ).eval()
    assert error(tmp_path, reference) <= 1e-9


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "lfm2, kinds": ("lfm2", {"layer_types": ["conv"] * 5}, "a model without layers of attention is not supported"),
    "lfm2, unknown": ("lfm2", {"layer_types": ["mamba"] * 5}, "layer_types must be 5 times full_attention or conv"),
    "lfm2, places": ("lfm2", {"layer_types": None, "full_attn_idxs": [9]}, "a list of layers from 0 to 4"),
    "qwen3.5, heads": ("qwen3.5", {"linear_num_value_heads": 5}, "a multiple of linear_num_key_heads = 2"),
    "qwen3.5, gate": ("qwen3.5", {"attn_output_gate": False}, "attn_output_gate must be true"),
    "granite, heads": ("granite-hybrid", {"mamba_n_heads": 7}, "a divisor of 96 and a multiple of mamba_n_groups = 2"),
    "granite, head": ("granite-hybrid", {"mamba_d_head": 3}, "mamba_d_head must be 16"),
    "granite, limit": ("granite-hybrid", {"time_step_limit": [2, 1]}, "time_step_limit must be two numbers"),
    "granite, positions": ("granite-hybrid", {"position_embedding_type": "alibi"}, "must be rope, nope or null"),
    "nemotron, kinds": ("nemotron-h", {"layers_block_type": ["hyena"] * 6}, "without 'hyena'"),
    "nemotron, experts": ("nemotron-3", {"moe_latent_size": 8}, "experts of another width than the model's"),
    "nemotron, groups": ("nemotron-3", {"n_group": 5}, "a multiple of n_group = 5"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused(case: str, tmp_path: Path) -> None:
    family, changes, reason = REFUSED[case]
    tiny_families.FAMILIES[family]().save_pretrained(tmp_path / "source")
    folder = rewritten(tmp_path / "source", tmp_path / "changed", changes)
    with pytest.raises(CheckpointError, match=reason):
        load(folder)


@pytest.mark.parametrize("layout", [Layout(2, 1), Layout(1, 2)])
def test_several_devices_are_refused(layout: Layout, tmp_path: Path) -> None:
    tiny_families.lfm2().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="which one device computes alone: leave out --tp-size and --pp-size"):
        check_layout(tmp_path, layout)


def test_a_matrix_of_another_number_of_heads_is_refused(tmp_path: Path) -> None:
    """Qwen3-Next's rows are those of each key head in turn, so a wrong number would divide them elsewhere."""
    tiny_families.qwen3_next().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    name = "model.layers.0.linear_attn.in_proj_ba.weight"
    save_file(tensors | {name: tensors[name][:-2].clone()}, tmp_path / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"in_proj_ba\.weight has the shape .*: 2 k heads have 6 rows each"):
        load(tmp_path)
