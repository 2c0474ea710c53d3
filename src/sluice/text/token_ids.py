"""How many token ids a checkpoint's tokenizer has, read without the tokenizer: to build one takes up to seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sluice.text.gguf.cursor import GGUFError
from sluice.text.gguf.file import GGUFFile
from sluice.text.gguf.metadata import Items
from sluice.text.tokenizer_files import BESIDE_GGUF, GGUF

TOKENS = "tokenizer.ggml.tokens"


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int] | list[Any] = []


class _Added(msgspec.Struct):
    id: int


class _TokenizerFile(msgspec.Struct):
    """What a `tokenizer.json` says of ids."""

    model: _Vocabulary
    added_tokens: list[_Added] = []


class _Settings(msgspec.Struct):
    """What a `tokenizer_config.json` says of ids."""

    added_tokens_decoder: dict[int, Any] = {}


def num_token_ids(folder: Path) -> int | None:
    """Return one more than the largest id of the tokenizer in a checkpoint's folder; a model's vocabulary may be padded
    beyond it.

    None if that is not known: there is no tokenizer, it is neither a `tokenizer.json` nor a GGUF file's, or it cannot
    be read, which is reported where it is used.
    """
    try:
        if (folder / "tokenizer.json").is_file():
            return _in_files(folder)
        file = folder / GGUF
        if file.is_file() and not any((folder / name).is_file() for name in BESIDE_GGUF):
            metadata = GGUFFile(file).metadata
            tokens = metadata.get(TOKENS)
            return len(tokens) if isinstance(tokens, Items) else None
    except (GGUFError, OSError, ValueError):
        return None
    return None


def _in_files(folder: Path) -> int:
    """Return one more than the largest id in a `tokenizer.json` and the tokens that the file beside it adds.

    Raises:
        OSError, ValueError: a file cannot be read.
    """
    found = msgspec.json.decode((folder / "tokenizer.json").read_bytes(), type=_TokenizerFile)
    vocab, settings = found.model.vocab, folder / "tokenizer_config.json"
    last = len(vocab) - 1 if isinstance(vocab, list) else max(vocab.values(), default=-1)
    added = [token.id for token in found.added_tokens]
    if settings.is_file():
        added += msgspec.json.decode(settings.read_bytes(), type=_Settings, strict=False).added_tokens_decoder
    return 1 + max([last, *added])
