"""What tells the weights of one checkpoint from those of another: every byte of them."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

THREADS = 8
"""Files that are read at once: a checkpoint of many is limited by the disk then, not by a processor."""


def fingerprint(folder: Path) -> str:
    """A digest of a checkpoint's config and weights, in hex. It takes as long as reading them.

    Raises:
        OSError: a file cannot be read.
    """
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    with ThreadPoolExecutor(THREADS) as executor:
        digests = list(executor.map(_digest, files))
    total = hashlib.sha256()
    for file, digest in zip(files, digests, strict=True):
        total.update(f"{file.name}\0".encode() + digest)
    return total.hexdigest()


def _digest(file: Path) -> bytes:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()
