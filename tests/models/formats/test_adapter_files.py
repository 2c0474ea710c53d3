"""What is read of an adapter's files, and what is refused, before any request is computed with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_families
import tiny_models
from lora_makers import Lora
from sluice.models.adapters.adapter import Adapter, AdapterError
from sluice.models.adapters.read import read_adapter
from sluice.models.checkpoint import read_config
from sluice.models.decoder import Decoder
from sluice.models.model_class import model_class
from sluice.types.adapters import AdapterLimits

LIMITS = AdapterLimits(max_loras=2, max_lora_rank=8)
LORA = Lora(3, rank=4, alpha=6.0)
WEIGHTS = "adapter_model.safetensors"
Q_PROJ = "base_model.model.model.layers.1.self_attn.q_proj"
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def model_of(folder: Path, made: Any) -> Decoder:
    """Return the module of a model, without weights."""
    made.config.save_pretrained(folder)
    checkpoint = read_config(folder)
    with torch.device("meta"):
        model = model_class(checkpoint.architecture).from_checkpoint(checkpoint, torch.float32)
    assert isinstance(model, Decoder)
    return model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    made = tiny_models.llama()
    made.config.architectures = ["LlamaForCausalLM"]
    return model_of(tmp_path_factory.mktemp("model"), made)


def read(folder: Path, model: Decoder, limits: AdapterLimits = LIMITS) -> Adapter:
    return read_adapter(folder, "mine", model, limits)


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the rows of q or k as llama.cpp's converter has them in a file of Llama."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write_gguf(lora: Lora, path: Path, architecture: str = "llama", **fields: Any) -> Path:
    """Write an adapter of the tiny Llama, as llama.cpp's converter does."""
    made = tiny_models.llama()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type(fields.get("general_type", "adapter"))
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", lora.alpha)
    if "invocation" in fields:
        writer.add_array("adapter.alora.invocation_tokens", fields["invocation"])
    for name, (a, b, _) in lora.pairs(made).items():
        _, _, number, module = name.split(".", 3) if name.startswith("model.") else ("", *name.split(".", 2))
        if module in ("self_attn.q_proj", "self_attn.k_proj"):
            b = permuted(b, 4 if module.endswith("q_proj") else 2)
        stem = f"blk.{number}.{GGUF_NAMES[module]}.weight"
        writer.add_tensor(f"{stem}.lora_a", a.numpy())
        writer.add_tensor(f"{stem}.lora_b", b.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_scales_and_ranks_of_each_layer(model: Decoder, tmp_path: Path) -> None:
    """A pattern that is taken for the end of a name only, an alpha that is not divided, or a root that is not taken."""
    lora = Lora(
        4,
        rank=4,
        alpha=6.0,
        use_rslora=True,
        rank_pattern={"layers.1.self_attn.q_proj": 2},
        alpha_pattern={"down_proj": 3.0},
    )
    made = tiny_models.llama()
    adapter = read(lora.save(made, tmp_path), model)
    assert (adapter.info.rank, adapter.info.alpha, adapter.info.name) == (4, 6.0, "mine")
    assert adapter.info.targets == tuple(sorted(lora.targets))
    wanted = {name.removeprefix("model."): pair for name, pair in lora.pairs(made).items()}
    assert adapter.pairs.keys() == wanted.keys()
    for name, (a, b, scale) in wanted.items():
        found = adapter.pairs[name]
        assert torch.equal(found.a, a)
        assert torch.equal(found.b, b)
        assert found.scale == pytest.approx(scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_gguf_file_has_the_matrices_of_the_folder(model: Decoder, tmp_path: Path, dtype: torch.dtype) -> None:
    """Rows of q and k that stay in llama.cpp's order, which only a long text shows."""
    lora = Lora(5, rank=3, alpha=5.0, dtype=dtype if dtype != torch.bfloat16 else torch.float32)
    folder = read(lora.save(tiny_models.llama(), tmp_path / "folder"), model)
    file = read(write_gguf(lora, tmp_path / "file.gguf"), model)
    assert file.pairs.keys() == folder.pairs.keys()
    for name, pair in folder.pairs.items():
        assert torch.equal(file.pairs[name].a, pair.a), name
        assert torch.equal(file.pairs[name].b, pair.b), name
        assert file.pairs[name].scale == pytest.approx(pair.scale)


def test_the_digest_is_of_the_content(model: Decoder, tmp_path: Path) -> None:
    """A changed file that is taken for the old one would be served the pages that the old one computed."""
    made = tiny_models.llama()
    first = read(LORA.save(made, tmp_path / "first"), model).info.digest
    assert read(LORA.save(made, tmp_path / "second"), model).info.digest == first
    changed = Lora(LORA.seed, LORA.rank, LORA.alpha + 1)
    assert read(changed.save(made, tmp_path / "alpha"), model).info.digest != first
    tensors = load_file(tmp_path / "second" / WEIGHTS)
    tensors[f"{Q_PROJ}.lora_B.weight"][0, 0] += 1
    save_file(tensors, tmp_path / "second" / WEIGHTS)
    assert read(tmp_path / "second", model).info.digest != first


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "dora": ({"use_dora": True}, "use_dora = True is not supported; accepted: False"),
    "bias": ({"bias": "all"}, "bias = 'all' is not supported; accepted: 'none'"),
    "pissa": ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa' is not supported; accepted: True or False"),
    "invocation": ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
    "other kind": ({"peft_type": "IA3"}, "peft_type must be LORA, got 'IA3'"),
    "rank": ({"r": 5}, "lora_A.weight has rank 4, and adapter_config.json says 5"),
    "pattern": ({"alpha_pattern": {"(a+)+b": 3}}, "none of a group"),
    "expression": ({"alpha_pattern": {"(": 3}}, "no regular expression"),
    "alpha": ({"lora_alpha": -1}, "lora_alpha must be a number above 0"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_asks_for_more(model: Decoder, tmp_path: Path, name: str) -> None:
    """An adapter that is computed as another one than was trained."""
    fields, message = CONFIGS[name]
    with pytest.raises(AdapterError, match=message):
        read(LORA.save(tiny_models.llama(), tmp_path, **fields), model)


HEAD = "base_model.model.lm_head.weight"
EMBEDDING = "base_model.model.model.embed_tokens.base_layer.weight"


def save_with_modules(folder: Path, made: Any, change: float = 0.0) -> Path:
    """Write an adapter that holds the head and the embedding, too."""
    LORA.save(made, folder, modules_to_save=["lm_head"])
    tensors = load_file(folder / WEIGHTS)
    weights = made.state_dict()
    tensors[HEAD] = weights["lm_head.weight"] + change
    tensors[EMBEDDING] = weights["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / WEIGHTS)
    return folder


@pytest.mark.parametrize("tied", [False, True])
def test_whole_weights_that_are_those_of_the_model(model: Decoder, tmp_path: Path, tied: bool) -> None:
    """PEFT stores what it was told to, changed or not."""
    made = tiny_models.llama(tie_word_embeddings=tied)
    made.save_pretrained(tmp_path / "base")
    folder = save_with_modules(tmp_path / "adapter", made)
    adapter = read_adapter(folder, "mine", model, LIMITS, tmp_path / "base")
    plain = read(LORA.save(made, tmp_path / "plain"), model)
    assert adapter.pairs.keys() == plain.pairs.keys()
    with pytest.raises(AdapterError, match="can only be compared with the weights of a Hugging Face folder"):
        read(folder, model)


def test_whole_weights_that_were_trained(model: Decoder, tmp_path: Path) -> None:
    """An adapter that is computed with the head of the base model."""
    made = tiny_models.llama()
    made.save_pretrained(tmp_path / "base")
    folder = save_with_modules(tmp_path / "adapter", made, change=1e-3)
    with pytest.raises(AdapterError, match=r"holds lm_head\.weight itself, with other values than the base model's"):
        read_adapter(folder, "mine", model, LIMITS, tmp_path / "base")


def without_half(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[f"{Q_PROJ}.lora_B.weight"]


def other_inputs(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{Q_PROJ}.lora_A.weight"] = torch.zeros(4, 33)


def other_rank(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{Q_PROJ}.lora_B.weight"] = torch.zeros(32, 3)


def no_number(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{Q_PROJ}.lora_B.weight"][3, 1] = torch.nan


def integers(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{Q_PROJ}.lora_B.weight"] = torch.zeros(32, 4, dtype=torch.int8)


def other_layer(tensors: dict[str, torch.Tensor]) -> None:
    tensors["base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"] = torch.zeros(4, 32)


def magnitude(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{Q_PROJ}.lora_magnitude_vector"] = torch.zeros(32)


def nothing(tensors: dict[str, torch.Tensor]) -> None:
    tensors.clear()


DAMAGES: dict[Callable[[dict[str, torch.Tensor]], None], str] = {
    without_half: "q_proj.lora_A.weight, and lacks the other matrix of layers.1.self_attn.q_proj: B",
    other_inputs: r"has shape \[4, 33\], and this model's layers.1.self_attn.q_proj takes \[rank, 32\].* another model",
    other_rank: "must have one rank, got 4 and 3",
    no_number: "lora_B.weight has values that are infinite, or no numbers",
    integers: "has dtype torch.int8; accepted are float32",
    other_layer: "of no layer of LlamaForCausalLM that adapters may change: down_proj, .*, in 3 layers",
    magnitude: "lora_magnitude_vector is not supported",
    nothing: "holds no matrices",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_matrices_that_do_not_fit(
    model: Decoder, tmp_path: Path, damage: Callable[[dict[str, torch.Tensor]], None]
) -> None:
    """A file of another model, or a damaged one, that fails in the step of a request, or gives noise."""
    tensors = load_file(LORA.save(tiny_models.llama(), tmp_path) / WEIGHTS)
    damage(tensors)
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(AdapterError, match=DAMAGES[damage]):
        read(tmp_path, model)


def test_a_rank_above_the_limit(model: Decoder, tmp_path: Path) -> None:
    """It would be written over the next slot."""
    folder = Lora(1, rank=9).save(tiny_models.llama(), tmp_path)
    with pytest.raises(AdapterError, match="has rank 9, above --max-lora-rank 8"):
        read(folder, model)


def test_an_adapter_of_another_family(tmp_path: Path) -> None:
    """Layers of experts, which take none, and sizes of another model."""
    made = tiny_families.FAMILIES["qwen3-moe"]()
    made.config.architectures = ["Qwen3MoeForCausalLM"]
    moe = model_of(tmp_path / "moe", made)
    with pytest.raises(AdapterError, match="of no layer of Qwen3MoeForCausalLM that adapters may change"):
        read(LORA.save(tiny_models.llama(), tmp_path / "lora"), moe)


def test_files_that_are_missing_or_no_adapters(model: Decoder, tmp_path: Path) -> None:
    """A stack trace of a library in the place of a sentence."""
    with pytest.raises(AdapterError, match="there is no such folder or file"):
        read(tmp_path / "absent", model)
    with pytest.raises(AdapterError, match=r"holds no adapter_config\.json"):
        read(tmp_path, model)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(AdapterError, match=f"holds no {WEIGHTS}; pickled weights are not read"):
        read(tmp_path, model)
    (tmp_path / WEIGHTS).write_bytes(b"\xff" * 100)
    with pytest.raises(AdapterError, match="not a readable safetensors file"):
        read(tmp_path, model)
    (tmp_path / WEIGHTS).write_bytes(b"\0" * 4_000_000)
    with pytest.raises(AdapterError, match="has 4000000 bytes, and an adapter of this model has at most"):
        read(tmp_path, model)
    (tmp_path / "adapter_config.json").write_text("[")
    with pytest.raises(AdapterError, match="not valid JSON"):
        read(tmp_path, model)
    (tmp_path / "text.gguf").write_text("no GGUF")
    with pytest.raises(AdapterError, match=r"text\.gguf is not a GGUF file"):
        read(tmp_path / "text.gguf", model)


def test_gguf_files_of_something_else(model: Decoder, tmp_path: Path) -> None:
    """A model, an adapter of another architecture, and one that begins inside a prompt."""
    with pytest.raises(AdapterError, match=r"general\.type must be 'adapter', got 'model'"):
        read(write_gguf(LORA, tmp_path / "model.gguf", general_type="model"), model)
    with pytest.raises(AdapterError, match=r"general\.architecture must be 'llama', got 'qwen3'"):
        read(write_gguf(LORA, tmp_path / "qwen3.gguf", "qwen3"), model)
    with pytest.raises(AdapterError, match="invocation_tokens is not supported"):
        read(write_gguf(LORA, tmp_path / "inside.gguf", invocation=[1, 2]), model)
    with pytest.raises(AdapterError, match=r"empty\.gguf holds no matrices"):
        read(write_gguf(Lora(1, targets=()), tmp_path / "empty.gguf"), model)
