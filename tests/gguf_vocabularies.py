"""Writes GGUF files that hold a vocabulary and no weights, as llama.cpp's own test files do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import sentencepiece
import tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def write_vocabulary(
    path: Path,
    tokens: Sequence[str],
    *,
    model: str | None = "gpt2",
    pre: str | None = "gpt-2",
    kinds: Sequence[int] | None = None,
    merges: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    keys: Mapping[str, Any] = {},
) -> Path:
    """Write a file.

    Args:
        kinds: the types of the tokens; None: all are normal.
        keys: further ones.
    """
    writer = gguf.GGUFWriter(path, "llama")
    if model is not None:
        writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(kinds or [NORMAL] * len(tokens)))
    if merges is not None:
        writer.add_token_merges(list(merges))
    if scores is not None:
        writer.add_token_scores(list(scores))
    for key, value in keys.items():
        kind = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
        kind[type(value)](key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def write_bpe(
    path: Path,
    backend: tokenizers.Tokenizer,
    pre: str | None,
    *,
    model: str = "gpt2",
    kinds: Mapping[str, int] = {},
    keys: Mapping[str, Any] = {},
) -> Path:
    """Write the BPE of a tokenizer, whose special tokens become control tokens and other added ones user-defined."""
    content = json.loads(backend.to_str())
    vocabulary = content["model"]["vocab"] | {token["content"]: token["id"] for token in content["added_tokens"]}
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    added = {token["content"]: CONTROL if token["special"] else USER_DEFINED for token in content["added_tokens"]}
    given = added | dict(kinds)
    merges = [" ".join(merge) for merge in content["model"]["merges"]]
    return write_vocabulary(
        path,
        tokens,
        model=model,
        pre=pre,
        kinds=[given.get(token, NORMAL) for token in tokens],
        merges=merges,
        keys=keys,
    )


def write_sentencepiece(path: Path, model: Path, keys: Mapping[str, Any] = {}) -> Path:
    """Write the vocabulary of a SentencePiece model."""
    original = sentencepiece.SentencePieceProcessor(model_file=str(model))
    ids = range(original.vocab_size())
    kinds = [
        UNKNOWN
        if original.is_unknown(i)
        else CONTROL
        if original.is_control(i)
        else BYTE
        if original.is_byte(i)
        else NORMAL
        for i in ids
    ]
    return write_vocabulary(
        path,
        [original.id_to_piece(i) for i in ids],
        model="llama",
        pre="default",
        kinds=kinds,
        scores=[original.get_score(i) for i in ids],
        keys=keys,
    )
