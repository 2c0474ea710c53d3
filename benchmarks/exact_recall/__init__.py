"""A checkpoint constructed to recall exactly at any distance, for tests with known answers."""

from benchmarks.exact_recall.checkpoint import write_recall_checkpoint
from benchmarks.exact_recall.prompts import Needle, needle_prompt, needle_prompts
from benchmarks.exact_recall.shape import BOS, EOS, SHAPES, RecallShape, ShapeError

__all__ = [
    "BOS",
    "EOS",
    "SHAPES",
    "Needle",
    "RecallShape",
    "ShapeError",
    "needle_prompt",
    "needle_prompts",
    "write_recall_checkpoint",
]
