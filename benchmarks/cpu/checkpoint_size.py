"""Counts the weights of a checkpoint, from the header of its safetensors file."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight", "transformer.wpe.weight")


def layer_weights(checkpoint: Path) -> int:
    """Return how many weights every token of a prompt is multiplied with: all but the embedding and a tied head."""
    with (checkpoint / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    inside = header.keys() - {"__metadata__", *EMBEDDINGS}
    return sum(math.prod(header[name]["shape"]) for name in inside)
