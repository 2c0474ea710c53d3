"""The merges of a vocabulary that ranks its tokens, as those of SentencePiece and tiktoken do."""

from __future__ import annotations

from collections.abc import Iterable, Set


def ranked_merges(ranked: Iterable[str], known: Set[str]) -> list[tuple[str, str]]:
    """Return the merges of a vocabulary: each pair of its tokens that makes another one of them.

    Args:
        ranked: the tokens, first those that are made first.
        known: those that text is made of. What stands for no text of its own is not made of text: typed, `</s>` is no
            token.
    """
    return [
        (text[:cut], text[cut:])
        for text in ranked
        if text in known
        for cut in range(1, len(text))
        if text[:cut] in known and text[cut:] in known
    ]
