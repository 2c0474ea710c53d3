"""Builds a GGUF file's tokenizer of its metadata, with the `tokenizers` library alone.

The ids are those that the model was trained with, as its `tokenizer.json` gives them. llama.cpp gives the same, but
for a few texts where it departs from that file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordPiece
from tokenizers.processors import TemplateProcessing

from sluice.text.gguf.cursor import GGUFError
from sluice.text.gguf.file import GGUFFile
from sluice.text.gguf.merges import merges_of_scores, stored_merges
from sluice.text.gguf.metadata import Metadata
from sluice.text.gguf.splits import RULES, SplitRule
from sluice.text.gguf.vocabulary import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, GGUFVocabulary
from sluice.text.marked_bpe import MARK, marked_bpe
from sluice.text.named_templates import combined

LOGGER = logging.getLogger("sluice.text")
STRIPPED = {"phi-3": ("rstrip", None), "phi3": ("rstrip", None), "modern-bert": ("lstrip", "[MASK]")}
"""Part of a model's name -> the side on which special tokens take white space, and the only one that does."""
NEVER_STRIPPED = ("<unk>", "<s>", "<|endoftext|>")
TEMPLATE = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class GGUFTokenizer:
    """A tokenizer, and what else a file says of it."""

    backend: tokenizers.Tokenizer
    special_tokens: Mapping[str, str]
    """Role, such as `eos_token` -> text."""
    eos_token_ids: frozenset[int] = frozenset()
    """The ids that end an answer."""
    chat_template: str | None = None


@dataclass(frozen=True, slots=True)
class _Built:
    """A tokenizer without its added tokens."""

    backend: tokenizers.Tokenizer
    adds: Mapping[str, bool] = field(default_factory=dict)
    """Role -> whether texts get that token, unless the file says otherwise."""


def gguf_tokenizer(path: Path) -> GGUFTokenizer:
    """Build the tokenizer of a file.

    Raises:
        GGUFError: the file is broken, or has no tokenizer, or one that is not known; the message names the key.
    """
    file = GGUFFile(path)
    metadata = file.metadata
    model = metadata.text("tokenizer.ggml.model") or ""
    vocabulary = GGUFVocabulary.read(metadata, model)
    whole = metadata.text("tokenizer.huggingface.json")
    try:
        if whole is not None:
            backend = tokenizers.Tokenizer.from_str(whole)
        else:
            if model not in MODELS:
                raise metadata.error("tokenizer.ggml.model", f"one of {', '.join(MODELS)}; or give --tokenizer")
            built = MODELS[model](metadata, vocabulary)
            backend = built.backend
            _add_tokens(backend, metadata, vocabulary)
            _add_ends(backend, metadata, vocabulary, built.adds)
    except GGUFError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise GGUFError(f"{metadata.source}: no tokenizer can be built of its metadata: {error}") from error
    special = {role: vocabulary.texts[number] for role, number in vocabulary.roles.items()}
    ends = vocabulary.ends(metadata)
    LOGGER.info("%s: answers end with %s", file.name, ", ".join(f"{vocabulary.texts[i]} ({i})" for i in sorted(ends)))
    return GGUFTokenizer(backend, special, ends, _chat_template(metadata, special))


def has_gguf_tokenizer(path: Path) -> bool:
    """Return whether a file has a tokenizer, or is broken: this is reported when it is read."""
    try:
        return "tokenizer.ggml.tokens" in GGUFFile(path).metadata
    except GGUFError:
        return True


def _gpt2(metadata: Metadata, vocabulary: GGUFVocabulary) -> _Built:
    """Build byte-level BPE."""
    name = metadata.text("tokenizer.ggml.pre")
    if name is None:
        LOGGER.warning("%s has no tokenizer.ggml.pre: text may be cut in other places than it should", metadata.source)
        name = "default"
    rule = RULES.get(name)
    if rule is None:
        raise GGUFError(
            f"{metadata.source}: tokenizer.ggml.pre is {name!r}, a rule that is not known: give a tokenizer with"
            " --tokenizer"
        )
    adds = {"bos_token": rule.adds_bos or name == "gemma4", "sep_token": rule.adds_sep}
    if not rule.has_byte_letters:
        return _Built(_marked(metadata, vocabulary, stored_merges(metadata), rule), adds)
    backend = tokenizers.Tokenizer(BPE(dict(vocabulary.ids), stored_merges(metadata), ignore_merges=rule.keeps_words))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*_splits(rule), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    if metadata.flag("tokenizer.ggml.add_space_prefix", False):
        backend.normalizer = normalizers.Prepend(" ")
    backend.decoder = decoders.ByteLevel()
    return _Built(backend, adds)


def _llama(metadata: Metadata, vocabulary: GGUFVocabulary) -> _Built:
    """Build the BPE of SentencePiece."""
    scores = metadata.numbers("tokenizer.ggml.scores", len(vocabulary.texts))
    if scores is None:
        raise GGUFError(f"{metadata.source} has no tokenizer.ggml.scores, by which its tokens are merged")
    if any(score != score for score in scores):
        raise GGUFError(f"{metadata.source}: tokenizer.ggml.scores has a score that is no number")
    merges = merges_of_scores(vocabulary, scores)
    return _Built(_marked(metadata, vocabulary, merges, None, prefix=True), {"bos_token": True})


def _gemma4(metadata: Metadata, vocabulary: GGUFVocabulary) -> _Built:
    """Build Gemma 4's BPE. Its files may say that no bos is added, which is wrong."""
    backend = _marked(metadata, vocabulary, stored_merges(metadata), RULES["gemma4"])
    return _Built(backend, {"bos_token": True, "is_fixed": True})


def _marked(
    metadata: Metadata,
    vocabulary: GGUFVocabulary,
    merges: list[tuple[str, str]],
    rule: SplitRule | None,
    *,
    prefix: bool = False,
) -> tokenizers.Tokenizer:
    """Return BPE over text whose spaces are marks, and which spells what it does not know by tokens of bytes.

    Args:
        prefix: whether a text begins with a mark, unless the file says otherwise.
    """
    unknown = vocabulary.roles.get("unk_token")
    has_prefix = metadata.flag("tokenizer.ggml.add_space_prefix", prefix)
    return marked_bpe(
        vocabulary.ids,
        merges,
        unknown=None if unknown is None else vocabulary.texts[unknown],
        prefix="always" if has_prefix else "never",
        splits=[] if rule is None else _splits(rule),
    )


def _bert(metadata: Metadata, vocabulary: GGUFVocabulary) -> _Built:
    """Build WordPiece. A file marks the beginnings of words, and the library marks the other pieces."""
    pieces = {}
    for text, kind, number in zip(vocabulary.texts, vocabulary.kinds, range(len(vocabulary.texts)), strict=True):
        piece = text.removeprefix(MARK) if text.startswith(MARK) else f"##{text}"
        pieces[piece if kind == NORMAL else text] = number
    unknown = vocabulary.roles.get("unk_token")
    if unknown is None:
        raise GGUFError(f"{metadata.source} has no tokenizer.ggml.unknown_token_id")
    backend = tokenizers.Tokenizer(WordPiece(pieces, unk_token=vocabulary.texts[unknown]))
    lowercase = metadata.flag("tokenizer.ggml.normalizer.lowercase", True)
    strips = metadata.flag("tokenizer.ggml.normalizer.strip_accents", lowercase)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strips)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return _Built(backend, {"bos_token": True, "sep_token": True})


MODELS: Mapping[str, Callable[[Metadata, GGUFVocabulary], _Built]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "gemma4": _gemma4,
    "bert": _bert,
}
"""Builders of tokenizers by `tokenizer.ggml.model`."""


def _splits(rule: SplitRule) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]


def _add_tokens(backend: tokenizers.Tokenizer, metadata: Metadata, vocabulary: GGUFVocabulary) -> None:
    """Add the tokens that are found in text before it is cut."""
    name = (metadata.text("general.name") or "").lower()
    side, only = next((how for part, how in STRIPPED.items() if part in name), ("", None))
    if (metadata.text("tokenizer.ggml.pre") or "").startswith("jina-v2-"):
        side, only = "lstrip", "<mask>"

    def added(text: str, *, special: bool) -> AddedToken:
        strips = side if text not in NEVER_STRIPPED and only in (None, text) else ""
        return AddedToken(text, special=special, normalized=False, lstrip=strips == "lstrip", rstrip=strips == "rstrip")

    control = vocabulary.of_kind(CONTROL, UNKNOWN)
    backend.add_special_tokens([added(text, special=True) for text in control if text not in vocabulary.shown])
    others = [*vocabulary.of_kind(USER_DEFINED), *(text for text in control if text in vocabulary.shown)]
    backend.add_tokens([added(text, special=False) for text in others])


def _add_ends(
    backend: tokenizers.Tokenizer, metadata: Metadata, vocabulary: GGUFVocabulary, adds: Mapping[str, bool]
) -> None:
    """Let texts begin and end with the tokens that the file says."""
    around = []
    for role in ("bos_token", "eos_token", "sep_token"):
        wanted = adds.get(role, False)
        if not adds.get("is_fixed"):
            wanted = metadata.flag(f"tokenizer.ggml.add_{role}", wanted)
        around.append(vocabulary.texts[vocabulary.roles[role]] if wanted and role in vocabulary.roles else None)
    bos, *last = around
    ends = list(dict.fromkeys(text for text in last if text is not None))
    if bos is None and not ends:
        return
    backend.post_processor = TemplateProcessing(
        single=[*([] if bos is None else [bos]), "$A", *ends],
        special_tokens=[(text, vocabulary.ids[text]) for text in {*ends, *([] if bos is None else [bos])}],
    )


def _chat_template(metadata: Metadata, special: Mapping[str, str]) -> str | None:
    """Return the template of chats, with the one for tools if there is one."""
    named = {}
    for key in metadata:
        if key == TEMPLATE or key.startswith(f"{TEMPLATE}."):
            named[key.removeprefix(TEMPLATE).removeprefix(".") or "default"] = metadata.text(key) or ""
    source = combined(named)
    bos = special.get("bos_token")
    adds_bos = metadata.flag("tokenizer.ggml.add_bos_token", False)
    if source and bos and adds_bos and bos not in source and "bos_token" not in source:
        LOGGER.warning(
            "%s: its chat template does not write %s, so chats begin without it, although its add_bos_token is true",
            metadata.source,
            bos,
        )
    return source
