"""What all parts of a run agree on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.on_gpu.models import config_of, random_model
from sluice.models.base import CausalLM


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a run takes place, and whether it is for real."""

    device: torch.device
    tiny: bool
    """A trial of the script: small models, short prompts, few steps."""

    @property
    def dtype(self) -> torch.dtype:
        """Of models and KV."""
        return torch.bfloat16

    @property
    def attention(self) -> str:
        """Ours: what `--attention-backend auto` comes to on a GPU."""
        return "triton" if self.device.type == "cuda" else "static"

    def model(self, name: str, dtype: torch.dtype | None = None) -> CausalLM:
        """One of `models.config_of` with random weights, always the same ones."""
        return random_model(config_of(name, tiny=self.tiny), dtype or self.dtype, self.device)

    def pick(self, real: int, tiny: int) -> int:
        """A size."""
        return tiny if self.tiny else real


def random_prompt(length: int, vocab_size: int, seed: int) -> Sequence[int]:
    """Token ids; prompts of different seeds share no beginning."""
    draw = random.Random(seed)
    return [seed % vocab_size, *(draw.randrange(vocab_size) for _ in range(length - 1))]
