"""The merges of a GGUF file's BPE: as they are stored, or from the scores of a SentencePiece vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.text.gguf.cursor import GGUFError
from sluice.text.gguf.metadata import Metadata
from sluice.text.gguf.vocabulary import BYTE, CONTROL, UNKNOWN, GGUFVocabulary
from sluice.text.merges import ranked_merges


def stored_merges(metadata: Metadata) -> list[tuple[str, str]]:
    """Return the merges of a file, the first ones first.

    Raises:
        GGUFError: there are none, or one has no two parts.
    """
    merges = metadata.texts("tokenizer.ggml.merges")
    if merges is None:
        raise GGUFError(f"{metadata.source} has no tokenizer.ggml.merges, by which its tokens are merged")
    found = []
    for merge in merges:
        cut = merge.find(" ", 1)  # the first part may be a space
        if cut < 0 or cut + 1 == len(merge):
            raise GGUFError(
                f"{metadata.source}: tokenizer.ggml.merges has {merge!r}: two parts must have a space between"
            )
        found.append((merge[:cut], merge[cut + 1 :]))
    return found


def merges_of_scores(vocabulary: GGUFVocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the merges of a vocabulary that has scores: the highest score is merged first."""
    known = vocabulary.ids.keys() - set(vocabulary.of_kind(CONTROL, UNKNOWN, BYTE))
    ranked = sorted(range(len(scores)), key=lambda number: -scores[number])  # equal ones by id
    return ranked_merges((vocabulary.texts[number] for number in ranked), known)
