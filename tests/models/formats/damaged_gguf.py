"""Damages a GGUF file in random places, and reads what is left of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from models.formats.loading import load
from sluice.models.checkpoint import CheckpointError
from sluice.models.hub import resolve_checkpoint
from sluice.text.tokenizer import TokenizerError
from sluice.text.tokenizer_files import TokenizerFiles


def damaged(content: bytes, header: int, flips: int, cuts: int, seed: int) -> Iterator[bytes]:
    """Yield copies with one byte changed, most of them in the header, and copies that are cut off."""
    draw = random.Random(seed)
    for index in range(flips):
        copy = bytearray(content)
        copy[draw.randrange(len(content) if index % 8 == 0 else header)] ^= 1 << draw.randrange(8)
        yield bytes(copy)
    for _ in range(cuts):
        yield content[: draw.randrange(len(content))]


def read(path: Path, cache: Path) -> str | None:
    """Load a file's model and tokenizer. Returns why they are refused; None: they are not."""
    try:
        folder = resolve_checkpoint(str(path), cache=cache)
        load(folder, dtype="bfloat16")
        files = TokenizerFiles.read(folder).tokenizer(chat=False)
        files.decode(files.encode("The river rises."))
    except (CheckpointError, TokenizerError) as error:
        return str(error)
    return None
