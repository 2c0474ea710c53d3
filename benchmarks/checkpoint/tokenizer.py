"""Makes a tokenizer as large as a model's vocabulary: byte-level BPE learned here, and a word for each further id.

Random weights pick any id of the vocabulary. Each must have a text, or a server that streams text would send nothing
for most tokens and no client could time them. No merge leads to the further words, so encoding never returns them.
"""

from __future__ import annotations

import itertools
import json
import random
import string
from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.checkpoint.chat import SPECIALS
from benchmarks.checkpoint.stories import story

STORIES = 1500
MOST_LEARNED = 3072
SPACE = "Ġ"
"""Byte-level BPE's character for a space."""


def make_tokenizer(vocab_size: int, *, seed: int) -> Tokenizer:
    """Make the tokenizer.

    Args:
        vocab_size: ids of the model; the tokenizer has exactly as many.

    Raises:
        ValueError: `vocab_size` is less than the vocabulary learned from the texts.
    """
    rng = random.Random(seed)
    content = json.loads(_learned(rng).to_str())
    vocabulary: dict[str, int] = content["model"]["vocab"]
    if len(vocabulary) > vocab_size:
        raise ValueError(f"vocab_size must be at least {len(vocabulary)}, which the texts give, got {vocab_size}")
    fresh = (word for word in _words() if word not in vocabulary)
    for token_id in range(len(vocabulary), vocab_size):
        vocabulary[next(fresh)] = token_id
    return Tokenizer.from_str(json.dumps(content))


def _learned(rng: random.Random) -> Tokenizer:
    """Learn merges from stories. Texts are split as GPT-2 does, which every engine knows."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    split = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MOST_LEARNED,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((story(rng) for _ in range(STORIES)), trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return tokenizer


def _words() -> Iterator[str]:
    """Yield words of a space and four letters, in alphabetical order: 456,976 of them."""
    for letters in itertools.product(string.ascii_lowercase, repeat=4):
        yield SPACE + "".join(letters)
