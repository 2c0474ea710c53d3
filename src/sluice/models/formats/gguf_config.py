"""The `config.json` and `tokenizer_config.json` that the metadata of a GGUF file stands for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from sluice.models.checkpoint import CheckpointError, Fields
from sluice.models.formats.gguf_file import GGUFFile, GGUFTensor

METHOD = "gguf"
ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""llama.cpp's names of architectures -> those of `config.json`. Mistral's files say llama, too."""
FREQUENCY_FACTORS = "rope_freqs.weight"
"""The tensor by which Llama 3.1 divides rotary frequencies."""
PLAIN: Mapping[str, str] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
CONTROL, USER_DEFINED = 3, 4
"""Types of tokens: special ones, and others that are never cut."""
READ = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "pooling_type"),
    *("attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "attention.causal"),
    *("attention.key_length", "attention.value_length", "attention.sliding_window"),
    *("rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor"),
    *("rope.scaling.original_context_length", "rope.scaling.finetuned", "expert_count", "expert_used_count"),
    "tensor_data_layout",
)
"""Fields of an architecture that are read here, or say nothing about the numbers."""


def model_config(file: GGUFFile) -> dict[str, Any]:
    """Return the `config.json` of a file.

    Raises:
        CheckpointError: the architecture, or a setting of it, is not supported; or a field is missing or not valid.
    """
    metadata, tensors = file.metadata(), {tensor.name: tensor for tensor in file.tensors()}
    name = metadata.text("general.architecture")
    if name not in ARCHITECTURES:
        raise metadata.error("general.architecture", f"one of {', '.join(ARCHITECTURES)}")
    if metadata.integer("split.count", 0, minimum=0) > 1:
        raise metadata.error("split.count", "1: join the files with llama-gguf-split --merge")
    sizes = _Sizes(metadata, name)
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{file.name} lacks the tensor token_embd.weight")
    matrices = Counter(tensor.kind for tensor in tensors.values() if len(tensor.shape) == 2)
    return {
        "architectures": [ARCHITECTURES[name]],
        "model_type": name,
        "vocab_size": embedding.shape[0],
        "hidden_size": sizes.integer("embedding_length"),
        "intermediate_size": sizes.integer("feed_forward_length"),
        "num_hidden_layers": sizes.integer("block_count"),
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.integer("attention.head_count_kv", sizes.heads),
        "head_dim": sizes.head_dim,
        "max_position_embeddings": sizes.integer("context_length"),
        "rms_norm_eps": metadata.number(f"{name}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": sizes.rope(tensors.get(FREQUENCY_FACTORS)),
        "attention_bias": name == "qwen2" or "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "eos_token_id": _ends(metadata),
        "dtype": PLAIN.get(matrices.most_common(1)[0][0], "bfloat16"),
        "quantization_config": {"quant_method": METHOD, "types": dict(matrices.most_common())},
    }


def tokenizer_config(metadata: Fields) -> dict[str, Any]:
    """Return the `tokenizer_config.json` of a file, with its chat template.

    Raises:
        CheckpointError: a field is not valid.
    """
    tokens, kinds = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list):
        raise CheckpointError(f"{metadata.source} has no tokenizer (tokenizer.ggml.tokens): give one by --tokenizer")
    config: dict[str, Any] = {"added_tokens_decoder": {}}
    for number, (token, kind) in enumerate(zip(tokens, kinds if isinstance(kinds, list) else (), strict=False)):
        if kind in (CONTROL, USER_DEFINED):
            entry = {"content": token, "special": kind == CONTROL, "normalized": False}
            config["added_tokens_decoder"][str(number)] = entry
    roles = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    for role, name in roles.items():
        field = f"tokenizer.ggml.{name}_token_id"
        if metadata.get(field) is not None:
            number = metadata.integer(field, minimum=0)
            if number >= len(tokens):
                raise metadata.error(field, f"the id of one of the {len(tokens)} tokens")
            config[role] = tokens[number]
    is_sentencepiece = metadata.get("tokenizer.ggml.model") == "llama"
    config["add_bos_token"] = metadata.flag("tokenizer.ggml.add_bos_token", is_sentencepiece)
    config["add_eos_token"] = metadata.flag("tokenizer.ggml.add_eos_token", False)
    if metadata.get("tokenizer.chat_template") is not None:
        config["chat_template"] = metadata.text("tokenizer.chat_template")
    return config


class _Sizes:
    """The fields of a file's architecture.

    Raises:
        CheckpointError: one of them is not supported.
    """

    def __init__(self, metadata: Fields, name: str) -> None:
        self._metadata = metadata
        self._name = name
        prefix = f"{name}."
        for field in metadata:
            if field.startswith(prefix) and field.removeprefix(prefix) not in READ:
                raise CheckpointError(f"{metadata.source}: {field} = {metadata.get(field)!r} is not supported")
        self._only("expert_count", (0, None), "0")
        self._only("attention.sliding_window", (0, None), "0")
        self._only("attention.causal", (True, None), "true")
        self.heads = self.integer("attention.head_count")
        self.head_dim = self._head_dim()
        for field in ("rope.dimension_count", "attention.value_length"):
            self._only(field, (self.head_dim, None), f"the head size, {self.head_dim}")

    def integer(self, field: str, default: int | None = None) -> int:
        """Return a size."""
        return self._metadata.integer(f"{self._name}.{field}", default)

    def rope(self, factors: GGUFTensor | None) -> dict[str, Any]:
        """Return `rope_parameters`."""
        theta = self._metadata.number(f"{self._name}.rope.freq_base", 10_000.0)
        kind = self._metadata.text(f"{self._name}.rope.scaling.type", "none")
        if kind not in ("none", "linear", "yarn"):
            raise self._metadata.error(f"{self._name}.rope.scaling.type", "none, linear or yarn")
        if factors is not None:
            if kind != "none":
                raise self._metadata.error(f"{self._name}.rope.scaling.type", f"none beside {FREQUENCY_FACTORS}")
            values = factors.dequantized(torch.float32).tolist()
            return {"rope_type": "factors", "rope_theta": theta, "factors": values}
        if kind == "none":
            return {"rope_type": "default", "rope_theta": theta}
        scaling: dict[str, Any] = {"rope_type": kind, "rope_theta": theta}
        scaling["factor"] = self._metadata.number(f"{self._name}.rope.scaling.factor")
        if kind == "yarn":
            original = self.integer("rope.scaling.original_context_length")
            scaling["original_max_position_embeddings"] = original
        return scaling

    def _head_dim(self) -> int:
        for field in ("attention.key_length", "rope.dimension_count"):
            if self._metadata.get(f"{self._name}.{field}") is not None:
                return self.integer(field)
        return self.integer("embedding_length") // self.heads

    def _only(self, field: str, accepted: tuple[Any, ...], words: str) -> None:
        if self._metadata.get(f"{self._name}.{field}") not in accepted:
            raise self._metadata.error(f"{self._name}.{field}", words)


def _ends(metadata: Fields) -> list[int]:
    """Return the ids that end an answer: of a text, and of a turn or a message where they differ."""
    names = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
    return list(dict.fromkeys(metadata.integer(name, minimum=0) for name in names if metadata.get(name) is not None))
