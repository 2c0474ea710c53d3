"""The vocabulary in the metadata of a GGUF file: its tokens, their types, and which of them have a role."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.text.gguf.cursor import GGUFError
from sluice.text.gguf.metadata import Metadata

LOGGER = logging.getLogger("sluice.text")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens."""
ROLES: Mapping[str, str] = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # so it is spelled in the format
    "pad_token": "padding",
    "mask_token": "mask",
}
"""Name of a role in checkpoints -> its name in keys of GGUF."""
DEFAULT_IDS: Mapping[str, Mapping[str, int]] = {
    "llama": {"bos_token": 1, "eos_token": 2, "unk_token": 0},
    "bert": {"bos_token": 101, "unk_token": 100, "sep_token": 102, "pad_token": 0, "mask_token": 103},
}
"""Ids by `tokenizer.ggml.model`, for keys that a file lacks."""
END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
END_TEXTS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<eos>"),
        *("<end_of_utterance>", "<turn|>", "<|tool_response>", "[e~[", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>"),
        *("<REPO>", "<reponame>", "<|file_sep|>"),
    )
)
"""Control tokens with these texts end an answer, too: many files name only one of those that their models write."""
CHANNELS = ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"})
"""Pairs of tokens. In a vocabulary with either pair `<|end|>` ends one message of several, and not the answer."""
SHOWN = frozenset(("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"))
"""Control tokens that are a part of what the model says."""


@dataclass(frozen=True, slots=True)
class GGUFVocabulary:
    """The tokens of a file; the id of a token is its place."""

    texts: Sequence[str]
    kinds: Sequence[int]
    ids: Mapping[str, int]
    roles: Mapping[str, int]
    """Role, such as `eos_token` -> id."""

    @classmethod
    def read(cls, metadata: Metadata, model: str) -> GGUFVocabulary:
        """Read the vocabulary of a file.

        Raises:
            GGUFError: it is missing or not valid.
        """
        texts = metadata.texts("tokenizer.ggml.tokens")
        if not texts:
            raise GGUFError(f"{metadata.source} has no tokenizer (tokenizer.ggml.tokens): give one with --tokenizer")
        texts = [text or f"[EMPTY_{index}]" for index, text in enumerate(texts)]
        ids = {text: index for index, text in enumerate(texts)}
        if len(ids) < len(texts):
            twice = next(index for index, text in enumerate(texts) if ids[text] != index)
            raise GGUFError(
                f"{metadata.source}: tokens {twice} and {ids[texts[twice]]} of tokenizer.ggml.tokens are both"
                f" {texts[twice]!r}; each text must have one id"
            )
        types = metadata.numbers("tokenizer.ggml.token_type", len(texts))
        kinds = [NORMAL] * len(texts) if types is None else [int(kind) for kind in types]
        return cls(texts, kinds, ids, _roles(metadata, model, len(texts)))

    def of_kind(self, *kinds: int) -> list[str]:
        """Return the texts of the tokens of some types."""
        return [text for text, kind in zip(self.texts, self.kinds, strict=True) if kind in kinds]

    @property
    def in_channels(self) -> bool:
        """Whether an answer consists of messages, each with an end of its own."""
        return any(all(text in self.ids for text in pair) for pair in CHANNELS)

    @property
    def shown(self) -> frozenset[str]:
        """Control tokens that an answer shows."""
        return SHOWN | {"<|end|>"} if self.in_channels else SHOWN

    def ends(self, metadata: Metadata) -> frozenset[int]:
        """Return the ids that end an answer."""
        found = {known_id(metadata, f"tokenizer.ggml.{name}_token_id", len(self.texts)) for name in END_KEYS}
        found.add(self.roles.get("eos_token"))
        texts = END_TEXTS - {"<|end|>"} if self.in_channels else END_TEXTS
        found |= {self.ids[text] for text in texts if text in self.ids and self.kinds[self.ids[text]] == CONTROL}
        return frozenset(number for number in found if number is not None)


def known_id(metadata: Metadata, key: str, count: int) -> int | None:
    """Return the id in a field, None if it is not there. Other programs ignore one that is no token's, too."""
    number = metadata.integer(key)
    if number is not None and number >= count:
        LOGGER.warning("%s: %s = %d is ignored: there are %d tokens", metadata.source, key, number, count)
        return None
    return number


def _roles(metadata: Metadata, model: str, count: int) -> dict[str, int]:
    defaults = DEFAULT_IDS.get(model, {})
    roles = {}
    for role, name in ROLES.items():
        number = known_id(metadata, f"tokenizer.ggml.{name}_token_id", count)
        if number is None:
            number = defaults.get(role)
        if number is not None and number < count:
            roles[role] = number
    if "eos_token" not in roles:
        LOGGER.warning("%s has no tokenizer.ggml.eos_token_id", metadata.source)
    return roles
