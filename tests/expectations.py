"""What the parity tests agree on: lengths, and the types of their fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

MAX_TOKENS = 16
PROMPT_LENGTHS = (61, 5, 34, 1)

Prompt = tuple[int, ...]
Checkpoints = Callable[[str], Path]
"""Family -> folder of its tiny model."""
Expected = Callable[[str, Prompt], list[int]]
"""Family, prompt -> the `MAX_TOKENS` tokens that transformers generates in float64."""
