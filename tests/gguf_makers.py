"""Writes tiny GGUF files with llama.cpp's own writer, as its converter would."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file

WITHOUT_QUANTIZER = {
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), slice(0, 2)),
    "Q4_K": slice(0, 4),
    "Q2_K": slice(80, 84),
    "Q3_K": slice(108, 110),
    "Q6_K": slice(208, 210),
}
"""Types that the library reads and does not write: random blocks stand for weights -> where float16 scales lie."""
NAMES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}


MIXTURES = {"qwen3_moe": "qwen3moe", "mixtral": "llama"}
EXPERT = re.compile(r"(?P<experts>.*experts)\.(?P<number>\d+)\.(?P<layer>\w+)\.(?P<part>\w+)")
"""Layers of experts, which a file stores together."""
PERMUTED = ("llama", "mixtral", "granite", "smollm3", "ministral3")
"""Model types whose q and k are written in another order."""


def write_gguf(
    source: Path,
    path: Path,
    kind: str,
    *,
    architecture: str | None = None,
    fields: Mapping[str, Any] = {},
    general: Mapping[str, Any] = {},
    leave: str = "",
    tokens: int | None = 1,
    factors: np.ndarray | None = None,
    tensors: Mapping[str, np.ndarray] = {},
    extra: str = "",
    others: Mapping[str, str] = {},
    split: int = 0,
) -> tuple[Path, Path]:
    """Write a checkpoint as a GGUF file.

    Args:
        source: a checkpoint in float32; its tokenizer goes into the file if it has one.
        kind: the type of the matrices.
        architecture: another name than its own.
        fields: further ones of the architecture.
        general: further ones.
        leave: a field that is left out.
        tokens: None leaves the tokenizer out.
        factors: rotary ones.
        tensors: further ones.
        extra: the name of a further tensor.
        others: types of some matrices, by the last name of their module.
        split: tensors of a part; 0: the file is not split.

    Returns:
        The file or its first part, and a checkpoint of the weights that the library dequantises from it.
    """
    config = json.loads((source / "config.json").read_text())
    name = architecture or _architecture(config)
    writer = gguf.GGUFWriter(path, name, split_max_tensors=split)
    _add_fields(writer, config, name, fields, leave)
    for field, value in general.items():
        {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)](field, value)
    if tokens is not None:
        _add_tokenizer(writer, source, config)
    plain, weights = {}, load_file(source / "model.safetensors")
    known = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(known[_architecture(config)], config["num_hidden_layers"])
    stacks: dict[str, dict[int, torch.Tensor]] = {}
    for full, weight in weights.items():
        if (expert := EXPERT.fullmatch(full)) is not None:
            name = table.get_name(f"{expert['experts']}.{expert['layer']}")
            stacks.setdefault(f"{name}.{expert['part']}", {})[int(expert["number"])] = weight
            continue
        stem, _, part = full.rpartition(".")
        if part not in ("weight", "bias"):
            stem, part = full, "weight"
        own = others.get(stem.rpartition(".")[2], kind)
        plain[full] = _add(writer, f"{table.get_name(stem)}.{part}", full, weight, own, config)
    for name, experts in stacks.items():
        stacked = torch.stack([experts[number] for number in range(len(experts))])
        held = _add(writer, name, name, stacked, others.get(name.split(".")[-2], kind), config)
        of_expert = {id(weight): held[number] for number, weight in experts.items()}
        plain |= {full: of_expert[id(weight)].clone() for full, weight in weights.items() if id(weight) in of_expert}
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    for further, values in tensors.items():
        writer.add_tensor(further, values)
    if extra:
        writer.add_tensor(extra, np.zeros((4, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    target = path.parent / "plain"
    shutil.copytree(source, target, dirs_exist_ok=True)
    save_file(plain, target / "model.safetensors")
    return path if not split else min(path.parent.glob(f"{path.stem}-*-of-*.gguf")), target


def _architecture(config: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of a model type."""
    renamed = MIXTURES | {"gemma3_text": "gemma3", "gemma4_text": "gemma4", "olmo3": "olmo2", "ministral3": "mistral3"}
    return renamed.get(config["model_type"], config["model_type"])


def _add(
    writer: gguf.GGUFWriter, name: str, full: str, weight: torch.Tensor, kind: str, config: Mapping[str, Any]
) -> torch.Tensor:
    """Add one tensor, and return what the library makes of it, in the order of the checkpoint."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    count = heads.get(full.split(".")[-2]) if config["model_type"] in PERMUTED else None
    is_less_one = weight.ndim == 1 and config["model_type"] in ("gemma2", "gemma3_text")
    if count is not None:
        weight = weight.unflatten(0, (count, 2, -1)).transpose(1, 2).flatten(0, 2)
    values = weight.numpy()
    if weight.ndim == 1:
        writer.add_tensor(name, values + 1 if is_less_one else values)
    else:
        stored_as = gguf.GGMLQuantizationType[kind]
        if values.shape[-1] % gguf.GGML_QUANT_SIZES[stored_as][0]:
            stored_as = gguf.GGMLQuantizationType.F16
        stored = _blocks(values, stored_as) if stored_as.name in WITHOUT_QUANTIZER else gguf.quantize(values, stored_as)
        writer.add_tensor(name, stored, raw_dtype=stored_as)
        values = gguf.dequantize(stored, stored_as)
    weight = torch.tensor(values)
    if count is not None:
        weight = weight.unflatten(0, (count, -1, 2)).transpose(1, 2).flatten(0, 2)
    return weight.contiguous()


def _blocks(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Return random blocks with small scales, in the shape of the values."""
    per_block, size = gguf.GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng(values.size)
    blocks = draw.integers(0, 256, (values.size // per_block, size), dtype=np.uint8)
    scales = draw.uniform(1e-4, 2e-4, (len(blocks), 2)).astype(np.float16).view(np.uint8)
    place = WITHOUT_QUANTIZER[kind.name]
    blocks[:, place] = scales[:, : place.stop - place.start]
    return blocks.reshape(*values.shape[:-1], -1)


def _add_fields(
    writer: gguf.GGUFWriter, config: Mapping[str, Any], name: str, fields: Mapping[str, Any], leave: str
) -> None:
    values: dict[str, Any] = {field: config[key] for field, key in NAMES.items()}
    values["attention.layer_norm_rms_epsilon"] = float(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta")}
    rope = rope.get("full_attention", rope)
    values["rope.freq_base"] = float(rope["rope_theta"])
    if config.get("head_dim") and config["model_type"] != "phi3":
        values |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    if config.get("num_local_experts"):
        values |= {"expert_count": config["num_local_experts"], "expert_used_count": config["num_experts_per_tok"]}
    for field, value in (values | dict(fields)).items():
        key = f"{name}.{field}"
        if key != leave:
            adds = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
            add = adds[type(value)]
            add(key, value)


def _add_tokenizer(writer: gguf.GGUFWriter, source: Path, config: Mapping[str, Any]) -> None:
    """Add the byte-level BPE of a checkpoint; a list of made-up tokens if it has none."""
    path = source / "tokenizer.json"
    ends = config["eos_token_id"]
    ends = ends if isinstance(ends, list) else [ends]
    if not path.is_file():
        tokens: list[str] = [f"<{number}>" for number in range(config["vocab_size"])]
        kinds, merges, template = [gguf.TokenType.NORMAL] * len(tokens), [], None
    else:
        content = json.loads(path.read_text())
        vocabulary = content["model"]["vocab"] | {token["content"]: token["id"] for token in content["added_tokens"]}
        tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
        special = {token["content"] for token in content["added_tokens"] if token["special"]}
        kinds = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
        merges = [" ".join(merge) for merge in content["model"]["merges"]]
        template = json.loads((source / "tokenizer_config.json").read_text())["chat_template"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(ends[-1])
    if len(ends) > 1:
        writer.add_eot_token_id(ends[0])
    if template is not None:
        writer.add_chat_template(template)
