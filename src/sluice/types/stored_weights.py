"""StoredWeights: what the files of a model say of its weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """The weights of a checkpoint, as its files have them."""

    format: str = "safetensors"
    """"safetensors" or "gguf"."""
    level: str = ""
    """How most matrices are stored, such as "Q4_K", "gptq" or "bfloat16"."""
    numbers: int = 0
    """The model's parameters; 0 if that is not known."""
    nbytes: int = 0
    """Bytes of the files."""
