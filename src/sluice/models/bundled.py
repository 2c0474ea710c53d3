"""The bundled model: a small Llama that was trained from nothing by the scripts in training/.

Its card, README.md beside its weights, says what it was trained on and what it can do.
"""

from __future__ import annotations

from pathlib import Path

BUNDLED = Path(__file__).parent / "sluice-nano"
"""A Hugging Face checkpoint: configuration, tokenizer, chat template, weights. The folder's name is the model's."""
