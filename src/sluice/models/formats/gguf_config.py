"""The `config.json` that the metadata of a GGUF file stands for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from sluice.models.checkpoint import CheckpointError, Fields
from sluice.models.formats.gguf_families import NAMES
from sluice.models.formats.gguf_fields import ArchitectureFields
from sluice.models.formats.gguf_open import fields_of
from sluice.models.formats.gguf_rope import rope_parameters
from sluice.models.pooling import POOLING
from sluice.models.registry import GGUF_FAMILIES
from sluice.text.gguf.file import TensorInfo
from sluice.text.gguf.metadata import Items
from sluice.text.gguf.model import GGUFModel
from sluice.text.gguf.tensor_types import PLAIN as UNQUANTISED

METHOD = "gguf"
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


def model_config(file: GGUFModel) -> dict[str, Any]:
    """Return the `config.json` of a file.

    Raises:
        CheckpointError: the architecture, or a setting of it, is not supported; or a field is missing or not valid.
    """
    metadata, tensors = fields_of(file), file.tensors
    name = metadata.text("general.architecture")
    _check_is_model(metadata, name)
    if name not in GGUF_FAMILIES:
        raise metadata.error("general.architecture", f"one of {', '.join(GGUF_FAMILIES)}")
    family = GGUF_FAMILIES[name]
    names = NAMES[name]
    _check_quantization(file, metadata)
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.name} lacks the matrix token_embd.weight")
    _check_tokens(metadata, embedding)
    special = {"has_states": names.has_states, "has_gates": names.has_gates}
    sizes = ArchitectureFields(metadata, name, tensors, names.reads, names.varying, **special)
    sizes.check(file)
    matrices = Counter(tensor.kind.name for tensor in tensors.values() if len(tensor.shape) > 1)
    config = {
        "architectures": [family.architecture],
        "model_type": name,
        "vocab_size": embedding.shape[0],
        "hidden_size": sizes.integer("embedding_length"),
        "intermediate_size": sizes.integer("feed_forward_length"),
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "max_position_embeddings": sizes.integer("context_length"),
        "rms_norm_eps": _eps(metadata, name),
        "rope_parameters": rope_parameters(sizes, tensors),
        "attention_bias": name == "qwen2" or "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "eos_token_id": _ends(metadata),
        "dtype": PLAIN.get(matrices.most_common(1)[0][0], "bfloat16"),
        POOLING: sizes.pooling,
        "quantization_config": {"quant_method": METHOD, "types": dict(matrices.most_common())},
    }
    return {**config, **names.config(sizes, config)}


def _eps(metadata: Fields, name: str) -> float:
    """Return what is added in norms. Files of some families have it under the name for layer norms alone."""
    usual, other = (f"{name}.attention.layer_norm_{kind}epsilon" for kind in ("rms_", ""))
    return metadata.number(usual if metadata.get(other) is None else other)


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


def _ends(metadata: Fields) -> list[int]:
    """Return the ids that end an answer: of a text, and of a turn or a message where they differ."""
    names = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
    return list(dict.fromkeys(metadata.integer(name, minimum=0) for name in names if metadata.get(name) is not None))
