"""Prompts with one needle in them: key and answer somewhere, and the key again at the end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.exact_recall.shape import BOS, EOS, RecallShape

Ints = npt.NDArray[np.int64]

FIRST_WORD = max(BOS, EOS) + 1


@dataclass(frozen=True, slots=True)
class Needle:
    """A prompt and what greedy decoding must give."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    """As many tokens as were wanted; EOS alone where there is nothing to find."""


def needle_prompt(
    shape: RecallShape, length: int, depth: float | None, *, answer_len: int = 8, seed: int = 0
) -> Needle:
    """BOS, random words with a needle among them, and its key as the last `shape.previous` tokens.

    What decides the answer is there only once: accidental repeats of the key, and of what it becomes as the answer
    is generated, are overwritten.

    Args:
        length: tokens of the prompt.
        depth: where the needle begins, from 0 (behind BOS) to 1 (before the question); None: the key is nowhere else.
        answer_len: tokens of the answer.
        seed: of the words.

    Raises:
        ValueError: a length or depth out of range, or more different words than the vocabulary has.
    """
    key_len = shape.previous
    words = shape.vocab_size - FIRST_WORD
    shortest = 1 + 2 * key_len + answer_len
    if not shortest <= length <= shape.max_positions:
        raise ValueError(f"length must be from {shortest} to {shape.max_positions} tokens, got {length}")
    if depth is not None and not 0 <= depth <= 1:
        raise ValueError(f"depth must be from 0 to 1, or None, got {depth}")
    if answer_len < 1 or key_len + answer_len >= words:
        raise ValueError(f"answer_len must be from 1 to {words - key_len - 1}, got {answer_len}")
    rng = np.random.default_rng(seed)
    tokens = rng.integers(FIRST_WORD, shape.vocab_size, length)
    tokens[0] = BOS
    needle = FIRST_WORD + rng.permutation(words)[: key_len + answer_len]
    written = np.zeros(length, dtype=bool)
    written[0] = True
    tokens[-key_len:], written[-key_len:] = needle[:key_len], True
    if depth is not None:
        start = 1 + round(depth * (length - shortest))
        end = start + len(needle)
        tokens[start:end], written[start:end] = needle, True
    _erase_repeats(tokens, written, needle, key_len, shape.vocab_size, rng)
    answer = (EOS,) if depth is None else tuple(needle[key_len:].tolist())
    return Needle(tuple(tokens.tolist()), answer)


def _erase_repeats(
    tokens: Ints, written: npt.NDArray[np.bool_], needle: Ints, key_len: int, vocab_size: int, rng: np.random.Generator
) -> None:
    """Overwrite one word of every run of `key_len` that is one of the needle's, but not of what was `written`."""
    looked_up = _runs(needle[:-1], key_len, vocab_size)
    while True:
        found = np.isin(_runs(tokens, key_len, vocab_size), looked_up)
        found &= ~_all_of(written, key_len)
        starts = np.flatnonzero(found)
        if not len(starts):
            return
        inside = starts[:, None] + np.arange(key_len)
        first_free = (~written[inside]).argmax(axis=1)
        tokens[starts + first_free] = rng.integers(FIRST_WORD, vocab_size, len(starts))


def _runs(tokens: Ints, size: int, vocab_size: int) -> Ints:
    """A number for each run of so many tokens, [len(tokens) - size + 1]; equal for equal runs alone."""
    count = len(tokens) - size + 1
    runs = np.zeros(count, dtype=np.int64)
    for offset in range(size):
        runs = runs * vocab_size + tokens[offset : offset + count]
    return runs


def _all_of(flags: npt.NDArray[np.bool_], size: int) -> npt.NDArray[np.bool_]:
    together: npt.NDArray[np.bool_] = np.logical_and.reduce(
        np.lib.stride_tricks.sliding_window_view(flags, size), axis=1
    )
    return together
