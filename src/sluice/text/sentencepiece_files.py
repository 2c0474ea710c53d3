"""Builds the tokenizer of a SentencePiece model (`tokenizer.model`) of BPE, with the `tokenizers` library alone.

The file is a protocol buffer, a `ModelProto` of sentencepiece_model.proto.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing

from sluice.text.conversion import ConversionError, Converted
from sluice.text.marked_bpe import Prefix, marked_bpe
from sluice.text.merges import ranked_merges

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of pieces."""
BPE = 2
"""`trainer_spec.model_type`."""
ROLES: Mapping[str, tuple[int, int]] = {
    "unk_token": (40, 0),
    "bos_token": (41, 1),
    "eos_token": (42, 2),
    "pad_token": (43, -1),
}
"""Role -> its field in `trainer_spec`, and the id without that field; -1: none."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Kinds of values in a protocol buffer."""


class _Damaged(ValueError):
    """The bytes are no message of a protocol buffer."""


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """What a file says."""

    pieces: tuple[tuple[str, float, int], ...] = ()
    """Text, score and type of each token."""
    trainer: Mapping[int, int | bytes] = field(default_factory=dict)
    """Number of a field -> its last value."""
    normalizer: Mapping[int, int | bytes] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> SentencePieceModel | None:
        """Read a file. Returns None if it is none of SentencePiece's.

        Raises:
            ConversionError: it is damaged.
        """
        data = path.read_bytes()
        if not data.startswith(b"\n"):  # the first field is a piece
            return None
        found: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
        try:
            for number, value in _fields(data):
                if number in found and isinstance(value, bytes):
                    found[number].append(value)
            pieces = tuple(map(_piece, found[1]))
            trainer = dict(chain.from_iterable(map(_fields, found[2])))
            normalizer = dict(chain.from_iterable(map(_fields, found[3])))
        except (_Damaged, UnicodeDecodeError):
            raise ConversionError(f"its {path.name} is damaged, or cut off") from None
        if not trainer:
            raise ConversionError(f"its {path.name} ends behind its pieces, without trainer_spec")
        return cls(pieces, trainer, normalizer)

    @property
    def is_plain_bpe(self) -> bool:
        """Whether it is BPE over text as it is, as most language models' are."""
        texts = {text for text, _, _ in self.pieces}
        normalizes = self.normalizer.get(2) or self.normalizer.get(4, 1) or not self.normalizer.get(5, 1)
        has_suffixes = self.trainer.get(24, 0)
        has_unused = any(kind == UNUSED for _, _, kind in self.pieces)
        is_plain = len(texts) == len(self.pieces) and not (normalizes or has_suffixes or has_unused)
        return self.trainer.get(3, 1) == BPE and is_plain

    @property
    def has_prefix(self) -> bool:
        """Whether a space is put before a text."""
        return bool(self.normalizer.get(3, 1))

    @property
    def roles(self) -> dict[str, str]:
        """Role, such as `eos_token` -> the text of its token."""
        ids = {role: self._number(number, default) for role, (number, default) in ROLES.items()}
        return {role: self.pieces[token][0] for role, token in ids.items() if 0 <= token < len(self.pieces)}

    def _number(self, number: int, default: int) -> int:
        value = self.trainer.get(number, default)
        return default if isinstance(value, bytes) else _signed(value)


def sentencepiece_tokenizer(path: Path) -> Converted | None:
    """Build the tokenizer of a file, with the settings in the files beside it.

    Returns:
        None if the file is none of SentencePiece's, or of a kind that is not built here.

    Raises:
        ConversionError: the file is damaged, or `added_tokens.json` gives ids that do not follow on those of the file.
    """
    model = SentencePieceModel.read(path)
    if model is None or not model.is_plain_bpe:
        return None
    settings = _json(path.with_name("tokenizer_config.json"))
    if "auto_map" in settings:
        return None
    ids = {text: number for number, (text, _, _) in enumerate(model.pieces)}
    known = {text for text, _, kind in model.pieces if kind not in (CONTROL, UNKNOWN, BYTE)}
    ranked = sorted(model.pieces, key=lambda piece: -piece[1])  # equal ones by id
    roles = model.roles
    backend = marked_bpe(
        ids,
        ranked_merges((text for text, _, _ in ranked), known),
        unknown=roles.get("unk_token"),
        prefix=_prefix(model, settings),
        byte_fallback=bool(model.trainer.get(35)),
    )
    backend.add_special_tokens([_added(text) for text, _, kind in model.pieces if kind in (CONTROL, UNKNOWN)])
    backend.add_tokens([_added(text) for text, _, kind in model.pieces if kind == USER_DEFINED])
    for text, number in sorted(_json(path.with_name("added_tokens.json")).items(), key=lambda item: item[1]):
        backend.add_tokens([AddedToken(text, normalized=False)])
        if backend.token_to_id(text) != number:
            raise ConversionError(
                f"its added_tokens.json gives {text!r} the id {number}, but {backend.token_to_id(text)} is next"
            )
    bos = roles.get("bos_token")
    if bos is not None and settings.get("add_bos_token", True):
        backend.post_processor = TemplateProcessing(single=[bos, "$A"], special_tokens=[(bos, ids[bos])])
    return Converted(backend, roles)


def _added(text: str) -> AddedToken:
    """Return a token that is found before text is merged; one of marks is found where text has spaces."""
    return AddedToken(text, normalized="\u2581" in text)


def _prefix(model: SentencePieceModel, settings: Mapping[str, Any]) -> Prefix:
    """Return where a mark is put before text: `legacy` is transformers' name for behind special tokens, too."""
    adds = settings.get("add_prefix_space")
    if not (model.has_prefix if adds is None else adds):
        return "never"
    return "always" if settings.get("legacy") else "first"


def _json(path: Path) -> dict[str, Any]:
    """Return the object in a file, which its reader checks; an empty one if it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _piece(data: bytes) -> tuple[str, float, int]:
    values = dict(_fields(data))
    text, score, kind = values.get(1, b""), values.get(2, b"\0\0\0\0"), values.get(3, NORMAL)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or isinstance(kind, bytes) or len(score) != 4:
        raise _Damaged
    return text.decode(), struct.unpack("<f", score)[0], kind


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of the fields of a message.

    Raises:
        _Damaged: it is cut off, or has a kind of value that there is not.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise _Damaged
        if at + size > len(data):
            raise _Damaged
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise _Damaged
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise _Damaged


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
