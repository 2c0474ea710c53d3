"""Small tokenizers of the two kinds that language models use, made in memory."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from sluice.text.detokenizer import byte_alphabet

EOS = "<|end|>"
TEXTS = (
    "the water runs through the gate and the gate lets the water through",
    "ein Müller öffnet die Schleuse, und das Wasser läuft über das Rad",
    "水門の水が流れる。水門を開ける。🙂🙂 🙃",
)


def byte_tokenizer(specials: Sequence[str] = (EOS,)) -> tokenizers.Tokenizer:
    """Make a tokenizer whose id i is byte i, with special tokens after the 256 bytes."""
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def byte_level_bpe() -> tokenizers.Tokenizer:
    """Make a tokenizer like GPT-2's: tokens are bytes, and merges may begin or end inside a character."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|begin|>", EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens(["<plain é>"])
    return tokenizer


def byte_fallback_bpe() -> tokenizers.Tokenizer:
    """Make a tokenizer like Llama 2's: words begin with "▁", unknown characters become byte tokens."""
    words = sorted({piece for text in TEXTS for word in text.split() for piece in ("▁" + word, word)})
    characters = sorted({char for text in TEXTS[:2] for char in text} - {" "})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *characters]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    merges: list[tuple[str, str]] = []
    for word in words:
        if not set(word) <= set(vocab) | {"▁"}:
            continue
        left = word[0]
        for char in word[1:]:
            if left + char not in vocab:
                vocab[left + char] = len(vocab)
                merges.append((left, char))
            left += char
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def metaspace_bpe() -> tokenizers.Tokenizer:
    """Make a tokenizer with the same tokens and the Metaspace pre-tokenizer and decoder."""
    tokenizer = byte_fallback_bpe()
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="first")
    return tokenizer
