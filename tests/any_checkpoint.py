"""A small random model for tests that need any model: in bfloat16, with a tokenizer of words and a chat template."""

from __future__ import annotations

import atexit
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from benchmarks.checkpoint.shapes import QWEN3
from benchmarks.make_checkpoint import write_checkpoint

SHAPE = replace(
    QWEN3,
    vocab_size=4096,
    max_positions=8192,
    hidden_size=256,
    inner_size=512,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
)
VOCAB_SIZE = SHAPE.vocab_size
NAME = "any-model"
"""By which it is served."""


@cache
def any_checkpoint() -> Path:
    """Return the folder that all tests of this process share, none of which may change it."""
    made = Path(mkdtemp(prefix="any-checkpoint-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    write_checkpoint(made / NAME, SHAPE)
    return made / NAME
