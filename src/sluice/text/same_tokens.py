"""Whether two checkpoints mean the same tokens by the same ids."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import tokenizers


class Difference(NamedTuple):
    """An id of two tokenizers that stands for different tokens."""

    token_id: int
    one: str
    other: str


def first_difference(one: Path, other: Path) -> Difference | None:
    """Return the lowest id that two checkpoints use for different tokens, apart from tokens that were added; None if
    there is none, or one of them has no `tokenizer.json` that can be read.

    Args:
        one, other: their folders.
    """
    files = [folder / "tokenizer.json" for folder in (one, other)]
    if not all(file.is_file() for file in files):
        return None
    try:
        backends = [tokenizers.Tokenizer.from_file(str(file)) for file in files]
    except Exception:  # noqa: BLE001 - the library raises nothing more specific; the model's own is read elsewhere
        return None
    mine, theirs = ({token_id: token for token, token_id in each.get_vocab(False).items()} for each in backends)
    different = min((token_id for token_id in mine.keys() & theirs if mine[token_id] != theirs[token_id]), default=None)
    return None if different is None else Difference(different, mine[different], theirs[different])
