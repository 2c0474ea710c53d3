"""How many characters a tokenizer's normalizer makes of one. Short texts are tokenized between the answers of a server,
so a file that makes megabytes of each would stop them all."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from math import prod
from typing import Any

import tokenizers

MOST = 64
"""Characters of one that are accepted. Unicode's own forms make at most 18 (NFKC, of U+FDFA)."""
TRIE_SIZE_BYTES = 4
"""Bytes of a `Precompiled` table that say how long its first part is; its texts come after that part."""


def check_expansion(backend: tokenizers.Tokenizer) -> None:
    """Check that a tokenizer does not multiply its text.

    Raises:
        ValueError: one character becomes more than `MOST`, or more is put before a text.
    """
    if backend.normalizer is None:
        return
    found = expansion(json.loads(backend.normalizer.__getstate__()))
    if found > MOST:
        raise ValueError(f"its normalizer makes {found} characters of one; at most {MOST} are accepted")


def expansion(normalizer: Mapping[str, Any]) -> int:
    """Return the most characters that a normalizer's own texts put in the place of one, or before a text.

    Args:
        normalizer: as `tokenizer.json` has it.
    """
    match normalizer:
        case {"type": "Sequence", "normalizers": [*steps]}:
            return prod(expansion(step) for step in steps)
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return max(1, -(-len(content) // len(pattern)))
        case {"type": "Replace", "content": str(content)}:  # an expression may match between any two characters
            return 1 + len(content)
        case {"type": "Prepend", "prepend": str(text)}:
            return max(1, len(text))
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            return _longest_text(base64.b64decode(table))
    return 1


def _longest_text(table: bytes) -> int:
    start = TRIE_SIZE_BYTES + int.from_bytes(table[:TRIE_SIZE_BYTES], "little")
    return max((len(text.decode(errors="replace")) for text in table[start:].split(b"\0")), default=1)
