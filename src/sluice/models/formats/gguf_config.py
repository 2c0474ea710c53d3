"""The `config.json` that the metadata of a GGUF file stands for."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sluice.models.checkpoint import CheckpointError, Fields
from sluice.models.formats.gguf_open import fields_of
from sluice.text.gguf.file import TensorInfo
from sluice.text.gguf.metadata import Items
from sluice.text.gguf.model import GGUFModel
from sluice.text.gguf.tensor_types import PLAIN as UNQUANTISED

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
QUANTIZATION_VERSION = 2
OTHER_KINDS: Mapping[str, str] = {
    "adapter": "a LoRA adapter, not a model",
    "mmproj": "the vision part of a model, not the model",
    "imatrix": "statistics for quantising a model, not a model",
}
"""Values of `general.type` -> what such a file is."""
OTHER_ARCHITECTURES: Mapping[str, str] = {"clip": "mmproj", "imatrix": "imatrix"}
"""Architectures of files that do not give their `general.type`."""
READ = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "pooling_type"),
    *("attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "attention.causal"),
    *("attention.key_length", "attention.value_length", "attention.sliding_window"),
    *("rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor"),
    *("rope.scaling.original_context_length", "rope.scaling.finetuned", "expert_count", "expert_used_count"),
    "tensor_data_layout",
)
"""Fields of an architecture that are read here, or say nothing about the numbers."""


def model_config(file: GGUFModel) -> dict[str, Any]:
    """Return the `config.json` of a file.

    Raises:
        CheckpointError: the architecture, or a setting of it, is not supported; or a field is missing or not valid.
    """
    metadata, tensors = fields_of(file), file.tensors
    name = metadata.text("general.architecture")
    _check_is_model(metadata, name)
    if name not in ARCHITECTURES:
        raise metadata.error("general.architecture", f"one of {', '.join(ARCHITECTURES)}")
    _check_quantization(file, metadata)
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.name} lacks the matrix token_embd.weight")
    _check_tokens(metadata, embedding)
    sizes = _Sizes(metadata, name)
    sizes.check(file)
    matrices = Counter(tensor.kind.name for tensor in tensors.values() if len(tensor.shape) == 2)
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
        "rope_parameters": sizes.rope(file, tensors.get(FREQUENCY_FACTORS)),
        "attention_bias": name == "qwen2" or "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "eos_token_id": _ends(metadata),
        "dtype": PLAIN.get(matrices.most_common(1)[0][0], "bfloat16"),
        "quantization_config": {"quant_method": METHOD, "types": dict(matrices.most_common())},
    }


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
                raise CheckpointError(f"{metadata.source}: {field} = {metadata.get(field)!r:.100} is not supported")
        self._only("expert_count", (0, None), "0")
        self._only("attention.sliding_window", (0, None), "0")
        self._only("attention.causal", (True, None), "true")
        self.heads = self.integer("attention.head_count")
        self.head_dim = self._head_dim()
        for field in ("rope.dimension_count", "attention.value_length"):
            self._only(field, (self.head_dim, None), f"the head size, {self.head_dim}")

    def check(self, file: GGUFModel) -> None:
        """Check that the tensors have these sizes, before anything is made in them."""
        layers, width = self.integer("block_count"), self.integer("embedding_length")
        kv_heads = self.integer("attention.head_count_kv", self.heads)
        if layers > len(file.tensors):
            raise self._metadata.error(f"{self._name}.block_count", f"at most {len(file.tensors)}, the tensors' number")
        for part, rows, columns in (
            ("token_embd", None, width),
            ("blk.0.attn_q", self.heads * self.head_dim, width),
            ("blk.0.attn_k", kv_heads * self.head_dim, width),
        ):
            found = file.tensors.get(f"{part}.weight")
            shape = (found.shape[0] if rows is None and found is not None else rows, columns)
            if found is None or found.shape != shape:
                has = "is missing" if found is None else f"has the shape {list(found.shape)}"
                raise CheckpointError(
                    f"{file.name}: tensor {part}.weight {has}, and the sizes of {self._name} ask for {list(shape)}"
                )

    def integer(self, field: str, default: int | None = None) -> int:
        """Return a size."""
        return self._metadata.integer(f"{self._name}.{field}", default)

    def rope(self, file: GGUFModel, factors: TensorInfo | None) -> dict[str, Any]:
        """Return `rope_parameters`."""
        theta = self._metadata.number(f"{self._name}.rope.freq_base", 10_000.0)
        kind = self._metadata.text(f"{self._name}.rope.scaling.type", "none")
        if kind not in ("none", "linear", "yarn"):
            raise self._metadata.error(f"{self._name}.rope.scaling.type", "none, linear or yarn")
        if factors is not None:
            if kind != "none":
                raise self._metadata.error(f"{self._name}.rope.scaling.type", f"none beside {FREQUENCY_FACTORS}")
            if factors.shape != (self.head_dim // 2,):
                raise CheckpointError(
                    f"{file.name}: tensor {factors.name} must have {self.head_dim // 2} values, one for each pair of a"
                    f" head, got the shape {list(factors.shape)}"
                )
            return {"rope_type": "factors", "rope_theta": theta, "factors": _float32(factors)}
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


def _check_is_model(metadata: Fields, architecture: str) -> None:
    kind = metadata.text("general.type", OTHER_ARCHITECTURES.get(architecture, "model"))
    if kind in OTHER_KINDS:
        raise CheckpointError(
            f"{metadata.source} is {OTHER_KINDS[kind]} (general.type {kind!r}): name the model's file"
        )
    if kind != "model":
        raise metadata.error("general.type", "'model'")


def _check_quantization(file: GGUFModel, metadata: Fields) -> None:
    version = metadata.get("general.quantization_version")
    is_quantised = any(tensor.kind.name not in UNQUANTISED for tensor in file.tensors.values())
    if is_quantised and version not in (QUANTIZATION_VERSION, None):
        raise metadata.error("general.quantization_version", f"{QUANTIZATION_VERSION}: quantise the model again")


def _check_tokens(metadata: Fields, embedding: TensorInfo) -> None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Items) and len(tokens) > embedding.shape[0]:
        raise CheckpointError(
            f"{metadata.source}: tokenizer.ggml.tokens has {len(tokens)} tokens, and token_embd.weight"
            f" {embedding.shape[0]} rows: each token needs one"
        )


def _float32(tensor: TensorInfo) -> list[float]:
    """Return the values of a tensor of float32."""
    if tensor.kind.name != "F32":
        raise CheckpointError(f"{tensor.file}: tensor {tensor.name} must be of type F32, got {tensor.kind.name}")
    return list(struct.unpack_from(f"<{tensor.nbytes // 4}f", tensor.data, tensor.start))


def _ends(metadata: Fields) -> list[int]:
    """Return the ids that end an answer: of a text, and of a turn or a message where they differ."""
    names = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
    return list(dict.fromkeys(metadata.integer(name, minimum=0) for name in names if metadata.get(name) is not None))
