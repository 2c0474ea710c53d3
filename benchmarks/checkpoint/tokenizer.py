"""A tokenizer as large as a model's vocabulary: byte-level BPE learned here, and a word of its own for each id left.

Random weights pick any id of the vocabulary. Each must have a text, or a server that streams text would stream nothing
for most tokens and no client could see them come. No merge leads to the further words, so encoding never gives them.
"""

from __future__ import annotations

import itertools
import json
import random
import string
from collections.abc import Iterator

from tokenizers import Tokenizer, pre_tokenizers

from training.prose import story
from training.tokenizer import train_tokenizer

STORIES = 1500
SPACE = "Ġ"
"""How byte-level BPE writes a space."""


def make_tokenizer(vocab_size: int, *, seed: int) -> Tokenizer:
    """
    Args:
        vocab_size: ids of the model; the tokenizer has exactly as many.

    Raises:
        ValueError: fewer than what is learned from the texts.
    """
    rng = random.Random(seed)
    learned = train_tokenizer(story(rng) for _ in range(STORIES))
    # GPT-2's own splitting, which every engine knows.
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    content = json.loads(learned.to_str())
    vocabulary: dict[str, int] = content["model"]["vocab"]
    if len(vocabulary) > vocab_size:
        raise ValueError(f"vocab_size must be at least {len(vocabulary)}, which the texts give, got {vocab_size}")
    fresh = (word for word in _words() if word not in vocabulary)
    for token_id in range(len(vocabulary), vocab_size):
        vocabulary[next(fresh)] = token_id
    return Tokenizer.from_str(json.dumps(content))


def _words() -> Iterator[str]:
    """A space and four letters, in alphabetical order: 456,976 of them."""
    for letters in itertools.product(string.ascii_lowercase, repeat=4):
        yield SPACE + "".join(letters)
