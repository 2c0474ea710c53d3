"""Writes the checkpoint: config.json, weights, and a tokenizer with a word for each id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from benchmarks.exact_recall.construction import INNER_SIZE, NUM_LAYERS, recall_tensors
from benchmarks.exact_recall.shape import BOS, EOS, ROPE_THETA, RecallShape

BOS_WORD, EOS_WORD = "<s>", "</s>"


def write_recall_checkpoint(folder: Path, shape: RecallShape) -> Path:
    """Write a `LlamaForCausalLM` in float32, the same bytes every time. It recalls in bfloat16 too.

    Args:
        folder: created if it does not exist.

    Returns:
        The folder.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {"config.json": _config(shape), "tokenizer_config.json": _tokenizer_config(shape)}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    save_file(recall_tensors(shape), folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(shape.vocab_size).save(str(folder / "tokenizer.json"))
    return folder


def _config(shape: RecallShape) -> dict[str, Any]:
    """Return config.json, with `rope_theta` in the forms of transformers 4 and 5."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": INNER_SIZE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_positions,
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "torch_dtype": "float32",
    }


def _tokenizer_config(shape: RecallShape) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS_WORD,
        "eos_token": EOS_WORD,
        "model_max_length": shape.max_positions,
        "clean_up_tokenization_spaces": False,
    }


def _tokenizer(vocab_size: int) -> Tokenizer:
    """Make a tokenizer in which id 7 is the word "w7", spaces separate words, and a text begins with BOS."""
    words = [BOS_WORD, EOS_WORD, *(f"w{token}" for token in range(2, vocab_size))]
    tokenizer = Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}, unk_token=EOS_WORD))
    tokenizer.add_special_tokens([BOS_WORD, EOS_WORD])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS_WORD} $A", special_tokens=[(BOS_WORD, BOS)])
    return tokenizer
