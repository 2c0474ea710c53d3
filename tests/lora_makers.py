"""Adapters in PEFT's format for tiny models, written without PEFT, and models with one merged into the weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import nn

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
EVERY = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
STRENGTH = 0.3
"""Standard deviation of what random matrices have, so that an adapter changes most tokens of a tiny model."""


@dataclass(frozen=True)
class Lora:
    """A random adapter."""

    seed: int
    rank: int = 4
    alpha: float = 8.0
    targets: Sequence[str] = EVERY
    use_rslora: bool = False
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    """Ends of names -> ranks."""
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32

    def pairs(self, model: transformers.PreTrainedModel) -> dict[str, tuple[torch.Tensor, torch.Tensor, float]]:
        """Return A, B and the scale of each layer that it changes, by name."""
        noise = torch.Generator().manual_seed(self.seed)
        found = {}
        for name, layer in model.named_modules():
            if not isinstance(layer, nn.Linear) or name.rpartition(".")[2] not in self.targets:
                continue
            rank = next((value for end, value in self.rank_pattern.items() if name.endswith(end)), self.rank)
            alpha = next((value for end, value in self.alpha_pattern.items() if name.endswith(end)), self.alpha)
            out_features, in_features = layer.weight.shape
            a = torch.randn((rank, in_features), generator=noise) * STRENGTH
            b = torch.randn((out_features, rank), generator=noise) * STRENGTH
            scale = alpha / (math.sqrt(rank) if self.use_rslora else rank)
            found[name] = a.to(self.dtype), b.to(self.dtype), scale
        return found

    def save(self, model: transformers.PreTrainedModel, folder: Path, **config: Any) -> Path:
        """Write the folder that PEFT would; returns it.

        Args:
            config: further fields of `adapter_config.json`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for name, (a, b, _) in self.pairs(model).items():
            tensors[f"base_model.model.{name}.lora_A.weight"] = a.contiguous()
            tensors[f"base_model.model.{name}.lora_B.weight"] = b.contiguous()
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        fields = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.rank,
            "lora_alpha": self.alpha,
            "target_modules": list(self.targets),
            "rank_pattern": dict(self.rank_pattern),
            "alpha_pattern": dict(self.alpha_pattern),
            "use_rslora": self.use_rslora,
            "use_dora": False,
            "bias": "none",
            "modules_to_save": None,
            "init_lora_weights": True,
        }
        (folder / "adapter_config.json").write_text(json.dumps(fields | config))
        return folder

    def merge(self, model: transformers.PreTrainedModel) -> None:
        """Add it to the weights of a model in float64."""
        layers = dict(model.named_modules())
        for name, (a, b, scale) in self.pairs(model).items():
            layers[name].weight.data += scale * (b.double() @ a.double())


def wide(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Return a model in float64, whose config says so."""
    model = model.double()
    model.config.dtype = torch.float64
    return model
