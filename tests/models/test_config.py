"""Reading config.json: both spellings, the defaults, and the refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sluice.models.base import CausalLM
from sluice.models.checkpoint import CheckpointConfig, CheckpointError, read_config, refuse_unsupported
from sluice.models.decoder import Decoder
from sluice.models.model_class import model_class
from sluice.models.plan import DecoderConfig, LayerPlan, QKNorm
from sluice.models.registry import ARCHITECTURES
from sluice.models.rope import Llama3Rope, Rope, YarnRope

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 100,
    "n_embd": 24,
    "n_head": 3,
    "n_layer": 2,
    "n_positions": 64,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


def write(folder: Path, config: object, generation: object = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def native(folder: Path, config: object) -> CheckpointConfig:
    checkpoint = read_config(write(folder, config))
    refuse_unsupported(checkpoint.fields)
    return checkpoint


def build(folder: Path, config: object) -> CausalLM:
    checkpoint = native(folder, config)
    with torch.device("meta"):
        return model_class(checkpoint.architecture).from_checkpoint(checkpoint, torch.float32)


def parse(folder: Path, **changes: Any) -> DecoderConfig:
    checkpoint = native(folder, LLAMA | changes)
    decoder = model_class(checkpoint.architecture)
    assert issubclass(decoder, Decoder)
    return decoder.read(checkpoint, torch.float32)


def rope_of(folder: Path, **changes: Any) -> Rope | None:
    (rope,) = {layer.rope for layer in parse(folder, **changes).layers}
    return rope


def windows_of(folder: Path, **changes: Any) -> tuple[int | None, ...]:
    return tuple(layer.window for layer in parse(folder, **changes).layers)


def test_bare_llama_has_the_defaults_of_transformers(tmp_path: Path) -> None:
    """Early Llama configs omit fields that had only one value then."""
    config = parse(tmp_path)
    assert (config.spec.num_kv_heads, config.spec.head_dim, config.norm_eps) == (4, 16, 1e-6)
    options = (config.tied, config.qkv_bias, config.output_bias, config.mlp_bias)
    assert options == (False,) * 4
    assert config.qk_norm is QKNorm.NONE
    assert config.layers == (LayerPlan(0.25, None, Rope(10_000.0)),) * 3


@pytest.mark.parametrize("rope", [LLAMA3_ROPE, YARN_ROPE, {"rope_type": "linear", "factor": 2.0}, {}])
def test_both_spellings_mean_the_same(rope: dict[str, Any], tmp_path: Path) -> None:
    old_rope = {"type" if name == "rope_type" else name: value for name, value in rope.items()}
    old = parse(tmp_path, rope_theta=5e5, rope_scaling=old_rope or None, torch_dtype="bfloat16")
    old_dtype = read_config(tmp_path).dtype
    new = parse(tmp_path, rope_parameters={"rope_theta": 5e5, **rope}, dtype="bfloat16")
    assert old == new
    assert old_dtype == read_config(tmp_path).dtype == "bfloat16"
    assert all(layer.rope is not None and layer.rope.theta == 5e5 for layer in new.layers)


def test_rope_theta_outside_new_parameters_counts(tmp_path: Path) -> None:
    assert rope_of(tmp_path, rope_parameters={"rope_type": "default"}, rope_theta=5e5) == Rope(5e5)


@pytest.mark.parametrize(
    ("rope", "unread"),
    [
        (YARN_ROPE, {"finetuned": True, "extrapolation_factor": 1.0, "low_freq_factor": 1.0, "_comment": "x"}),
        ({"rope_type": "linear", "factor": 2.0}, {"original_max_position_embeddings": 1024, "beta_fast": 32}),
        ({"rope_type": "default"}, {"mrope_section": [2, 3, 3]}),
        (LLAMA3_ROPE, {"beta_slow": 1.0}),
    ],
)
def test_rope_parameters_that_nothing_reads_are_named(
    rope: dict[str, Any], unread: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers, too, computes the same with them."""
    plain = {name: value for name, value in rope.items() if name not in unread}
    expected = rope_of(tmp_path, rope_scaling=plain)
    assert "does not use" not in caplog.text
    assert rope_of(tmp_path, rope_scaling=plain | unread) == expected
    assert f"does not use {', '.join(unread)}" in caplog.text


def test_attn_factor_multiplies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """DeepSeek-R1-0528-Qwen3-8B undoes YaRN's factor, as vLLM reads it; without, its attention is too sharp."""
    rope = rope_of(tmp_path, rope_scaling=YARN_ROPE | {"attn_factor": 0.8782488562869419})
    assert rope.attention_factor == pytest.approx(1.0)
    assert "attn_factor = 0.878249 is used" in caplog.text
    whole = rope_of(tmp_path, rope_scaling=YARN_ROPE | {"attn_factor": 0.5, "attention_factor": 1.25})
    assert whole.attention_factor == 1.25
    caplog.clear()
    assert rope_of(tmp_path, rope_scaling=YARN_ROPE | {"attn_factor": 1.0}) == rope_of(tmp_path, rope_scaling=YARN_ROPE)
    assert not caplog.text


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.0, "attention_factor": 1.0},
        {"rope_type": "default", "factor": 1.0},
        YARN_ROPE | {"apply_yarn_scaling": True, "llama_4_scaling_beta": 0.0},
    ],
)
def test_neutral_rope_parameters_need_no_word(
    rope: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rope_of(tmp_path, rope_scaling=rope)
    assert not caplog.text


def test_both_rope_sections_may_say_the_same(tmp_path: Path) -> None:
    """transformers 5 writes the theta into rope_parameters; older programs look for rope_scaling."""
    old = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 1024}
    both = rope_of(tmp_path, rope_parameters=YARN_ROPE | {"rope_theta": 5e5}, rope_scaling=old)
    assert both == rope_of(tmp_path, rope_scaling=YARN_ROPE, rope_theta=5e5)
    assert rope_of(tmp_path, rope_parameters=YARN_ROPE, rope_scaling=old | {"rope_theta": 5e5}) == both
    texts = {"rope_type": "default", "mrope_section": [2, 3, 3], "finetuned": False}
    assert rope_of(tmp_path, rope_parameters={"rope_type": "default"}, rope_scaling=texts) == Rope(10_000.0)


@pytest.mark.parametrize("name", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_a_cap_of_zero_is_none(name: str, tmp_path: Path) -> None:
    """So it is written where a cap is turned off, as GGUF files do, too."""
    assert build(tmp_path, LLAMA | {name: 0.0})


@pytest.mark.parametrize("family", ["Gemma2", "Gemma3"])
def test_a_family_with_caps_may_turn_them_off(family: str, tmp_path: Path) -> None:
    """A null did, and a 0 was refused."""
    names = ["attn_logit_softcapping", "final_logit_softcapping"]
    own = {"architectures": [f"{family}ForCausalLM"], "head_dim": 16}
    config = parse(tmp_path, **own, **dict.fromkeys(names, 0.0))
    assert (config.softcap, config.logit_softcap) == (None, None)
    assert config == parse(tmp_path, **own, **dict.fromkeys(names))


def test_missing_original_context_is_the_whole_context(tmp_path: Path) -> None:
    rope = {name: value for name, value in LLAMA3_ROPE.items() if not name.startswith("original")}
    read = rope_of(tmp_path, rope_parameters=rope)
    assert isinstance(read, Llama3Rope)
    assert read.original_max_positions == 2048


def test_yarn_without_factor_takes_the_ratio_of_contexts(tmp_path: Path) -> None:
    read = rope_of(tmp_path, rope_parameters=YARN_ROPE | {"factor": None})
    assert isinstance(read, YarnRope)
    assert read.factor == 2.0


@pytest.mark.parametrize(("positions", "limit"), [(1024, 4096), (4096, 4096), (8192, 8192)])
def test_yarn_stretches_the_context(positions: int, limit: int, tmp_path: Path) -> None:
    """Qwen recommends adding YaRN without changing max_position_embeddings; the context must grow all the same."""
    assert parse(tmp_path, rope_scaling=YARN_ROPE, max_position_embeddings=positions).spec.max_model_len == limit


def test_null_means_not_given(tmp_path: Path) -> None:
    nulls = dict.fromkeys(("head_dim", "num_key_value_heads", "rope_scaling", "sliding_window", "quantization_config"))
    assert parse(tmp_path, **nulls) == parse(tmp_path)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 8}, (8, 8, 8)),
        ({"sliding_window": None}, (None, None, None)),
        ({}, (4096, 4096, 4096)),
    ],
)
def test_mistral_windows(changes: dict[str, Any], windows: tuple[int | None, ...], tmp_path: Path) -> None:
    """Version 0.1 omits the default window, later versions write null for none."""
    assert windows_of(tmp_path, architectures=["MistralForCausalLM"], **changes) == windows


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 8}, (None, None, None)),
        ({"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 0}, (None, None, None)),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0}, (8, 8, 8)),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}, (None, None, 8)),
        ({"sliding_window": 8, "use_sliding_window": True}, (None, None, None)),
        (
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (8, None, 8),
        ),
    ],
)
def test_qwen_windows(changes: dict[str, Any], windows: tuple[int | None, ...], tmp_path: Path) -> None:
    assert windows_of(tmp_path, architectures=["Qwen2ForCausalLM"], **changes) == windows


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({}, None, ()),
        ({"eos_token_id": 2}, None, (2,)),
        ({"eos_token_id": [2, 5]}, None, (2, 5)),
        ({"eos_token_id": 2}, {"eos_token_id": [7, 8, 7]}, (7, 8)),
        ({"eos_token_id": 2}, {"eos_token_id": None}, (2,)),
        ({"eos_token_id": 0}, {}, (0,)),
    ],
)
def test_ends_of_sequence(config: object, generation: object, expected: tuple[int, ...], tmp_path: Path) -> None:
    """Chat models give their end of turn in generation_config.json; without it they do not stop."""
    write(tmp_path, LLAMA | dict(config), generation)
    assert read_config(tmp_path).eos_token_ids == expected


def test_spec_sizes_the_cache(tmp_path: Path) -> None:
    spec = build(tmp_path, LLAMA | {"num_key_value_heads": 2, "head_dim": 10}).spec
    assert (spec.num_layers, spec.num_kv_heads, spec.head_dim) == (3, 2, 10)


def test_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'FalconForCausalLM' is not supported natively") as caught:
        build(tmp_path, LLAMA | {"architectures": ["FalconForCausalLM"]})
    assert all(name in str(caught.value) for name in ARCHITECTURES)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": None}, "architectures"),
    ({"architectures": ["LlamaForCausalLM", "Other"]}, "architectures"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
    (
        {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}},
        "rope factors must be 8, one for each pair, got 1",
    ),
    ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
    ({"rope_scaling": {"type": "linear", "factor": -1.0}}, "factor must be a number above 0, got -1.0"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0, "attention_factor": 1.5}}, "attention_factor must be 1"),
    ({"rope_scaling": {"type": "default", "factor": 4.0}}, "factor must be 1 for rope type 'default', got 4.0"),
    ({"rope_scaling": YARN_ROPE | {"short_factor": [1.0]}}, "short_factor must be absent for rope type 'yarn'"),
    ({"rope_scaling": YARN_ROPE | {"llama_4_scaling_beta": 0.1}}, "llama_4_scaling_beta must be 0"),
    ({"rope_scaling": YARN_ROPE | {"apply_yarn_scaling": False}}, "apply_yarn_scaling must be True"),
    ({"rope_scaling": LLAMA3_ROPE | {"alpha": 1000.0}}, "alpha must be 1"),
    ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3]}}, "'mrope'"),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "per kind of layer"),
    ({"rope_parameters": LLAMA3_ROPE, "rope_scaling": YARN_ROPE}, "contradict"),
    ({"rope_parameters": YARN_ROPE, "rope_scaling": YARN_ROPE | {"beta_fast": 64.0}}, "contradict"),
    ({"rope_parameters": {"rope_theta": 5.0}, "rope_scaling": {"rope_theta": 6.0}}, "contradict"),
    ({"rope_scaling": LLAMA3_ROPE | {"high_freq_factor": 1.0}}, "high_freq_factor"),
    ({"rope_scaling": {k: v for k, v in LLAMA3_ROPE.items() if k != "low_freq_factor"}}, "low_freq_factor is missing"),
    ({"rope_scaling": YARN_ROPE | {"beta_fast": 1.0, "beta_slow": 2.0}}, "beta_fast"),
    ({"rope_scaling": [1]}, "rope_scaling must be an object"),
    ({"rope_theta": 1.0}, "rope_theta must be above 1"),
    ({"rope_theta": "big"}, "rope_theta must be a number above 0, got 'big'"),
    ({"hidden_act": "xielu"}, "hidden_act must be one of silu"),
    ({"hidden_size": None}, "hidden_size is missing"),
    ({"hidden_size": 66}, "multiple of num_attention_heads = 4, got 66"),
    ({"hidden_size": "64"}, "hidden_size must be an integer of at least 1, got '64'"),
    ({"num_hidden_layers": 0}, "num_hidden_layers"),
    ({"num_hidden_layers": True}, "num_hidden_layers"),
    ({"num_key_value_heads": 3}, "divisor of num_attention_heads = 4, got 3"),
    ({"head_dim": 15}, "head_dim must be even"),
    ({"hidden_size": 60}, "head_dim must be even for rotary embedding, got 15"),
    ({"rms_norm_eps": 0}, "rms_norm_eps"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
    ({"eos_token_id": "</s>"}, "eos_token_id"),
    ({"eos_token_id": [2, -1]}, "eos_token_id"),
    ({"sliding_window": 128}, "sliding_window must be null"),
    ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "layer_types"),
    ({"layer_types": ["full_attention"]}, "3 times"),
    ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, "sliding_window"),
    (
        {"architectures": ["MistralForCausalLM"], "sliding_window": 4, "layer_types": ["full_attention"] * 3},
        "layer_types",
    ),
    ({"architectures": ["MistralForCausalLM"], "attention_bias": True}, "attention_bias must be false"),
    ({"architectures": ["Qwen2ForCausalLM"], "attention_bias": False}, "attention_bias must be true"),
    ({"architectures": ["Qwen2ForCausalLM"], "mlp_bias": True}, "mlp_bias must be false"),
    ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["sliding_attention"] * 3}, "layer_types"),
    ({"architectures": ["Qwen3ForCausalLM"], "layer_types": ["chunked_attention"] * 3}, "layer_types"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_refuses_unsupported_configs(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """If ignored, each of these would give wrong text, or a crash far from its cause."""
    with pytest.raises(CheckpointError) as caught:
        build(tmp_path, LLAMA | changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_embd": 25}, "n_embd must be a multiple of n_head = 3, got 25"),
        ({"activation_function": "mish"}, "activation_function"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"n_positions": None}, "n_positions is missing"),
    ],
)
def test_refuses_for_gpt2(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        build(tmp_path, GPT2 | changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not valid JSON"), ("[]", "must hold a JSON object, got list"), ("\xff", "not valid JSON")],
)
def test_broken_file(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=message):
        read_config(tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config\.json: not a Hugging Face checkpoint"):
        read_config(tmp_path)
