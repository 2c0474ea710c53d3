"""The setting that all parts of a run share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sluice.models.base import CausalLM


@dataclass(frozen=True, slots=True)
class Setting:
    """The device of a run, and whether it is a trial."""

    device: torch.device
    tiny: bool
    """True to test the script: small models, short prompts, few steps."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of models and KV."""
        return torch.bfloat16

    @property
    def attention(self) -> str:
        """Sluice's own attention: the result of `--attention-backend auto` on a GPU."""
        return "triton" if self.device.type == "cuda" else "static"

    def model(self, name: str, dtype: torch.dtype | None = None) -> CausalLM:
        """Make a model of `models.config_of` with the same random weights each time."""
        # It needs packages that not every part needs, and that a machine may lack.
        from benchmarks.on_gpu.models import config_of, random_model

        return random_model(config_of(name, tiny=self.tiny), dtype or self.dtype, self.device)

    def pick(self, real: int, tiny: int) -> int:
        """Return a size, smaller in a trial."""
        return tiny if self.tiny else real


def random_prompt(length: int, vocab_size: int, seed: int) -> Sequence[int]:
    """Return token ids. Prompts of different seeds share no beginning."""
    draw = random.Random(seed)
    return [seed % vocab_size, *(draw.randrange(vocab_size) for _ in range(length - 1))]
