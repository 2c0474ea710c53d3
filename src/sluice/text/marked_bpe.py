"""BPE as SentencePiece has it: spaces are marks, and what is in no token is spelled by tokens of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

MARK = "\u2581"
"""How SentencePiece spells a space."""
Prefix = Literal["always", "first", "never"]
"""Whether a mark is put before each part of a text between special tokens, before a text's beginning, or nowhere."""


def marked_bpe(
    ids: Mapping[str, int],
    merges: list[tuple[str, str]],
    *,
    unknown: str | None,
    prefix: Prefix,
    splits: Sequence[pre_tokenizers.PreTokenizer] = (),
    byte_fallback: bool = True,
) -> tokenizers.Tokenizer:
    """Return a tokenizer without added tokens.

    Args:
        unknown: the token for what cannot be spelled.
        splits: where text is cut before it is merged.
        byte_fallback: whether the vocabulary has a token for each byte.
    """
    backend = tokenizers.Tokenizer(
        BPE(dict(ids), merges, byte_fallback=byte_fallback, fuse_unk=True, unk_token=unknown)
    )
    backend.normalizer = normalizers.Replace(" ", MARK)
    steps = [*_prefixes(prefix), *splits]
    if steps:
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    decoding = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(decoding if prefix == "never" else [*decoding, decoders.Strip(" ", 1, 0)])
    return backend


def _prefixes(prefix: Prefix) -> list[pre_tokenizers.PreTokenizer]:
    """Return what puts a mark before text.

    `Metaspace` puts none before text that begins with one. SentencePiece does, so the first step puts a space, which
    no text has any more, and the second makes it a mark.
    """
    if prefix == "never":
        return []
    return [
        pre_tokenizers.Metaspace(" ", prepend_scheme=prefix, split=False),
        pre_tokenizers.Metaspace(MARK, prepend_scheme="never", split=False),
    ]
