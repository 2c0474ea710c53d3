"""A tiny random Llama with a tokenizer and a chat template: a checkpoint that loads at once and writes random text.

Its tokenizer is byte-level BPE trained on a few sentences, so it encodes any text.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.checkpoint.chat import CHAT_TEMPLATE

VOCAB_SIZE = 384
HIDDEN_SIZE = 64
INNER_SIZE = 176
NUM_LAYERS = 2
NUM_HEADS = 4
NUM_KV_HEADS = 2
HEAD_DIM = HIDDEN_SIZE // NUM_HEADS
MAX_POSITIONS = 8192
SEED = 20240607
BOS, EOS, TURN_START, TURN_END = "<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (BOS, EOS, TURN_START, TURN_END)
SENTENCES = (
    "A sluice lets water through in measured amounts, and the miller decides how much.",
    "The river rises in the night, but the gate stays where it was set in the morning.",
    "When the water is high, the wheel turns fast; when it is low, the wheel waits.",
    "Every boat goes through the lock in its turn, the small ones beside the large ones.",
    "She opened the gate a little more, and the stream below began to run again.",
    "What is the name of this place? It is the old mill at the end of the canal.",
    "Please tell the keeper that three more boats are coming up the river this evening.",
)


def random_checkpoint(folder: Path) -> Path:
    """Write the checkpoint's files into an existing folder; the same bytes every time. Returns the folder."""
    tokenizer = train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {token: tokenizer.token_to_id(token) for token in SPECIALS}
    ends = {"bos_token_id": ids[BOS], "eos_token_id": [ids[EOS], ids[TURN_END]]}
    files: dict[str, dict[str, object]] = {
        "config.json": _config() | ends,
        "generation_config.json": ends,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": TURN_END,
            "additional_special_tokens": list(SPECIALS),
            "model_max_length": MAX_POSITIONS,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    save_file(random_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE: 256 bytes, the specials, and merges learned from `SENTENCES`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def random_weights() -> dict[str, torch.Tensor]:
    """Float32 weights under Hugging Face's names; the head is tied to the embedding."""
    kv_size = NUM_KV_HEADS * HEAD_DIM
    matrices = {"model.embed_tokens": (VOCAB_SIZE, HIDDEN_SIZE)}
    norms = ["model.norm"]
    for layer in range(NUM_LAYERS):
        base = f"model.layers.{layer}"
        norms += [f"{base}.input_layernorm", f"{base}.post_attention_layernorm"]
        matrices |= {
            f"{base}.self_attn.q_proj": (HIDDEN_SIZE, HIDDEN_SIZE),
            f"{base}.self_attn.k_proj": (kv_size, HIDDEN_SIZE),
            f"{base}.self_attn.v_proj": (kv_size, HIDDEN_SIZE),
            f"{base}.self_attn.o_proj": (HIDDEN_SIZE, HIDDEN_SIZE),
            f"{base}.mlp.gate_proj": (INNER_SIZE, HIDDEN_SIZE),
            f"{base}.mlp.up_proj": (INNER_SIZE, HIDDEN_SIZE),
            f"{base}.mlp.down_proj": (HIDDEN_SIZE, INNER_SIZE),
        }
    generator = torch.Generator().manual_seed(SEED)
    weights = {
        f"{name}.weight": torch.randn(shape, generator=generator) / shape[1] ** 0.5 for name, shape in matrices.items()
    }
    return weights | {f"{name}.weight": torch.ones(HIDDEN_SIZE) for name in norms}


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": INNER_SIZE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
