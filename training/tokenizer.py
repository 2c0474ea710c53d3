"""The tokenizer: byte-level BPE, so that it encodes any text, with merges learned from the training text."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 3072
END, TURN_START, TURN_END = "<|end|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (END, TURN_START, TURN_END)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """256 bytes, the specials, and merges; each digit is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
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
