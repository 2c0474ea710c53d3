"""Writes a tokenizer whose ids are words, so that every token has a text of its own in any context."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers


def write_word_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write the files of a tokenizer in which id 7 is the word "w7", with a space between two words."""
    tokenizer = Tokenizer(
        models.WordLevel({f"w{token_id}": token_id for token_id in range(vocab_size)}, unk_token="w0")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings) + "\n", encoding="utf-8")
