"""Needles among a few words: a haystack in which the bounds of a page's keys tell something."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.exact_recall.prompts import FIRST_WORD, Needle
from benchmarks.exact_recall.shape import RecallShape

NUM_FILLERS = 3


def among_fillers(shape: RecallShape, needles: Sequence[Needle]) -> list[Needle]:
    """Return prompts with the same needles, in which all other words are three in turn, none of which is a needle's.

    Args:
        needles: of one call of `needle_prompts`, each with an answer in the prompt.
    """
    key_len, first = shape.previous, needles[0].prompt
    own = [(*needle.prompt[-key_len:], *needle.answer) for needle in needles]
    taken = {token for tokens in own for token in tokens}
    fillers = [token for token in range(FIRST_WORD, shape.vocab_size) if token not in taken][:NUM_FILLERS]
    hay = [first[0], *(fillers[place % NUM_FILLERS] for place in range(1, len(first) - key_len))]
    for tokens in own:
        start = next(at for at in range(len(first)) if first[at : at + len(tokens)] == tokens)
        hay[start : start + len(tokens)] = tokens
    return [Needle((*hay, *needle.prompt[-key_len:]), needle.answer) for needle in needles]
