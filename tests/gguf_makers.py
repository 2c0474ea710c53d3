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

import gguf_states

WITHOUT_QUANTIZER = {
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"), slice(0, 2)),
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


MIXTURES = {
    "qwen3_moe": "qwen3moe",
    "mixtral": "llama",
    "granitemoe": "granitemoe",
    "granitemoeshared": "granitemoe",
    "gpt_oss": "gpt-oss",
}
EXPERT = re.compile(r"(?P<experts>.*experts)\.(?P<number>\d+)\.(?P<layer>\w+)\.(?P<part>\w+)")
"""Layers of experts, which a file stores together."""
PERMUTED = (
    *("llama", "mixtral", "granite", "granitemoe", "granitemoeshared", "granitemoehybrid"),
    *("smollm3", "ministral3"),
)
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
    layers = config.get("num_hidden_layers") or len(config["layers_block_type"])
    table = gguf.get_tensor_name_map(known[_architecture(config)], layers)
    stacks: dict[str, dict[int, torch.Tensor]] = {}
    for full, weight in weights.items():
        if gguf_states.is_plain(full):
            plain[full] = _add_plain(writer, table, full, weight, config)
            continue
        if (expert := EXPERT.fullmatch(full)) is not None:
            name = table.get_name(gguf_states.expert_module(f"{expert['experts']}.{expert['layer']}"))
            stacks.setdefault(f"{name}.{expert['part']}", {})[int(expert["number"])] = weight
            continue
        joined = _add_joined(writer, full, weight, kind, config)
        if joined is not None:
            plain[full] = joined
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
    of_texts = {"gemma3_text": "gemma3", "gemma4_text": "gemma4", "olmo3": "olmo2", "ministral3": "mistral3"}
    renamed = MIXTURES | of_texts
    return gguf_states.architecture_of(config) or renamed.get(config["model_type"], config["model_type"])


def _add(
    writer: gguf.GGUFWriter, name: str, full: str, weight: torch.Tensor, kind: str, config: Mapping[str, Any]
) -> torch.Tensor:
    """Add one tensor, and return what the library makes of it, in the order of the checkpoint."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    turned = gguf_states.order_of(full, config)
    if turned is not None:
        weight = weight.index_select(*turned)
    count = heads.get(full.split(".")[-2]) if config["model_type"] in PERMUTED else None
    less_one = ("gemma2", "gemma3_text", *gguf_states.LINEAR)
    is_less_one = weight.ndim == 1 and config["model_type"] in less_one and "linear_attn" not in full
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
    if turned is not None:
        weight = weight.index_select(turned[0], turned[1].argsort())
    return weight.contiguous()


def _add_plain(
    writer: gguf.GGUFWriter, table: gguf.TensorNameMap, full: str, weight: torch.Tensor, config: Mapping[str, Any]
) -> torch.Tensor:
    """Add a tensor of a layer with a state that is not quantised, and return it as it is in the checkpoint."""
    turned = gguf_states.order_of(full, config)
    values = weight if turned is None else weight.index_select(*turned)
    name, values = gguf_states.plain_tensor(str(table.get_name(gguf_states.module_of(full))), full, values, config)
    writer.add_tensor(name, values.contiguous().numpy())
    return weight


def _add_joined(
    writer: gguf.GGUFWriter, full: str, weight: torch.Tensor, kind: str, config: Mapping[str, Any]
) -> torch.Tensor | None:
    """Add a tensor of gate and up, or of all experts of gpt-oss, as a converter does; None: it is none of these."""
    if full.endswith("in_proj_qkvz.weight"):
        rows, name = gguf_states.rows_of_qkvz(config), f"blk.{full.split('.')[2]}.attn_"
        parts = [
            _add(writer, f"{name}{end}.weight", end, weight[own], kind, config)
            for end, own in zip(("qkv", "gate"), rows, strict=True)
        ]
        return torch.cat(parts)[torch.cat(rows).argsort()]
    if full.endswith("shared_mlp.output_linear.weight") and not config["num_local_experts"]:
        return _add(writer, f"blk.{full.split('.')[2]}.ffn_down.weight", full, weight, kind, config)
    if not (full.endswith(("input_linear.weight", ".scale")) or ".experts." in full or "per_ex" in full):
        return None
    block, is_bias = full.split(".")[2], full.endswith("_bias")
    of_gemma4 = {
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight",
    }
    own = of_gemma4.get(full.split(".", 3)[3])
    if own is not None:
        return _add(writer, f"blk.{block}.{own}", full, weight, kind, config)
    if full.endswith("input_linear.weight"):
        end = "_exps" if weight.ndim > 2 else "_shexp" if config["num_local_experts"] else ""
        names = [f"blk.{block}.ffn_{each}{end}.weight" for each in ("gate", "up")]
        halves = zip(names, weight.chunk(2, dim=-2), strict=True)
        return torch.cat([_add(writer, name, name, half, kind, config) for name, half in halves], -2)
    outputs = weight if is_bias else weight.transpose(1, 2)
    parts = {"gate": outputs[:, ::2], "up": outputs[:, 1::2]} if "gate_up" in full else {"down": outputs}
    held = []
    for part, value in parts.items():
        name = f"blk.{block}.ffn_{part}_exps.{'bias' if is_bias else 'weight'}"
        held.append(_add(writer, name, name, value.contiguous(), "F32" if is_bias else kind, config))
    joined = torch.stack(held, 2).flatten(1, 2)
    return joined if is_bias else joined.transpose(1, 2).contiguous()


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
    values: dict[str, Any] = {field: config.get(key, 0) for field, key in NAMES.items()}
    values["attention.layer_norm_rms_epsilon"] = float(gguf_states.eps_of(config))
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10_000.0)}
    rope = rope.get("full_attention", rope)
    values["rope.freq_base"] = float(rope["rope_theta"])
    if config.get("head_dim") and config["model_type"] != "phi3":
        values |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    if experts := gguf_states.experts_of(config):
        values |= {"expert_count": experts, "expert_used_count": config["num_experts_per_tok"]}
    if config["model_type"] in gguf_states.ARCHITECTURES:
        values |= gguf_states.fields_of(config)
    for field, value in (values | dict(fields)).items():
        key = f"{name}.{field}"
        if key != leave:
            adds = {
                int: writer.add_uint32,
                bool: writer.add_bool,
                float: writer.add_float32,
                str: writer.add_string,
                list: writer.add_array,
            }
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
