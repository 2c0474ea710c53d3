"""The tokenizer: where a value begins can be seen from its first token, and the rest of it is the same tokens wherever
it stands.

The first letter of a word is a token of its own, or one with the space before it. So a model that has found a value
knows which of its tokens is the first, and the answer may begin with it. With tokens of several letters and the space
apart, a model that had found the place began with the second token as often as not. Frequent words that are never the
first of a value are whole tokens, with and without a space before them.
"""

from __future__ import annotations

import json
import random
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training import documents, talk, values
from training.facts import FactSource
from training.specials import SPECIALS
from training.words import Namer

LEARNED_WITH_WORDS = 3072
"""Tokens that are learned are as many, less those of the whole words and of the bytes."""
WORDS_WHOLE = 1024
"""The most words that are one token, and another one with the space before them."""
OFTEN = 5
"""Occurrences from which on a word is frequent."""
IN_WORD = r"[\p{L}\p{N}]"
SPACE = "Ġ"
"""As byte-level BPE writes it."""
VALUES_OF_A_KIND = 3000
DOCUMENTS = 3000


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Make a tokenizer: 256 bytes, the specials, merges within words, then those of a space with what follows it."""
    told = list(texts)
    words = frequent_words(told)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = learned(told, split_at(pieces(words)), LEARNED_WITH_WORDS - len(words) - len(alphabet))
    vocab = tokenizer.get_vocab()
    return joined(tokenizer, [word for word in words if word in vocab], string.ascii_letters + string.digits)


def learned(texts: Iterable[str], pre_tokenizer: pre_tokenizers.PreTokenizer, vocab_size: int) -> Tokenizer:
    """Return byte-level BPE with the specials, whose merges are learned from texts that are split in this way."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def split_at(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Split texts so that no merge crosses the boundary of two pieces."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def pieces(words: Iterable[str], before: str = "") -> str:
    """Return the pattern of pieces: one of these words, the first letter of another, its rest, a digit, or a mark.

    Args:
        before: what belongs to each of these but a word's rest, if it is there.
    """
    by_letter: dict[str, list[str]] = {}
    for word in words:
        by_letter.setdefault(word[0], []).append(word[1:])
    whole = "|".join(f"{letter}(?:{'|'.join(rests)})" for letter, rests in by_letter.items())
    begins = (
        rf"{before}(?<!{IN_WORD})(?:(?:{whole})(?!{IN_WORD})|\p{{L}})" if whole else rf"{before}(?<!{IN_WORD})\p{{L}}"
    )
    return rf"{begins}|\p{{L}}+|{before}\p{{N}}|{before}[^\s\p{{L}}\p{{N}}]|\s"


def frequent_words(texts: Iterable[str]) -> list[str]:
    """Return words that are never the first of a value, the most frequent first."""
    counts = Counter(word for text in texts for word in re.findall(r"(?<![^\W_])[A-Za-z]?[a-z]+(?![^\W_])", text))
    begins = first_words_of_values()
    kept = [word for word, count in counts.most_common() if count >= OFTEN and len(word) > 1 and word not in begins]
    return kept[:WORDS_WHOLE]


def first_words_of_values() -> set[str]:
    """Return words that a value begins with more than by chance."""
    names = Namer(random.Random("values"), held_out=False)
    drawn = (draw(names) for draw in values.KINDS.values() for _ in range(VALUES_OF_A_KIND))
    counts = Counter(re.split(r"\W", value)[0] for value in drawn)
    return {word for word, count in counts.items() if count >= OFTEN} - {"the"}


def joined(tokenizer: Tokenizer, words: Sequence[str], letters: str) -> Tokenizer:
    """Return the tokenizer with a token more for each of the words and letters, with a space before it."""
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    for each in (*words, *letters):
        model["vocab"][SPACE + each] = len(model["vocab"])
        model["merges"].append([SPACE, each])
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": pieces(words, before=" ?")}
    return Tokenizer.from_str(json.dumps(content))


def texts(seed: int) -> Iterator[str]:
    """Return what the merges are learned from: conversations and small talk, without the strings to copy."""
    names = Namer(random.Random(f"tokenizer {seed}"), held_out=False)
    for _ in range(DOCUMENTS):
        for turn in documents.conversation(FactSource(names), 300):
            yield turn.text
        yield from talk.exchange(names)
