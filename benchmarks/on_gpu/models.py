"""Makes models with random weights in published shapes on the device, without a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.checkpoint.shapes import SHAPES, LlamaShape
from sluice.models.base import CausalLM
from sluice.models.checkpoint import CheckpointConfig, Fields
from sluice.models.linear import Packer
from sluice.models.model_class import model_class

EMBEDDING_STD = 0.02
SMALL, LARGE = "qwen3-0.6b", "llama-3.1-8b"
TINY_POSITIONS = 2048


def config_of(name: str, *, tiny: bool = False) -> dict[str, Any]:
    """Return the config.json of `SMALL` or `LARGE`.

    Args:
        tiny: use the sizes of a smoke test.
    """
    shape = SHAPES[SMALL] if name == SMALL else SHAPES["llama-3.2-1b"]
    assert isinstance(shape, LlamaShape)
    if name == LARGE:
        shape = replace(
            shape,
            hidden_size=4096,
            inner_size=14336,
            num_layers=32,
            head_dim=128,
            rope_scaling={**(shape.rope_scaling or {}), "factor": 8.0},
            more={**shape.more, "tie_word_embeddings": False},
        )
    if tiny:
        shape = replace(shape.tiny(), max_positions=TINY_POSITIONS, vocab_size=512)
    return shape.config()


def random_model(config: dict[str, Any], dtype: torch.dtype, device: torch.device, seed: int = 0) -> CausalLM:
    """Make a model with normal weights that keep the size of their inputs, and norms of ones.

    Embeddings are small beside the layers' outputs, so that the result depends on the whole prefix. All weights are
    values of bfloat16, so that models of two dtypes are the same model.
    """
    (architecture,) = config["architectures"]
    checkpoint = CheckpointConfig(architecture, Fields(config, "config.json"), None, ())
    with torch.device("meta"):
        model = model_class(architecture).from_checkpoint(checkpoint, dtype)
    generator = torch.Generator(device).manual_seed(seed)
    filled = {}
    for name, parameter in model.named_parameters():
        weight = torch.ones(parameter.shape, device=device)
        if weight.dim() > 1:
            std = EMBEDDING_STD if "embed" in name or "head" in name else weight.shape[-1] ** -0.5
            weight.normal_(0, std, generator=generator)
        filled[name] = weight.to(torch.bfloat16).to(dtype)
    model.load_state_dict(filled, assign=True)
    model.requires_grad_(False)
    filled.clear()
    model.pack(Packer())
    return model.to(device)


def num_parameters(model: CausalLM) -> int:
    """Return the number of weights. A weight that is used twice, as a tied head is, counts once."""
    return sum({parameter.data_ptr(): parameter.numel() for parameter in model.parameters()}.values())
