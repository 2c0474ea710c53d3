"""GGUF files, written by llama.cpp's own writer: weights, settings and tokenizer must be those that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_models
from gguf_bytes import TEXT, items, tensor, value, write
from gguf_makers import WITHOUT_QUANTIZER, write_gguf
from models.formats.loading import assert_same, load
from random_checkpoint import random_checkpoint
from sluice import LLM, SamplingParams
from sluice.models.checkpoint import CheckpointError
from sluice.models.formats import gguf_folder
from sluice.models.formats.gguf_file import tensors_of
from sluice.models.formats.gguf_open import open_gguf
from sluice.models.hub import resolve_checkpoint
from sluice.text.tokenizer import TokenizerError
from sluice.text.tokenizer_files import load_tokenizer

TERNARY = ("TQ1_0", "TQ2_0")
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", *WITHOUT_QUANTIZER, *TERNARY)
FAMILIES: dict[str, Callable[..., Any]] = {
    "llama": tiny_models.llama,
    "qwen2": tiny_models.qwen2,
    "qwen3": tiny_models.qwen3,
}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of its own for every test."""
    folder = tmp_path / "assets"
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(folder))
    return folder


def saved(family: str, folder: Path, size: int = 32, **changes: Any) -> Path:
    """Write a tiny model whose matrices have rows of a multiple of `size`."""
    sizes = {"hidden_size": size, "intermediate_size": 2 * size, "num_hidden_layers": 1} | changes
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}} if family == "llama" else {}
    FAMILIES[family](**(rope | sizes)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", TYPES)
def test_weights_are_those_of_the_library(kind: str, tmp_path: Path) -> None:
    """Q4_K is read and Q6_K too: both are in files that say Q4_K_M."""
    size = 256 if kind in (*WITHOUT_QUANTIZER, *TERNARY) else 32
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4} if size == 256 else {}
    source = saved("llama", tmp_path / "source", size, **heads)
    path, plain = write_gguf(source, tmp_path / "model.gguf", kind)
    assert_same(load(resolve_checkpoint(str(path)), dtype="bfloat16"), load(plain, dtype="bfloat16"))


def test_slices_of_a_large_weight_fit_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight is dequantised a slice at a time; rows of a head lie in several slices."""
    monkeypatch.setattr("sluice.models.formats.gguf_file.AT_ONCE", 160)
    path, plain = write_gguf(saved("llama", tmp_path / "source"), tmp_path / "model.gguf", "Q4_0")
    assert_same(load(resolve_checkpoint(str(path))), load(plain, dtype="bfloat16"))


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str, tmp_path: Path) -> None:
    """Biases, norms of heads, tied heads and heads of another size come with each family's file."""
    heads = {"head_dim": 16} if family == "qwen3" else {}  # blocks are of 32 numbers
    source = saved(family, tmp_path / "source", num_hidden_layers=2, **heads)
    path, plain = write_gguf(source, tmp_path / "model.gguf", "Q8_0")
    ours, theirs = load(resolve_checkpoint(str(path))), load(plain, dtype="bfloat16")
    assert ours.spec.dtype == torch.bfloat16
    assert_same(ours, theirs)
    sizes = ("num_layers", "num_heads", "num_kv_heads", "head_dim", "max_model_len", "eos_token_ids", "architecture")
    assert [getattr(ours.spec, name) for name in sizes] == [getattr(theirs.spec, name) for name in sizes]


def test_a_file_with_its_tokenizer_and_its_template_is_served(tmp_path: Path) -> None:
    """Most files come alone: text in and text out, chats too, must be those of the checkpoint inside."""
    (tmp_path / "source").mkdir()
    source = random_checkpoint(tmp_path / "source")
    path, plain = write_gguf(source, tmp_path / "tiny-Q8_0.gguf", "Q8_0")
    text, chat = "The river rises in the night.", [{"role": "user", "content": "Who opened the gate?"}]
    probe, names = "<|im_start|>été 🙂\n\n  12345 <|im_end|>", []
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    answers = []
    for model in (path, plain):
        with LLM(model, max_total_tokens=256, dtype="float32") as llm:  # both multiply the same numbers
            results = (*llm.generate([text, probe], params), *llm.chat(chat, params))
            answers.append([(result.prompt_token_ids, result.token_ids) for result in results])
            names.append(llm.info.model)
    assert answers[0] == answers[1]
    assert names == ["tiny-Q8_0", "plain"]


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    """A download of one file has a folder of its own; of several, one must be named."""
    source = saved("qwen3", tmp_path / "source")
    (tmp_path / "download").mkdir()
    write_gguf(source, tmp_path / "download" / "a-F16.gguf", "F16")
    load(resolve_checkpoint(str(tmp_path / "download")))
    (tmp_path / "download" / "b-Q8_0.gguf").touch()
    with pytest.raises(CheckpointError, match=r"holds 2 GGUF files: name one of them: a-F16.gguf, b-Q8_0.gguf"):
        resolve_checkpoint(str(tmp_path / "download"))


def test_the_tokenizer_beside_the_file_is_used(tmp_path: Path) -> None:
    """A user who puts a tokenizer there means it: it may be newer than what the file holds."""
    source = saved("qwen3", tmp_path / "source")
    path, _ = write_gguf(source, tmp_path / "model.gguf", "F16")
    without = resolve_checkpoint(str(write_gguf(source, tmp_path / "none.gguf", "F16", tokens=None)[0]))
    with pytest.raises(TokenizerError, match=r"none\.gguf has no tokenizer"):
        load_tokenizer(without)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "mine"}')
    folder = resolve_checkpoint(str(path))
    assert "mine" in (folder / "tokenizer_config.json").read_text()
    assert (folder / "tokenizer.json").read_text() == "{}"


def test_rotary_factors(tmp_path: Path) -> None:
    """Llama 3.1's files have its scaled frequencies as a tensor of factors, and no settings of them."""
    source = saved("llama", tmp_path / "source", rope_parameters=tiny_models.LLAMA3_ROPE)
    wanted = load(source).rotaries[0].inv_freq
    factors = (1 / 500.0 ** (np.arange(0, 8, 2) / 8)) / wanted.numpy()
    path, _ = write_gguf(source, tmp_path / "model.gguf", "F32", factors=factors)
    torch.testing.assert_close(load(resolve_checkpoint(str(path))).rotaries[0].inv_freq, wanted)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rotary_scaling(kind: str, tmp_path: Path) -> None:
    """A scaling that is overlooked shows only in long texts."""
    settings: dict[str, Any] = {"rope_type": kind, "rope_theta": 500.0, "factor": 4.0}
    scaling = {"rope.scaling.type": kind, "rope.scaling.factor": 4.0}
    if kind == "yarn":
        settings["original_max_position_embeddings"] = scaling["rope.scaling.original_context_length"] = 128
    source = saved("llama", tmp_path / "source", rope_parameters=settings)
    path, _ = write_gguf(source, tmp_path / "model.gguf", "F32", fields=scaling)
    torch.testing.assert_close(
        load(resolve_checkpoint(str(path))).rotaries[0].inv_freq, load(source).rotaries[0].inv_freq
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architecture": "falcon"}, "general.architecture must be one of .*llama.*qwen3.*, got 'falcon"),
    "unknown field": ({"fields": {"logit_scale": 2.0}}, r"llama.logit_scale = 2.0 is not supported"),
    "experts": (
        {"fields": {"expert_count": 8}},
        "blk.0.ffn_gate_inp.weight is missing, and the sizes of llama ask for",
    ),
    "partial rotary": ({"fields": {"rope.dimension_count": 4}}, "llama.rope.dimension_count must be the head size, 8,"),
    "scaling": ({"fields": {"rope.scaling.type": "longrope"}}, "rope.scaling.type must be none, linear or yarn, got"),
    "adapter": (
        {"kind": "adapter"},
        r"is a LoRA adapter, not a model \(general.type 'adapter'\): name the model's file",
    ),
    "projector": ({"kind": "mmproj"}, r"is the vision part of a model, not the model"),
    "matrix": ({"kind": "imatrix"}, r"is statistics for quantising a model, not a model"),
    "vision": ({"architecture": "clip"}, r"is the vision part of a model, not the model"),
    "another kind": ({"kind": "poem"}, r"general.type must be 'model', got 'poem'"),
    "version": ({"version": 3}, r"general.quantization_version must be 2: quantise the model again, got 3"),
    "missing": ({"leave": "llama.block_count"}, "llama.block_count is missing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused(name: str, tmp_path: Path) -> None:
    """Settings of an architecture that are not known would change the numbers unseen."""
    changes, message = REFUSED[name]
    general = {"general.type": changes["kind"]} if "kind" in changes else {}
    general |= {"general.quantization_version": changes["version"]} if "version" in changes else {}
    rest = {"general": general} | {key: given for key, given in changes.items() if key not in ("kind", "version")}
    path, _ = write_gguf(saved("llama", tmp_path / "source"), tmp_path / "model.gguf", "Q8_0", **rest)
    with pytest.raises(CheckpointError, match=message):
        load(resolve_checkpoint(str(path)))


def test_a_damaged_file_is_refused(tmp_path: Path, cache: Path) -> None:
    """Downloads break off; an error must name the file, and nothing may be left in the cache for the next start."""
    path, _ = write_gguf(saved("llama", tmp_path / "source"), tmp_path / "model.gguf", "Q8_0")
    whole = path.read_bytes()
    problems = {
        whole[:-5000]: r"tensor '\S+' needs \d+ bytes .* lacks \d+ of them: it is cut off",
        whole[:3000]: "is cut off",
        whole[:40]: "is cut off",
        b"": "is not a GGUF file",
        b"GGUF": "is cut off",
        b"not " + whole: "is not a GGUF file",
    }
    for number, (content, problem) in enumerate(problems.items()):
        broken = tmp_path / f"broken-{number}.gguf"
        broken.write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"{broken.name}\b.*{problem}"):
            resolve_checkpoint(str(broken))
    assert not list(cache.rglob("config.json"))


def test_two_processes_make_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers that start at once must not take the folder away from each other."""
    path, _ = write_gguf(saved("llama", tmp_path / "source"), tmp_path / "model.gguf", "F16")
    made: list[Path] = []

    def meanwhile(folder: Path, source: Path, more: Mapping[str, str]) -> None:
        monkeypatch.undo()
        fill(folder, source, more)
        made.append(gguf_folder.gguf_folder(source, tmp_path / "shared"))

    fill = gguf_folder._fill
    monkeypatch.setattr(gguf_folder, "_fill", meanwhile)
    assert gguf_folder.gguf_folder(path, tmp_path / "shared") == made[0]
    load(made[0])
    assert [each.name for each in made[0].parent.iterdir()] == [made[0].name]


def test_a_type_that_weights_do_not_have(tmp_path: Path) -> None:
    """Q8_1 is the type of activations in llama.cpp, and its numbers have no definition in a file."""
    path = tmp_path / "model.gguf"
    write(path, [], [tensor("w", [32, 2], 9)], bytes(80))
    with pytest.raises(CheckpointError, match=r"model.gguf: tensor w has type Q8_1, which weights do not have"):
        next(tensors_of(open_gguf(path))).dequantized(torch.float32)


def test_biases_of_queries_and_keys(tmp_path: Path) -> None:
    """llama's files have their elements in the order of the rows."""
    source = saved("llama", tmp_path / "source", attention_bias=True)
    path, plain = write_gguf(source, tmp_path / "model.gguf", "F16")
    assert_same(load(resolve_checkpoint(str(path)), dtype="bfloat16"), load(plain, dtype="bfloat16"))


def test_more_tokens_than_rows(tmp_path: Path) -> None:
    """A prompt with such a token would read the embedding of nothing."""
    path = tmp_path / "model.gguf"
    keys = [("general.architecture", value(TEXT, "llama")), ("tokenizer.ggml.tokens", items(TEXT, ["a", "b", "c"]))]
    write(path, keys, [tensor("token_embd.weight", [4, 2])], bytes(32))
    with pytest.raises(CheckpointError, match=r"has 3 tokens, and token_embd\.weight 2 rows: each token needs one"):
        resolve_checkpoint(str(path))


def test_tensors_that_the_architecture_has_not(tmp_path: Path) -> None:
    """A model with more weights than its architecture has is another model."""
    path, _ = write_gguf(
        saved("llama", tmp_path / "source"), tmp_path / "model.gguf", "F16", extra="blk.0.ffn_gate_inp.weight"
    )
    with pytest.raises(CheckpointError, match=r"unexpected tensor blk.0.ffn_gate_inp.weight: LlamaForCausalLM has no"):
        load(resolve_checkpoint(str(path)))
