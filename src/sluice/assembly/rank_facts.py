"""What must be the same on all ranks that compute one model: versions, options and the checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import torch

from sluice.config import ENGINE_GROUPS, GROUPS, EngineConfig, flag
from sluice.models.checkpoint import CheckpointError
from sluice.models.weights import weight_files
from sluice.version import VERSION

FRAMES = 2
"""Number of the frames that ranks exchange. It grows when they change."""
SAMPLES, SAMPLE_BYTES = 64, 1 << 16
"""Pieces of a file of weights that are compared, and bytes of each; the first holds the names of the tensors."""
OWN = {
    *("model", "tokenizer", "download_dir", "device", "threads", "node_rank", "dist_token_file", "trace", "cost_model"),
    *("max_total_tokens", "mem_fraction_static", "gpu_memory_utilization"),
}
"""Options that may differ between machines, or that a restart changes."""


def facts_of(config: EngineConfig, folder: Path) -> dict[str, str]:
    """Return what a rank goes by, in words, by name.

    Args:
        folder: of the checkpoint, on this machine.

    Raises:
        OSError, CheckpointError: the checkpoint cannot be read.
    """
    facts = {"sluice": VERSION, "frames": str(FRAMES), "torch": str(torch.__version__)}
    facts["the checkpoint"] = f"with the fingerprint {sampled_fingerprint(folder)[:16]}"
    for group in ENGINE_GROUPS:
        for item in fields(GROUPS[group]):
            if item.name not in OWN:
                facts[flag(item.name)] = str(getattr(getattr(config, group), item.name))
    return facts


def difference(name: str, theirs: Mapping[str, str], own: Mapping[str, str]) -> str | None:
    """Return the first fact that differs between a rank and rank 0, in a sentence; None: they agree.

    Args:
        name: of the rank.
    """
    for fact in (*own, *(theirs.keys() - own.keys())):
        if theirs.get(fact) != own.get(fact):
            return (
                f"{name} has {fact} {theirs.get(fact, 'missing')}, and rank 0 has {own.get(fact, 'none')}: start every"
                " machine with the same version, options and checkpoint"
            )
    return None


class OtherWeights(CheckpointError):
    """An engine loaded other weights than the one before it, whose streams it would go on with."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"the files of {model} have changed since this server loaded them, and streams that began with the former"
            " weights cannot go on with others; put the files back or restart the server. After a change on purpose:"
            " POST /sleep, then /wake_up?new_weights=true"
        )


def sampled_fingerprint(folder: Path) -> str:
    """Return a digest of a checkpoint's config, of the size of its weights and of samples of them, in hex.

    Raises:
        OSError, CheckpointError: a file is missing or cannot be read.
    """
    total = hashlib.sha256()
    config = folder / "config.json"
    if config.exists():  # in a GGUF file it is a part of the weights
        total.update(config.read_bytes())
    for path in sorted(weight_files(folder)):
        size = path.stat().st_size
        total.update(f"\0{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for sample in range(SAMPLES):
                file.seek(sample * size // SAMPLES)
                total.update(file.read(SAMPLE_BYTES))
    return total.hexdigest()
