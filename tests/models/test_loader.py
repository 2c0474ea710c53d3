"""Loading weights: the layouts that Hugging Face writes, and broken folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_models
from paged_model import chunked_logits
from sluice.models.base import CausalLM
from sluice.models.checkpoint import CheckpointError
from sluice.models.loader import load_model
from sluice.models.ops import compute_dtype

Folder = Callable[[str], Path]
Tensors = dict[str, torch.Tensor]
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def load(folder: Path, dtype: str = "auto") -> CausalLM:
    return load_model(folder, dtype=dtype, device=torch.device("cpu"), progress=False)[0]


def copy(source: Path, folder: Path, change: Callable[[Tensors], Tensors] | None = None) -> Path:
    """Write a copy of a checkpoint with changed tensors."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    if change is not None:
        save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)
    return folder


def set_config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def shard(folder: Path, parts: int = 3) -> Path:
    """Split the file of a checkpoint into `parts` files and an index."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    index = {}
    for part in range(parts):
        name = f"model-{part + 1:05}-of-{parts:05}.safetensors"
        chosen = dict(list(tensors.items())[part::parts])
        save_file(chosen, folder / name)
        index |= dict.fromkeys(chosen, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def assert_same(ours: CausalLM, other: CausalLM) -> None:
    theirs = dict(other.named_parameters())
    assert {name for name, _ in ours.named_parameters()} == set(theirs)
    for name, value in ours.named_parameters():
        assert torch.equal(value, theirs[name]), name


def refusal(folder: Path, dtype: str = "auto") -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder, dtype)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_sharded_is_the_same(tiny_folder: Folder, tmp_path: Path) -> None:
    assert_same(load(shard(copy(tiny_folder("qwen3"), tmp_path))), load(tiny_folder("qwen3")))


def test_single_file_goes_before_a_stale_index(tiny_folder: Folder, tmp_path: Path) -> None:
    folder = copy(tiny_folder("llama"), tmp_path)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    assert_same(load(folder), load(tiny_folder("llama")))


@pytest.mark.parametrize(("family", "prefix"), [("llama", "model."), ("gpt2", "transformer.")])
def test_names_without_the_base_prefix(family: str, prefix: str, tiny_folder: Folder, tmp_path: Path) -> None:
    """The original GPT-2 has `wte.weight` where newer files say `transformer.wte.weight`."""
    folder = copy(
        tiny_folder(family), tmp_path, lambda tensors: {k.removeprefix(prefix): v for k, v in tensors.items()}
    )
    assert_same(load(folder), load(tiny_folder(family)))


def test_buffers_without_weight_are_ignored(tiny_folder: Folder, tmp_path: Path) -> None:
    def with_buffers(tensors: Tensors) -> Tensors:
        mask = torch.ones(1, 1, 8, 8, dtype=torch.bool)
        return tensors | {
            "transformer.h.0.attn.bias": mask,
            "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
        }

    assert_same(load(copy(tiny_folder("gpt2"), tmp_path / "a", with_buffers)), load(tiny_folder("gpt2")))
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    folder = copy(tiny_folder("llama"), tmp_path / "b", lambda tensors: tensors | frequencies)
    assert_same(load(folder), load(tiny_folder("llama")))


@pytest.mark.parametrize("keep_embedding", [True, False])
def test_tied_head_may_be_stored_too(keep_embedding: bool, tiny_folder: Folder, tmp_path: Path) -> None:
    """Some tools write the matrix under both names, some only under the head's."""

    def with_head(tensors: Tensors) -> Tensors:
        embedding = tensors["model.embed_tokens.weight"]
        kept = {k: v for k, v in tensors.items() if keep_embedding or k != "model.embed_tokens.weight"}
        return kept | {"lm_head.weight": embedding.clone()}

    assert_same(load(copy(tiny_folder("qwen2"), tmp_path, with_head)), load(tiny_folder("qwen2")))


@pytest.mark.parametrize(("family", "embedding"), [("qwen2", "model.embed_tokens"), ("gpt2", "transformer.wte")])
def test_tied_head_that_differs_is_used(
    family: str, embedding: str, tiny_folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A model that was trained further with an untied head, and kept the flag, would otherwise lose its head."""

    def with_head(tensors: Tensors) -> Tensors:
        return tensors | {"lm_head.weight": tensors[f"{embedding}.weight"].flip(0).clone()}

    folder = copy(tiny_folder(family), tmp_path / "tied", with_head)
    untied = set_config(copy(folder, tmp_path / "untied"), tie_word_embeddings=False)
    model = load(folder)
    assert "the stored one is used" in caplog.text
    caplog.clear()
    assert_same(model, load(untied))
    assert "the stored one" not in caplog.text
    head = load_file(folder / WEIGHTS)["lm_head.weight"]
    hidden = torch.ones(1, head.shape[1])
    assert torch.allclose(model.logits(hidden), hidden @ head.T, atol=1e-5)


def test_a_tied_head_in_another_file_is_used(tiny_folder: Folder, tmp_path: Path) -> None:
    def with_head(tensors: Tensors) -> Tensors:
        return tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}

    folder = shard(copy(tiny_folder("qwen2"), tmp_path, with_head))
    assert dict(load(folder).named_parameters())["lm_head.weight"].shape == (tiny_models.VOCAB_SIZE, 32)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "v_head.summary.weight"),
        ("llama", "score.weight"),
        ("llama", "model.mtp.fc.weight"),
        ("llama", "model.layers.3.eh_proj.weight"),
        ("llama", "vision_tower.blocks.0.weight"),
        ("llama", "model.visual.patch_embed.weight"),
        ("llama", "model.layers.0.self_attn.k_scale"),
        ("llama", "model.layers.0.self_attn.attn.v_scale"),
        ("llama", "model.layers.0.self_attn.k_proj.output_scale"),
        ("gpt2", "v_head.summary.bias"),
    ],
)
def test_tensors_that_cannot_matter_are_named_and_skipped(
    family: str, name: str, tiny_folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy(tiny_folder(family), tmp_path, lambda tensors: tensors | {name: torch.ones(3)})
    assert_same(load(set_config(folder, num_nextn_predict_layers=1)), load(tiny_folder(family)))
    assert f"the tensor {name} is not used" in caplog.text


def test_a_further_layer_that_does_not_draft_is_refused(tiny_folder: Folder, tmp_path: Path) -> None:
    """It is either missing from num_hidden_layers or not the model's, and one changes every answer."""
    name = "model.layers.4.eh_proj.weight"
    folder = copy(tiny_folder("llama"), tmp_path, lambda tensors: tensors | {name: torch.ones(3)})
    assert f"unexpected tensor {name}" in refusal(set_config(folder, num_nextn_predict_layers=1))


@pytest.mark.parametrize(
    ("asked", "config", "stored", "expected"),
    [
        ("auto", "bfloat16", torch.bfloat16, torch.bfloat16),
        ("auto", "torch.float16", torch.float32, torch.float16),
        ("auto", None, torch.bfloat16, torch.bfloat16),
        ("float32", "bfloat16", torch.bfloat16, torch.float32),
        ("float64", None, torch.float16, torch.float64),
    ],
)
def test_dtypes(
    asked: str, config: str | None, stored: torch.dtype, expected: torch.dtype, tiny_folder: Folder, tmp_path: Path
) -> None:
    folder = copy(tiny_folder("llama"), tmp_path, lambda tensors: {k: v.to(stored) for k, v in tensors.items()})
    set_config(folder, dtype=config, torch_dtype=None)
    model = load(folder, asked)
    assert model.spec.dtype == expected
    assert {value.dtype for value in model.parameters() if value.ndim > 1} == {expected}
    assert {value.dtype for value in model.parameters() if value.ndim == 1} == {compute_dtype(expected)}, "norms"
    original = dict(load(tiny_folder("llama")).named_parameters())
    for name, value in model.named_parameters():
        assert torch.equal(value, original[name].to(stored).to(value.dtype)), name


def test_weights_do_not_depend_on_the_file_afterwards(tiny_folder: Folder, tmp_path: Path) -> None:
    """Weights mapped to their file would change, or crash the process, when the file is replaced."""
    folder = copy(tiny_folder("llama"), tmp_path)
    model = load(folder)
    (folder / WEIGHTS).write_bytes(bytes((folder / WEIGHTS).stat().st_size))
    assert_same(model, load(tiny_folder("llama")))
    assert not any(value.requires_grad for value in model.parameters())


def test_progress_goes_to_standard_error(tiny_folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    load_model(tiny_folder("llama"), dtype="auto", device=torch.device("cpu"), progress=True)
    shown = capsys.readouterr()
    assert "loading weights" in shown.err
    assert not shown.out


def test_missing_shards_are_named(tiny_folder: Folder, tmp_path: Path) -> None:
    folder = shard(copy(tiny_folder("llama"), tmp_path))
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "1 of 3 weight files" in refusal(folder)
    assert "model-00002-of-00003.safetensors" in refusal(folder)


def test_shard_without_a_promised_tensor(tiny_folder: Folder, tmp_path: Path) -> None:
    folder = shard(copy(tiny_folder("llama"), tmp_path))
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.extra"] = "model-00001-of-00003.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    assert "model-00001-of-00003.safetensors lacks model.extra" in refusal(folder)


def test_one_tensor_in_two_shards(tiny_folder: Folder, tmp_path: Path) -> None:
    folder = shard(copy(tiny_folder("llama"), tmp_path))
    first, second = (folder / f"model-0000{part}-of-00003.safetensors" for part in (1, 2))
    name, value = next(iter(load_file(first).items()))
    save_file(load_file(second) | {name: value}, second)
    message = refusal(folder)
    assert name in message
    assert first.name in message
    assert second.name in message


@pytest.mark.parametrize("file", ["../elsewhere.safetensors", "/etc/passwd"])
def test_index_pointing_outside_the_folder(file: str, tiny_folder: Folder, tmp_path: Path) -> None:
    folder = copy(tiny_folder("llama"), tmp_path)
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": file}}))
    assert "must lie beside it" in refusal(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": {"a": 3}}, {"weight_map": [1]}])
def test_broken_index(index: object, tiny_folder: Folder, tmp_path: Path) -> None:
    folder = copy(tiny_folder("llama"), tmp_path)
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(json.dumps(index))
    assert INDEX in refusal(folder)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_truncated_file(kept: int, tiny_folder: Folder, tmp_path: Path) -> None:
    """An interrupted download leaves a truncated file."""
    folder = copy(tiny_folder("llama"), tmp_path)
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:kept])
    assert "model.safetensors is not a readable safetensors file" in refusal(folder)


def test_pickled_weights_are_refused(tiny_folder: Folder, tmp_path: Path) -> None:
    folder = copy(tiny_folder("llama"), tmp_path)
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    assert "pickled" in refusal(folder)


def test_no_weights(tiny_folder: Folder, tmp_path: Path) -> None:
    folder = copy(tiny_folder("llama"), tmp_path)
    (folder / WEIGHTS).unlink()
    assert "holds no weights" in refusal(folder)


def test_missing_tensors(tiny_folder: Folder, tmp_path: Path) -> None:
    lost = "layers.1.mlp.up_proj.weight"
    folder = copy(tiny_folder("llama"), tmp_path, lambda tensors: {k: v for k, v in tensors.items() if lost not in k})
    assert lost in refusal(folder)


def test_a_checkpoint_without_a_head_has_hidden_states_alone(tiny_folder: Folder, tmp_path: Path) -> None:
    """Embedding models have none: refused, or given an unset head whose logits are noise."""
    folder = set_config(copy(tiny_folder("qwen2"), tmp_path), tie_word_embeddings=False)
    model, spec = load_model(folder, dtype="float32", device=torch.device("cpu"), progress=False)
    assert not model.has_head
    assert model.logits(torch.zeros(0, spec.hidden_size)).shape == (0, spec.vocab_size)


def test_unexpected_tensor(tiny_folder: Folder, tmp_path: Path) -> None:
    """If a bias that the config excludes were dropped, the model would silently be another one."""
    name = "model.layers.0.self_attn.q_proj.bias"
    folder = copy(tiny_folder("llama"), tmp_path, lambda tensors: tensors | {name: torch.zeros(32)})
    assert f"unexpected tensor {name}" in refusal(folder)


@pytest.mark.parametrize(
    ("family", "name", "wanted"),
    [
        ("llama", "model.layers.2.self_attn.k_proj.weight", "(16, 32)"),
        ("llama", "model.norm.weight", "(32,)"),
        ("gpt2", "transformer.h.1.mlp.c_fc.weight", "(24, 96)"),
    ],
)
def test_wrong_shape_names_both(family: str, name: str, wanted: str, tiny_folder: Folder, tmp_path: Path) -> None:
    folder = copy(tiny_folder(family), tmp_path, lambda tensors: tensors | {name: torch.zeros(5, 7)})
    message = refusal(folder)
    assert name in message
    assert "(5, 7)" in message
    assert wanted in message


def test_transposed_gpt2_matrix_is_refused(tiny_folder: Folder, tmp_path: Path) -> None:
    name = "transformer.h.1.mlp.c_fc.weight"
    folder = copy(tiny_folder("gpt2"), tmp_path, lambda tensors: tensors | {name: tensors[name].t().contiguous()})
    assert "(96, 24)" in refusal(folder)


def test_quantised_weights_are_refused(tiny_folder: Folder, tmp_path: Path) -> None:
    name = "model.norm.weight"
    folder = copy(tiny_folder("llama"), tmp_path, lambda t: t | {name: torch.ones(32, dtype=torch.int8)})
    assert "torch.int8" in refusal(folder)


def test_unknown_dtypes(tiny_folder: Folder, tmp_path: Path) -> None:
    assert "got 'int8'" in refusal(tiny_folder("llama"), "int8")
    folder = set_config(copy(tiny_folder("llama"), tmp_path), dtype="float8_e4m3fn")
    assert "the checkpoint's dtype must be one of" in refusal(folder)


def test_config_and_weights_of_different_models(tiny_folder: Folder, tmp_path: Path) -> None:
    folder = set_config(copy(tiny_folder("llama"), tmp_path), num_hidden_layers=2)
    assert "unexpected tensor model.layers.2." in refusal(folder)
    assert "lacks the tensor layers.3." in refusal(set_config(folder, num_hidden_layers=4))


def test_loads_what_transformers_4_wrote(tiny_folder: Folder, tmp_path: Path) -> None:
    """The old names of the fields give the same logits."""
    folder = copy(tiny_folder("llama"), tmp_path)
    rope = {name: value for name, value in tiny_models.LLAMA3_ROPE.items() if name != "rope_theta"}
    set_config(
        folder,
        rope_parameters=None,
        rope_theta=tiny_models.LLAMA3_ROPE["rope_theta"],
        rope_scaling=rope,
        dtype=None,
        torch_dtype="float32",
        transformers_version="4.45.0",
    )
    prompts = [tiny_models.prompt(30)]
    old = chunked_logits(load(folder), prompts, page_size=4, seed=0)
    assert torch.equal(old[0], chunked_logits(load(tiny_folder("llama")), prompts, page_size=4, seed=0)[0])
