"""Tiny random models of every family, made with transformers' own classes, and what transformers computes with them.

Sizes are odd on purpose (head_dim 8, vocabulary 131, inner size 44), and weights are larger than transformers
initialises them, so that attention is far from uniform and a wrong position or mask shows in the logits.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.overrides import TorchFunctionMode

VOCAB_SIZE = 131
MAX_POSITIONS = 512
WINDOW = 9
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def sizes() -> dict[str, Any]:
    """Sizes of a model, made anew: some configs of transformers change the dicts that they are given."""
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 44,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_POSITIONS,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    }


def llama(**changes: Any) -> transformers.PreTrainedModel:
    """Llama 3.x: grouped queries, llama3 RoPE scaling, untied, unless changed."""
    return made(
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(**(sizes() | {"rope_parameters": LLAMA3_ROPE} | changes)),
    )


def llama2(**changes: Any) -> transformers.PreTrainedModel:
    """Llama 2: as many KV heads as heads, plain RoPE; here with biases everywhere."""
    kwargs = sizes() | {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True} | changes
    return made(transformers.LlamaForCausalLM, transformers.LlamaConfig(**kwargs))


def mistral(**changes: Any) -> transformers.PreTrainedModel:
    """Mistral: one sliding window on every layer, head_dim that is not hidden_size / heads."""
    return made(
        transformers.MistralForCausalLM,
        transformers.MistralConfig(**(sizes() | {"sliding_window": WINDOW, "head_dim": 10} | changes)),
    )


def qwen2(**changes: Any) -> transformers.PreTrainedModel:
    """Qwen2: biases on q, k and v, tied embeddings."""
    return made(
        transformers.Qwen2ForCausalLM, transformers.Qwen2Config(**(sizes() | {"tie_word_embeddings": True} | changes))
    )


def qwen2_windows(**changes: Any) -> transformers.PreTrainedModel:
    """Qwen2 with a sliding window from the second layer on."""
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    return made(transformers.Qwen2ForCausalLM, transformers.Qwen2Config(**(sizes() | windows | changes)))


def qwen3(**changes: Any) -> transformers.PreTrainedModel:
    """Qwen3: q and k normalised per head, head_dim that is not hidden_size / heads."""
    return made(
        transformers.Qwen3ForCausalLM,
        transformers.Qwen3Config(**(sizes() | {"head_dim": 12, "tie_word_embeddings": True} | changes)),
    )


def gpt2(**changes: Any) -> transformers.PreTrainedModel:
    """GPT-2."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "n_embd": 24,
        "n_layer": 3,
        "n_head": 3,
        "n_positions": MAX_POSITIONS,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return made(transformers.GPT2LMHeadModel, transformers.GPT2Config(**(sizes | changes)))


FAMILIES: dict[str, Callable[[], transformers.PreTrainedModel]] = {
    "llama": llama,
    "llama2": llama2,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen2-windows": qwen2_windows,
    "qwen3": qwen3,
    "gpt2": gpt2,
}


def save(family: str, folder: Path) -> Path:
    """Write the tiny model of a family as a checkpoint (float32 safetensors, no tokenizer); returns `folder`."""
    FAMILIES[family]().save_pretrained(folder)
    return folder


MASK_TOKEN = VOCAB_SIZE - 1
"""Of the tiny SDAR models."""


def save_sdar(folder: Path, block_size: int | None = 4, **changes: Any) -> Path:
    """Write a tiny SDAR model, which is a Qwen3 that attends by blocks, as a checkpoint; returns `folder`.

    transformers has no class for it. `diffusion_reference` loads its weights as a Qwen3, with a mask of its own.
    """
    qwen3().save_pretrained(folder)
    path = folder / "config.json"
    ours = {"architectures": ["SDARForCausalLM"], "model_type": "sdar", "block_size": block_size}
    given = json.loads(path.read_text()) | ours | {"mask_token_id": MASK_TOKEN} | changes
    path.write_text(json.dumps({name: value for name, value in given.items() if value is not None}))
    return folder


def load_reference(folder: Path, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """Load a checkpoint with transformers. In float64 use it only through `logits` and `greedy`."""
    with exact(dtype):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def logits(reference: transformers.PreTrainedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """Return transformers' logits after every token, [tokens, vocab_size], without a cache."""
    with exact(reference.dtype), torch.inference_mode():
        return reference(torch.tensor([list(token_ids)]), use_cache=False).logits[0]


def greedy(
    reference: transformers.PreTrainedModel, token_ids: Sequence[int], max_tokens: int, guess: Sequence[int] = ()
) -> list[int]:
    """Return transformers' most likely continuation, each token from a full forward without a cache.

    Args:
        guess: a continuation, right or wrong, such as ours. Up to its first wrong token one forward is enough for all.
    """
    tokens = list(token_ids)
    if guess:
        likeliest = logits(reference, [*token_ids, *guess[: max_tokens - 1]])[len(token_ids) - 1 :].argmax(-1).tolist()
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(guess, likeliest, strict=False)))
        tokens += likeliest[: right + 1]
    while len(tokens) < len(token_ids) + max_tokens:
        tokens.append(int(logits(reference, tokens)[-1].argmax()))
    return tokens[len(token_ids) :]


def generate(
    reference: transformers.PreTrainedModel, token_ids: Sequence[int], max_tokens: int, **options: Any
) -> list[int]:
    """Return the output of transformers' greedy `generate`, with its cache and without an end-of-sequence token."""
    with exact(reference.dtype), torch.inference_mode():
        tokens = reference.generate(
            torch.tensor([list(token_ids)]),
            attention_mask=torch.ones(1, len(token_ids), dtype=torch.int64),
            max_new_tokens=max_tokens,
            do_sample=False,
            **({"eos_token_id": None} | options),
            pad_token_id=0,
        )
    return tokens[0, len(token_ids) :].tolist()


def made(model_class: type[transformers.PreTrainedModel], config: Any) -> transformers.PreTrainedModel:
    """Make a model with fixed weights, large enough that every part of the model shows in the logits."""
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = "norm" in name or ".ln_" in name
        if parameter.ndim == 2:
            parameter.data = noise * (1.5 / parameter.shape[1] ** 0.5)
        else:
            parameter.data = noise * 0.2 + (1.0 if is_norm and name.endswith("weight") else 0.0)
    return model


class _WidenFloat32(TorchFunctionMode):
    """Replaces every float32 that code names by float64.

    transformers computes norms, rotary angles and softmax in float32 for any dtype of the model; with this its
    float64 model is float64 throughout, and so a yardstick at 1e-9.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        kwargs = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*(_wide(value) for value in args), **kwargs)


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def exact(dtype: torch.dtype) -> Iterator[None]:
    """Let code of transformers compute in float64 throughout, if that is the dtype."""
    if dtype != torch.float64:
        yield
        return
    with _WidenFloat32():
        yield


@functools.cache
def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    """Return random token ids of the tiny models' vocabulary, without special tokens."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return tuple(torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist())
