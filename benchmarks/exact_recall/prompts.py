"""Makes prompts with needles: a key and its answer somewhere, and the key again at the end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.exact_recall.shape import BOS, EOS, RecallShape

Ints = npt.NDArray[np.int64]

FIRST_WORD = max(BOS, EOS) + 1


@dataclass(frozen=True, slots=True)
class Needle:
    """A prompt, and the answer that greedy decoding must return."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    """`answer_len` tokens; only EOS if the prompt holds no needle."""


def needle_prompt(
    shape: RecallShape, length: int, depth: float | None, *, answer_len: int = 8, seed: int = 0
) -> Needle:
    """Make one prompt of `needle_prompts`."""
    (needle,) = needle_prompts(shape, length, [depth], answer_len=answer_len, seed=seed)
    return needle


def needle_prompts(
    shape: RecallShape, length: int, depths: Sequence[float | None], *, answer_len: int = 8, seed: int = 0
) -> list[Needle]:
    """Make a prompt for each needle: BOS, random words that hold all needles, and the needle's key at the end.

    The prompts differ only in these last `shape.previous` tokens. Each key occurs once before: accidental repeats of a
    key, and of the keys that arise while the answer is generated, are overwritten.

    Args:
        length: tokens of each prompt.
        depths: where needles begin, from 0 (behind BOS) to 1 (before the question). None: the key is only at the end.
        answer_len: tokens of each answer.
        seed: seed of the words.

    Raises:
        ValueError: a length or depth is out of range, needles would overlap, or the vocabulary has too few words.
    """
    key_len = shape.previous
    needle_len = key_len + answer_len
    words = shape.vocab_size - FIRST_WORD
    shortest = 1 + needle_len + key_len
    most = (words - 1) // max(1, len(depths)) - key_len
    if not shortest <= length <= shape.max_positions:
        raise ValueError(f"length must be from {shortest} to {shape.max_positions} tokens, got {length}")
    if not depths or not all(depth is None or 0 <= depth <= 1 for depth in depths):
        raise ValueError(f"every depth must be from 0 to 1, or None, got {list(depths)}")
    if not 1 <= answer_len <= most:
        raise ValueError(f"answer_len must be from 1 to {most} for {len(depths)} needles, got {answer_len}")
    starts = [None if depth is None else 1 + round(depth * (length - shortest)) for depth in depths]
    known = sorted(start for start in starts if start is not None)
    if any(after - before < needle_len for before, after in itertools.pairwise(known)):
        raise ValueError(f"needles of {needle_len} tokens overlap at depths {list(depths)} of {length} tokens")
    rng = np.random.default_rng(seed)
    tokens = rng.integers(FIRST_WORD, shape.vocab_size, length)
    needles = FIRST_WORD + rng.permutation(words)[: len(depths) * needle_len].reshape(len(depths), needle_len)
    hay = tokens[:-key_len]
    written = np.zeros(len(hay), dtype=bool)
    hay[0], written[0] = BOS, True
    for needle, start in zip(needles, starts, strict=True):
        if start is not None:
            hay[start : start + needle_len], written[start : start + needle_len] = needle, True
    looked_up = np.concatenate([_runs(needle[:-1], key_len, shape.vocab_size) for needle in needles])
    _erase_repeats(hay, written, looked_up, shape, rng)
    common = tuple(hay.tolist())
    prompts = []
    for own, start in zip(needles.tolist(), starts, strict=True):
        answer = [EOS] if start is None else own[key_len:]
        prompts.append(Needle((*common, *own[:key_len]), tuple(answer)))
    return prompts


def _erase_repeats(
    tokens: Ints, written: npt.NDArray[np.bool_], looked_up: Ints, shape: RecallShape, rng: np.random.Generator
) -> None:
    """Overwrite one word of every run that is `looked_up`, but no word that was `written`."""
    while True:
        found = np.isin(_runs(tokens, shape.previous, shape.vocab_size), looked_up)
        found &= ~_all_of(written, shape.previous)
        starts = np.flatnonzero(found)
        if not len(starts):
            return
        inside = starts[:, None] + np.arange(shape.previous)
        first_free = (~written[inside]).argmax(axis=1)
        tokens[starts + first_free] = rng.integers(FIRST_WORD, shape.vocab_size, len(starts))


def _runs(tokens: Ints, size: int, vocab_size: int) -> Ints:
    """Return a number for each run of `size` tokens, [len(tokens) - size + 1]. Only equal runs have equal numbers."""
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
