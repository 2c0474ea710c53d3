"""Builds the tokenizer of Mistral's `tekken.json`, with the `tokenizers` library alone.

It is byte-level BPE as tiktoken has it: of two neighbours those are merged whose token has the lowest rank.
"""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from sluice.text.conversion import ConversionError, Converted
from sluice.text.detokenizer import byte_alphabet
from sluice.text.merges import ranked_merges

NAME = "tekken.json"
EARLY_SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""Special tokens by id, of files that do not name theirs."""
ROLES = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def tekken_tokenizer(path: Path) -> Converted:
    """Build the tokenizer of a file.

    Raises:
        ConversionError: the file is damaged; the message gives the reason.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return _built(content)
    except ConversionError:
        raise
    except Exception as error:  # of its fields, and the library's, which raises bare Exception
        raise ConversionError(f"its {path.name} is damaged: {type(error).__name__}: {error}") from error


def _built(content: dict[str, Any]) -> Converted:
    config = content["config"]
    num_special, size = config["default_num_special_tokens"], config["default_vocab_size"]
    special = _special(content, num_special)
    ranks = {b64decode(entry["token_bytes"]): entry["rank"] for entry in content["vocab"]}
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    by_rank = sorted((rank, "".join(letters[byte] for byte in token)) for token, rank in ranks.items())
    words = [text for _, text in by_rank[: size - num_special]]
    if [rank for rank, _ in by_rank[: len(words)]] != list(range(size - num_special)):
        raise ConversionError(f"its {NAME} has no token for each rank below {size - num_special}")
    ids = {text: num_special + rank for rank, text in enumerate(words)}
    if both := ids.keys() & set(special):
        raise ConversionError(f"its {NAME} has {min(both)!r} both as a special token and as text")
    ids |= {text: number for number, text in enumerate(special)}
    backend = tokenizers.Tokenizer(BPE(ids, ranked_merges(words, set(words)), ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(config["pattern"]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    roles = {role: text for role, text in ROLES.items() if text in special}
    if "bos_token" in roles:
        bos = roles["bos_token"]
        backend.post_processor = TemplateProcessing(single=[bos, "$A"], special_tokens=[(bos, ids[bos])])
    return Converted(backend, roles)


def _special(content: dict[str, Any], count: int) -> list[str]:
    """Return the special tokens by id; ids that are not named get names as Mistral's library gives them."""
    named = content.get("special_tokens")
    texts = list(EARLY_SPECIAL) if named is None else [entry["token_str"] for entry in sorted(named, key=_rank)]
    if named is not None and [entry["rank"] for entry in sorted(named, key=_rank)] != list(range(len(texts))):
        raise ConversionError(f"its {NAME} has special_tokens whose ranks are not 0, 1, 2 and so on")
    return [*texts, *(f"<SPECIAL_{number}>" for number in range(len(texts), count))][:count]


def _rank(entry: dict[str, Any]) -> int:
    return int(entry["rank"])
