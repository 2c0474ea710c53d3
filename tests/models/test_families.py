"""The families of `tiny_families`: logits against those of transformers, and how their checkpoints may be spelled."""

from __future__ import annotations

import functools
import json
import logging
import re
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
from slow import slow
from sluice import LLM, SamplingParams
from sluice.models.checkpoint import CheckpointConfig, CheckpointError
from sluice.models.decoder import Decoder
from sluice.models.loader import load_model
from sluice.models.plan import DecoderConfig, QKNorm

PROMPTS = tuple(tiny_models.prompt(length, seed) for seed, length in enumerate((45, 13, 20)))
"""Longer than a window, and than the original context of a scaled rotation."""
WEIGHTS, CONFIG = "model.safetensors", "config.json"
Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Write the checkpoint of a family."""

    @functools.cache
    def saved(name: str) -> Path:
        path = tmp_path_factory.mktemp(name)
        tiny_families.FAMILIES[name]().save_pretrained(path)
        return path

    return saved


def load(folder: Path, dtype: str = "float64") -> Decoder:
    model = load_model(folder, dtype=dtype, device=torch.device("cpu"), progress=False)[0]
    assert isinstance(model, Decoder)
    return model


@functools.cache
def expected_logits(folder: Path, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    model = tiny_families.load_reference(folder, dtype)
    return [tiny_models.logits(model, prompt) for prompt in PROMPTS]


def worst_error(folder: Path, expected: list[torch.Tensor], dtype: str = "float64", page_size: int = 4) -> float:
    ours = chunked_logits(load(folder, dtype), PROMPTS, page_size=page_size, seed=page_size)
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(ours, expected, strict=True))


@pytest.mark.parametrize("family", tiny_families.FAMILIES)
def test_float64_is_exact(family: str, folder: Folder) -> None:
    """Random chunks over shuffled pages show a lost window, cap, scale, norm, offset or rotation."""
    expected = expected_logits(folder(family))
    assert min(float(part.std()) for part in expected) > 0.1
    for page_size in (1, 16):
        assert worst_error(folder(family), expected, page_size=page_size) <= tiny_families.ERRORS.get(family, 1e-9)


@pytest.mark.parametrize("family", ["lfm2", "granite-hybrid", "qwen3.5", slow("qwen3-next")])
def test_states_are_right_behind_any_cut(family: str, folder: Folder) -> None:
    """Chunks that end before, at and behind a place at which the state is kept, and over several of these."""
    reference = tiny_families.load_reference(folder(family), torch.float64)
    prompts = tuple(tiny_models.prompt(length, seed) for seed, length in enumerate((200, 131)))
    expected = [tiny_models.logits(reference, prompt) for prompt in prompts]
    model = load(folder(family))
    for chunks in ((200,), (1, 1, 2, 3, 31, 32, 33, 63, 64, 65)):
        found = chunked_logits(model, prompts, page_size=16, seed=0, chunks=chunks)
        error = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))
        assert error <= 1e-9, chunks


SAME_BLOCKS = (
    *("gemma4-31b", "gemma4-26b", "smollm3", "phi3", "olmo2", "mixtral", "granite-moe", "granite-moe-shared"),
    *("qwen3.5-moe", "qwen3-next", "granite-hybrid-dense", "lfm2-moe", "nemotron-3"),
)
"""Families of norms, rotations and layers that others have, too."""


@pytest.mark.parametrize(
    "family", [slow(family) if family in SAME_BLOCKS else family for family in tiny_families.FAMILIES]
)
def test_bfloat16_errs_no_more_than_transformers(family: str, folder: Folder) -> None:
    """On average: norms, angles and softmax widen at least where transformers does. The largest error says little, as
    single tokens magnify what is rounded before."""
    exact, theirs = expected_logits(folder(family)), expected_logits(folder(family), torch.bfloat16)
    ours = chunked_logits(load(folder(family), "bfloat16"), PROMPTS, page_size=4, seed=4)
    our_error, their_error = (
        float(torch.cat([(a - b.double()).abs().flatten() for a, b in zip(exact, found, strict=True)]).mean())
        for found in (ours, theirs)
    )
    assert 0 < our_error <= 1.4 * their_error


DROPPED: list[tuple[str, dict[str, Any]]] = [
    ("gemma2", {"softcap": None}),
    ("gemma2", {"logit_softcap": None}),
    ("gemma3", {"embedding_scale": 1.0}),
    ("gemma3", {"qk_norm": QKNorm.HEAD, "norm_eps": 1e-3}),
    ("gemma4", {"value_norm": False}),
    ("gemma4", {"embedding_scale": 1.0}),
    ("gemma4-31b", {"logit_softcap": None}),
    ("olmo2", {"qk_norm": QKNorm.ROW, "norm_eps": 1e-2}),
    ("granite", {"residual_scale": 1.0}),
    ("granite", {"logit_divisor": 1.0}),
    ("granite", {"embedding_scale": 1.0}),
    ("ministral3", {"query_growth": None}),
]
"""Family -> what its config would be if a field of it was not read."""


@pytest.mark.parametrize(("family", "changes"), DROPPED)
def test_a_field_that_is_dropped_shows(
    family: str, changes: dict[str, Any], folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise these tests could not fail for want of it."""
    plain = load(folder(family))
    expected = chunked_logits(plain, PROMPTS, page_size=4, seed=0)
    read = type(plain).read
    monkeypatch.setattr(type(plain), "read", lambda checkpoint, dtype: replace(read(checkpoint, dtype), **changes))
    found = chunked_logits(load(folder(family)), PROMPTS, page_size=4, seed=0)
    assert max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)) > 1e-3


@pytest.mark.parametrize("family", [name if name == "gemma4" else slow(name) for name in tiny_families.FAMILIES])
def test_every_weight_counts(family: str, folder: Folder) -> None:
    """A norm, a bias or a factor that is loaded and then left out."""
    model = load(folder(family))
    expected = chunked_logits(model, PROMPTS[1:2], page_size=4, seed=0)[0]
    draw, seen = torch.Generator().manual_seed(0), set()
    for name, weight in model.named_parameters():
        kind = re.sub(r"(layers|experts)\.\d+\.", "", name)
        if kind in seen:
            continue
        seen.add(kind)
        kept = weight.detach().clone()
        with torch.no_grad():
            weight *= 1 + torch.rand(weight.shape, generator=draw, dtype=weight.dtype)
        found = chunked_logits(model, PROMPTS[1:2], page_size=4, seed=0)[0]
        assert float((found - expected).abs().max()) > 1e-4, name
        with torch.no_grad():
            weight.copy_(kept)
    assert torch.equal(chunked_logits(model, PROMPTS[1:2], page_size=4, seed=0)[0], expected)
    assert len(seen) > 8


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "gemma4", "olmo3", "phi3", "smollm3"])
def test_what_differs_between_layers_shows(family: str, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window, or the rotation of another kind of layer."""
    plain = load(folder(family))
    expected = chunked_logits(plain, PROMPTS, page_size=4, seed=0)
    read, changes = type(plain).read, []
    if any(layer.window for layer in plain.config.layers):
        changes.append({"window": None})
    if len({layer.rope for layer in plain.config.layers}) > 1:
        changes.append({"rope": plain.config.layers[0].rope})
    assert changes
    for change in changes:

        def changed(checkpoint: CheckpointConfig, dtype: torch.dtype, change: dict[str, Any] = change) -> DecoderConfig:
            config = read(checkpoint, dtype)
            return replace(config, layers=tuple(replace(layer, **change) for layer in config.layers))

        monkeypatch.setattr(type(plain), "read", changed)
        found = chunked_logits(load(folder(family)), PROMPTS, page_size=4, seed=0)
        assert max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)) > 1e-3


VARIANTS: dict[str, Callable[[], Any]] = {
    "gemma2, no caps": lambda: tiny_families.gemma2(attn_logit_softcapping=None, final_logit_softcapping=None),
    "gemma3, capped logits": lambda: tiny_families.gemma3(final_logit_softcapping=1.5, tie_word_embeddings=False),
    "gemma3, biases": lambda: tiny_families.gemma3(attention_bias=True),
    "smollm3, windows": lambda: tiny_families.smollm3(use_sliding_window=True, sliding_window=5, layer_types=None),
    "smollm3, biases": lambda: tiny_families.smollm3(attention_bias=True, mlp_bias=True, tie_word_embeddings=False),
    "phi3, plain": lambda: tiny_families.phi3(sliding_window=None),
    "olmo2, tied": lambda: tiny_families.olmo2(tie_word_embeddings=True, num_key_value_heads=4),
    "olmo2, biases": lambda: tiny_families.olmo2(attention_bias=True),
    "granite, biases": lambda: tiny_families.granite(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "ministral3, window": lambda: tiny_families.ministral3(sliding_window=7),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_a_family(variant: str, tmp_path: Path) -> None:
    """Change each option of a config that changes the numbers."""
    VARIANTS[variant]().save_pretrained(tmp_path)
    allowed = tiny_families.ERRORS.get(variant.partition(",")[0], 1e-9)
    assert worst_error(tmp_path, expected_logits(tmp_path)) <= allowed


OLDER: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "gemma3": (
        {
            "rope_theta": 200.0,
            "rope_local_base_freq": 30.0,
            "rope_scaling": {"rope_type": "linear", "factor": 3.0},
            "sliding_window_pattern": 3,
            "torch_dtype": "float32",
        },
        ("rope_parameters", "layer_types", "dtype"),
    ),
    "olmo3": (
        {"rope_theta": 1000.0, "rope_scaling": tiny_families.YARN},
        ("rope_parameters",),
    ),
    "phi4-mini": (
        {
            "rope_theta": 1000.0,
            "partial_rotary_factor": 0.5,
            "rope_scaling": {"type": "su", "short_factor": [1.0, 1.1], "long_factor": [2.0, 3.0]},
        },
        ("rope_parameters",),
    ),
}
"""Family -> fields as configs of transformers 4 spell them, and those of 5 that they stand for."""


@pytest.mark.parametrize("family", OLDER)
def test_older_spellings_mean_the_same(family: str, folder: Folder, tmp_path: Path) -> None:
    given, dropped = OLDER[family]
    config = json.loads((folder(family) / CONFIG).read_text())
    if family == "gemma3":
        config["layer_types"] = ["sliding_attention", "sliding_attention", "full_attention"] * 2
        config["layer_types"] = config["layer_types"][:5]
    new = tmp_path / "new"
    old = tmp_path / "old"
    for path, fields in ((new, config), (old, {k: v for k, v in config.items() if k not in dropped} | given)):
        path.mkdir()
        (path / CONFIG).write_text(json.dumps(fields))
        (path / WEIGHTS).symlink_to(folder(family) / WEIGHTS)
    assert load(old).config == load(new).config


def test_gemma_3_needs_few_fields(tmp_path: Path) -> None:
    """Published configs leave out what their authors' code has as a default."""
    from sluice.models.checkpoint import read_config

    fields = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    inner = {"model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, **fields}
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "text_config": inner}
    (tmp_path / CONFIG).write_text(json.dumps(outer))
    checkpoint = read_config(tmp_path)
    assert checkpoint.architecture == "Gemma3ForCausalLM"
    from sluice.models.families.gemma import Gemma3

    config = Gemma3.read(checkpoint, torch.bfloat16)
    assert (config.spec.num_heads, config.spec.num_kv_heads, config.spec.head_dim) == (8, 4, 256)
    assert (config.spec.vocab_size, config.spec.eos_token_ids, config.tied) == (262208, (1, 106), True)
    assert [layer.window for layer in config.layers[:7]] == [1024] * 5 + [None, 1024]
    assert config.embedding_scale == 50.5, "rounded to bfloat16, as in training"


def composite(source: Path, folder: Path, architecture: str, **outer: Any) -> Path:
    """Write a text model as one inside another that has further parts; the published spelling of names."""
    inner = json.loads((source / CONFIG).read_text())
    del inner["architectures"]
    tensors = load_file(source / WEIGHTS)
    named = {f"language_model.{name}": value for name, value in tensors.items()}
    tower = {f"vision_tower.layers.{n}.weight": torch.ones(3) for n in range(2)}
    folder.mkdir(exist_ok=True)
    save_file(named | tower | {"multi_modal_projector.linear.weight": torch.ones(2)}, folder / WEIGHTS)
    fields = {"architectures": [architecture], "text_config": inner, "vision_config": {}, **outer}
    (folder / CONFIG).write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize(
    ("family", "architecture"),
    [("gemma3", "Gemma3ForConditionalGeneration"), ("ministral3", "Mistral3ForConditionalGeneration")],
)
@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_model_inside_another(
    family: str, architecture: str, prefix: str, folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Parts for images are skipped, and named in the log; the names of both spellings are the same weights."""
    inside = composite(folder(family), tmp_path, architecture)
    tensors = load_file(inside / WEIGHTS)
    renamed = {name.replace("language_model.model.", prefix): value.clone() for name, value in tensors.items()}
    save_file(renamed, inside / WEIGHTS)
    tied = family == "gemma3"
    (inside / CONFIG).write_text(json.dumps(json.loads((inside / CONFIG).read_text()) | {"tie_word_embeddings": tied}))
    with caplog.at_level(logging.WARNING, "sluice"):
        model = load(inside)
    assert model.spec.architecture == f"{'Gemma3' if tied else 'Ministral3'}ForCausalLM"
    expected = chunked_logits(load(folder(family)), PROMPTS, page_size=4, seed=0)
    found = chunked_logits(model, PROMPTS, page_size=4, seed=0)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert "and 2 more is not used: a part for images" in caplog.text


def test_tokens_of_images_are_refused(folder: Folder, tmp_path: Path) -> None:
    """As text they would be tokens that the model was never trained on."""
    inside = composite(folder("gemma3"), tmp_path, "Gemma3ForConditionalGeneration", image_token_index=77)
    with LLM(inside, dtype="float32", max_total_tokens=64) as llm:
        with pytest.raises(ValueError, match="token id 77 in the prompt stands for an image or for sound"):
            llm.generate([[5, 77, 6]], SamplingParams(max_tokens=1))
        assert llm.generate([[5, 78, 6]], SamplingParams(max_tokens=1))


def test_another_text_model_inside_is_refused(folder: Folder, tmp_path: Path) -> None:
    inside = composite(folder("olmo2"), tmp_path, "Gemma3ForConditionalGeneration")
    with pytest.raises(CheckpointError, match="model_type must be one of gemma3_text inside Gemma3ForConditional"):
        load(inside)


def test_qwen3_vl_is_a_qwen3(tmp_path: Path) -> None:
    """The text model, as transformers computes it: positions in a text are the same on all three grids."""
    rope = {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 2, 2], "mrope_interleaved": True}
    text = tiny_models.sizes() | {"head_dim": 12, "rope_parameters": rope}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision | {"deepstack_visual_indexes": [0]})
    tiny_models.made(transformers.Qwen3VLForConditionalGeneration, config).save_pretrained(tmp_path)
    with tiny_models.exact(torch.float64), torch.inference_mode():
        reference = transformers.Qwen3VLForConditionalGeneration.from_pretrained(
            tmp_path, dtype=torch.float64, attn_implementation="eager"
        ).eval()
        expected = [reference(torch.tensor([prompt]), use_cache=False).logits[0] for prompt in PROMPTS]
    assert worst_error(tmp_path, expected) <= 1e-9
