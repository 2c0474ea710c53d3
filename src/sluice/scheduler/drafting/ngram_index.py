"""NgramIndex: where the end of a text occurred before.

The places of an n-gram are chained from the latest to the earliest, as compressors of the LZ77 family chain them, and
the one that has most in common with the end of the text is found. (Prompt lookup decoding, Saxena 2023, searches the
text in every step, SuffixDecoding, arXiv 2411.04975, keeps a tree of it. A chain costs a few operations for each token,
once.)
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

CHAIN = 32
"""Places that are compared with the end of a text, latest first."""
CATCH_UP = 1024
"""Tokens indexed in one step: some tenths of a millisecond. A long text takes several."""
BITS = 32


class Match(NamedTuple):
    """A place where the end of a text occurred."""

    end: int
    """Position of the token that followed."""
    length: int
    """Tokens before it that are equal."""


NO_MATCH = Match(0, 0)


class NgramIndex:
    """The places of all n-grams of a text that grows at its end. A place is the position behind an n-gram.

    Args:
        text: that is indexed, and read for as long as the index is used.
        n: tokens of an n-gram, at least 1: no match is shorter.
        longest: tokens from which on matches are as good as each other, at least `n`.
    """

    __slots__ = ("_heads", "_key", "_longest", "_mask", "_n", "_previous", "text")

    def __init__(self, text: array[int], n: int, longest: int) -> None:
        self.text = text
        self._n = n
        self._longest = longest
        self._mask = (1 << BITS * n) - 1
        self._heads: dict[int, int] = {}
        """N-gram, as one number -> its latest place."""
        self._previous = array("i", [-1])
        """Place of the same n-gram before each indexed place; -1: there is none."""
        self._key = 0
        """The last n-gram that is indexed."""

    @property
    def num_left(self) -> int:
        """Tokens that are not indexed."""
        return len(self.text) - len(self._previous) + 1

    def catch_up(self, at_most: int = CATCH_UP) -> int:
        """Index the next tokens of the text, at most so many. Return how many."""
        heads, previous, text, n = self._heads, self._previous, self.text, self._n
        place, key, mask = len(previous) - 1, self._key, self._mask
        end = min(len(text), place + at_most)
        count = end - place
        for index in range(place, end):
            key = (key << BITS | text[index]) & mask
            place = index + 1
            if place < n:
                previous.append(-1)
            else:
                previous.append(heads.get(key, -1))
                heads[key] = place
        self._key = key
        return count

    def find(self, tokens: array[int]) -> Match:
        """Return the place that has most in common with the end of some tokens, the latest of several. `NO_MATCH` if
        none has `n` of them. If they are the text itself, its end is no place.
        """
        n, size = self._n, len(tokens)
        if size < n:
            return NO_MATCH
        key = 0
        for index in range(size - n, size):
            key = key << BITS | tokens[index]
        text, previous = self.text, self._previous
        place = self._heads.get(key, -1)
        if place == len(text):
            place = previous[place]
        best, end = 0, -1
        for _ in range(CHAIN):
            if place < 0 or best == self._longest:
                break
            # A better one has what the best one has in common, and so one token more.
            if best < min(place, size) and text[place - 1 - best] == tokens[size - 1 - best]:
                length = self._common(place, tokens)
                if length > best:
                    best, end = length, place
            place = previous[place]
        return Match(end, best) if best else NO_MATCH

    def _common(self, place: int, tokens: array[int]) -> int:
        """Return how many tokens before a place equal the last ones of some."""
        text, size = self.text, len(tokens)
        most = min(size, self._longest, place)
        length = self._n
        while length < most and text[place - 1 - length] == tokens[size - 1 - length]:
            length += 1
        return length

    def after(self, place: int, at_most: int) -> array[int]:
        """Return the tokens that follow a place."""
        return self.text[place : place + at_most]
