"""The tokenizer of the slot model: a word has the same tokens wherever it stands, so that it can be copied.

A space is a token of its own, unless a frequent small word follows it, and each digit is one. With a space at the head
of most words, as in GPT-2's byte-level BPE, "Oslo" at the beginning of an answer is not what the text says.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.slots import documents, talk
from training.slots.facts import FactSource
from training.tokenizer import SPECIALS, VOCAB_SIZE
from training.words import Namer, split

JOINED = split("the of is was and to for what does do who that it are as at has which")
"""Small words that are one token with the space before them. Values seldom begin with one."""
PIECES = rf" (?:{'|'.join(JOINED)})(?![\p{{L}}\p{{N}}])|\p{{L}}+|\p{{N}}|\s|[^\s\p{{L}}\p{{N}}]"
DOCUMENTS = 3000


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """256 bytes, the specials, and merges within the pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def texts(seed: int) -> Iterator[str]:
    """What the merges are learned from: conversations and small talk, without the strings that are to be copied."""
    names = Namer(random.Random(f"tokenizer {seed}"), held_out=False)
    for _ in range(DOCUMENTS):
        for turn in documents.conversation(FactSource(names), 300):
            yield turn.text
        yield from talk.exchange(names)
