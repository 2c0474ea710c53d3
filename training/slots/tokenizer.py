"""The tokenizer of the slot model: a name or a code has the same tokens wherever it stands, so that it can be copied.

A space is a token of its own, unless a frequent small-letter word follows it that is never a value: then both are one.
With a space at the head of most words, as in GPT-2's byte-level BPE, "Oslo" at the beginning of an answer is not what
the text says; with none, a third of all tokens are spaces. And where some values begin with a space and others do not,
a model has to know the value one token before it can look for it.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.slots import documents, talk, values
from training.slots.facts import FactSource
from training.tokenizer import SPECIALS, VOCAB_SIZE
from training.words import Namer

WORDS_JOINED = 1024
"""The most words that are also one token with the space before them."""
OFTEN = 5
"""Occurrences from which on a word is frequent."""
APART = r"\p{L}+|\p{N}|\s|[^\s\p{L}\p{N}]"
TOGETHER = rf" ?{APART}"
SPACE = "Ġ"
"""As byte-level BPE writes it."""
VALUES_OF_A_KIND = 3000
DOCUMENTS = 3000


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """256 bytes, the specials, and merges: first within words, then of a space with a whole frequent word."""
    told = list(texts)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split_at(APART)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - WORDS_JOINED,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(told, trainer)
    return joined(tokenizer, frequent_words(told, tokenizer.get_vocab()))


def split_at(pieces: str) -> pre_tokenizers.PreTokenizer:
    """No merge crosses the boundary of two pieces."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def frequent_words(texts: Iterable[str], vocab: dict[str, int]) -> list[str]:
    """Words of small letters that are one token, as often as they follow a space."""
    counts = Counter(word for text in texts for word in re.findall(r"(?<= )[a-z]+(?![^\W_])", text))
    begins = first_words_of_values()
    kept = [word for word, count in counts.most_common() if count >= OFTEN and word in vocab and word not in begins]
    return kept[:WORDS_JOINED]


def first_words_of_values() -> set[str]:
    """Words that a value, or what stands in its place, begins with more than by chance."""
    names = Namer(random.Random("values"), held_out=False)
    drawn = (draw(names) for draw in values.KINDS.values() for _ in range(VALUES_OF_A_KIND))
    counts = Counter(re.split(r"\W", value)[0] for value in drawn)
    return {documents.UNKNOWN.split()[0], *(word for word, count in counts.items() if count >= OFTEN)} - {"the"}


def joined(tokenizer: Tokenizer, words: Iterable[str]) -> Tokenizer:
    """The tokenizer with a token more for each of the words, with a space before it."""
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    for word in words:
        model["vocab"][SPACE + word] = len(model["vocab"])
        model["merges"].append([SPACE, word])
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": TOGETHER}
    return Tokenizer.from_str(json.dumps(content))


def texts(seed: int) -> Iterator[str]:
    """What the merges are learned from: conversations and small talk, without the strings that are to be copied."""
    names = Namer(random.Random(f"tokenizer {seed}"), held_out=False)
    for _ in range(DOCUMENTS):
        for turn in documents.conversation(FactSource(names), 300):
            yield turn.text
        yield from talk.exchange(names)
