"""A GGUF file's tokenizer gives the ids of the tokenizer that its metadata was made of, or is refused by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, models, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Split

from gguf_bytes import INT32, TEXT, items, value, write
from gguf_vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    write_bpe,
    write_sentencepiece,
    write_vocabulary,
)
from sluice.text.chat_template import RenderOptions
from sluice.text.gguf.splits import RULES
from sluice.text.gguf.tokenizer import gguf_tokenizer
from sluice.text.tokenizer import TokenizerError
from sluice.text.tokenizer_files import has_tokenizer, load_tokenizer
from tokenizer_makers import TEXTS

BOS, EOS, TURN = "<|begin|>", "<|eot_id|>", "<|im_end|>"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
WORDS = [*TEXTS, "It's the 12345th  gate, isn't it?\n\nYES: IT'S (that) gate!!", "100 1000 10000", "gate's gate'S"] * 3
PROBES = [
    *WORDS[:7],
    "",
    " ",
    "  two  spaces \n\n lines\r\n\t tabs  ",
    "x = [1,2,3]; y=='s' // 3.14159",
    "e\u0301 \u0928\u092e\u0938\u094d\u0924\u0947 \u00a0nbsp\u2028 \U0001f642",
    f"a{EOS}b <|im_start|>",
]


def byte_level(splits: pre_tokenizers.PreTokenizer | None, size: int = 420, **options: Any) -> tokenizers.Tokenizer:
    """Train byte-level BPE that cuts text as a family's tokenizer.json does; None: as GPT-2's."""
    backend = tokenizers.Tokenizer(models.BPE(**options))
    level = ByteLevel(add_prefix_space=False, use_regex=splits is None)
    backend.pre_tokenizer = level if splits is None else pre_tokenizers.Sequence([splits, level])
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[BOS, EOS, TURN],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(WORDS, trainer)
    return backend


FAMILIES: Mapping[str, pre_tokenizers.PreTokenizer | None] = {
    "gpt-2": None,
    "smollm": pre_tokenizers.Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
    "llama-bpe": Split(Regex(LLAMA3), "isolated"),
    "qwen2": Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"),
    "falcon": pre_tokenizers.Sequence(
        [Punctuation("contiguous"), ByteLevel(add_prefix_space=False), Split(Regex("[0-9][0-9][0-9]"), "isolated")]
    ),
}


@pytest.mark.parametrize("pre", FAMILIES)
def test_byte_level(pre: str, tmp_path: Path) -> None:
    """Text that is cut in other places than in training becomes other tokens, and no error shows it."""
    splits = FAMILIES[pre]
    if pre in ("smollm", "falcon"):  # their ByteLevel is a part of the splits
        backend = byte_level(None)
        backend.pre_tokenizer = splits
    else:
        backend = byte_level(splits)
    keys = {"tokenizer.ggml.add_bos_token": False}
    ours = load_tokenizer(write_bpe(tmp_path / "a.gguf", backend, pre, keys=keys))
    for text in PROBES:
        ids = backend.encode(text).ids
        assert ours.encode(text) == ids, text
        assert ours.decode(ids, skip_special_tokens=False) == text
    assert len(ours.encode(EOS)) == 1


def test_every_name_has_a_rule_that_compiles() -> None:
    """llama.cpp knows 91 names; a rule with an error would be found by the first user of its model."""
    assert len(RULES) == 91
    for name, rule in RULES.items():
        for pattern in rule.patterns:
            pieces = [piece for piece, _ in Split(Regex(pattern), "isolated").pre_tokenize_str(PROBES[-3])]
            assert "".join(pieces) == PROBES[-3], name


PIECES: Mapping[str, Sequence[str]] = {
    "llama3": ["It", "'S", " ", "123", "456", "7", " d\u00e9j\u00e0Vu", ",", " \n\n", "  ", " x", ";y"],
    "qwen2": ["It", "'S", " ", *"1234567", " d\u00e9j\u00e0Vu", ",", " \n\n", "  ", " x", ";y"],
    "tekken": ["It", "'S", " ", *"1234567", " d\u00e9j\u00e0", "Vu", ",", " \n\n", "  ", " x", ";y"],
    "gpt-4o": ["It'S", " ", "123", "456", "7", " d\u00e9j\u00e0", "Vu", ",", " \n\n", "  ", " x", ";y"],
    "afmoe": ["It", "'S", " ", "1", "234", "567", " d\u00e9j\u00e0Vu", ",", " \n\n", "  ", " x", ";y"],
    "superbpe": ["It'S ", "1", "234", "567", " d\u00e9j\u00e0Vu, \n\n   x;y"],
    "bloom": ["It'S", " 1234567", " d\u00e9j\u00e0Vu", ", \n\n  ", " x;y"],
    "laguna": ["It", "'S", " ", *"1234567", " d\u00e9j\u00e0Vu", ",", " ", "\n\n", "  ", " x", ";y"],
    "gemma4": ["It'S 1234567 d\u00e9j\u00e0Vu, ", "\n\n", "   x;y"],
}


@pytest.mark.parametrize("name", PIECES)
def test_rules(name: str) -> None:
    """What sets the families apart: contractions, digits, capitals, line breaks."""
    cut = pre_tokenizers.Sequence([Split(Regex(pattern), "isolated") for pattern in RULES[name].patterns])
    pieces = cut.pre_tokenize_str("It'S 1234567 d\u00e9j\u00e0Vu, \n\n   x;y")
    assert [piece for piece, _ in pieces] == list(PIECES[name])


def test_whole_words_before_merges(tmp_path: Path) -> None:
    """Llama 3's and tekken's vocabularies hold words that their merges do not make."""
    backend = byte_level(Split(Regex(LLAMA3), "isolated"), ignore_merges=True)
    word = "Schleusentor"
    backend.add_tokens([word])
    for name, is_found in (("llama-bpe", True), ("gpt-2", False), ("tekken", True)):
        path = write_bpe(tmp_path / f"{name}.gguf", backend, name, kinds={word: NORMAL})
        ids = load_tokenizer(path).encode(word, add_special_tokens=False)
        assert (ids == [backend.token_to_id(word)]) == is_found, name


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece model as Llama 2's."""
    path = tmp_path_factory.mktemp("sp") / "a"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS),
        model_prefix=str(path),
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    return path.with_suffix(".model")


def test_sentencepiece(sentencepiece_model: Path, tmp_path: Path) -> None:
    """Merges are not in such a file: they follow from the scores. Prefix, bos, eos and unk have defaults."""
    original = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_model))
    ours = load_tokenizer(write_sentencepiece(tmp_path / "a.gguf", sentencepiece_model))
    assert ours.eos_token_ids == {original.eos_id()}
    for text in PROBES:
        if text.strip():  # as for Llama's models, both differ for a text of spaces alone
            ids = original.encode(text)
            assert ours.encode(text) == [original.bos_id(), *ids], text
            assert ours.decode(ids) == text
    assert ours.encode("a </s> b", add_special_tokens=False)[2:] != original.encode("a </s> b")[2:]


def test_the_prefix_of_sentencepiece(sentencepiece_model: Path, tmp_path: Path) -> None:
    """A space stands before each text, also behind a special token, unless the file says no."""
    spaced = load_tokenizer(write_sentencepiece(tmp_path / "a.gguf", sentencepiece_model))
    keys = {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    plain = load_tokenizer(write_sentencepiece(tmp_path / "b.gguf", sentencepiece_model, keys))
    assert plain.encode(" gate") == spaced.encode("gate", add_special_tokens=False) != plain.encode("gate")
    assert spaced.encode("gate</s>gate", add_special_tokens=False) == [*(g := plain.encode(" gate")), 2, *g]
    assert plain.decode(plain.encode(" gate")) == " gate"


def test_typed_control_tokens_are_text(sentencepiece_model: Path, tmp_path: Path) -> None:
    """Special tokens are made of their texts where a prompt may hold them, and of no text in a message."""
    template = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"
    keys = {"tokenizer.chat_template": template}
    path = write_sentencepiece(tmp_path / "a.gguf", sentencepiece_model, keys)
    tokenizer = load_tokenizer(path)
    try:
        text = tokenizer.rendered_chat([{"role": "user", "content": "the </s> gate <s>"}])
        ids = tokenizer.encode(text, add_special_tokens=False)
    finally:
        tokenizer.close()
    assert (ids[0], ids[-1]) == (1, 2)
    assert {1, 2}.isdisjoint(ids[1:-1])


def test_kinds_of_tokens(tmp_path: Path) -> None:
    """Control tokens are hidden, user-defined ones are text, unused ones and those of bytes are never matched."""
    backend = byte_level(None)
    tokens = ["<think>", "\uff5cend\u2581of\uff5c", "<pad>", "<0x41>"]
    backend.add_tokens([AddedToken(text, normalized=False) for text in tokens])
    kinds = dict(zip(tokens, (USER_DEFINED, CONTROL, 5, BYTE), strict=True))
    ours = load_tokenizer(write_bpe(tmp_path / "a.gguf", backend, "gpt-2", kinds=kinds))
    ids = {text: backend.token_to_id(text) for text in tokens}
    assert ours.encode("a<think>") == [*backend.encode("a").ids, ids["<think>"]]
    assert ours.encode(tokens[1]) == [ids[tokens[1]]]
    assert not {ids["<pad>"], ids["<0x41>"]} & set(ours.encode("<pad> <0x41>"))
    assert ours.decode([ids["<think>"], ids[tokens[1]]]) == "<think>"
    assert ours.is_special(ids[tokens[1]])


def test_wordpiece(tmp_path: Path) -> None:
    """The file marks the beginnings of words, as no other WordPiece does."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581gate", "s", "\u2581the", "\u2581,"]
    keys = {"tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.seperator_token_id": 3}
    keys |= {"tokenizer.ggml.unknown_token_id": 1, "tokenizer.ggml.padding_token_id": 0}
    kinds = [CONTROL, UNKNOWN, CONTROL, CONTROL, *[NORMAL] * 4]
    path = write_vocabulary(tmp_path / "a.gguf", tokens, model="bert", pre="jina-v2-en", kinds=kinds, keys=keys)
    assert gguf_tokenizer(path).backend.encode("The gates, x").ids == [2, 6, 4, 5, 7, 1, 3]


@pytest.mark.parametrize(
    ("pre", "keys", "begins", "ends"),
    [
        ("gpt-2", {}, False, False),
        ("llama-bpe", {}, True, False),
        ("tekken", {}, True, False),
        ("chameleon", {}, True, False),
        ("llama-bpe", {"add_bos_token": False}, False, False),
        ("qwen2", {"add_bos_token": True, "add_eos_token": True}, True, True),
    ],
)
def test_what_is_added_to_a_text(pre: str, keys: Mapping[str, bool], begins: bool, ends: bool, tmp_path: Path) -> None:
    """A model that was trained with bos answers worse without it, and no error shows it."""
    fields = {f"tokenizer.ggml.{key}": wanted for key, wanted in keys.items()}
    fields |= {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    ids = load_tokenizer(write_bpe(tmp_path / "a.gguf", byte_level(None), pre, keys=fields)).encode("a")
    assert ids[1 if begins else 0 :][:1] == byte_level(None).encode("a").ids
    assert ((ids[0] == 0), (ids[-1] == 1)) == (begins, ends)


HARMONY = ["<|return|>", "<|call|>", "<|end|>", "<|channel|>"]


@pytest.mark.parametrize(
    ("special", "plain", "keys", "wanted"),
    [
        (["<|x|>"], [], {}, []),
        (["<|x|>"], [], {"eos_token_id": "<|x|>"}, ["<|x|>"]),
        (["<|x|>", "<|y|>", "<|z|>"], [], {"eot_token_id": "<|x|>", "eom_token_id": "<|y|>"}, ["<|x|>", "<|y|>"]),
        (["<|eot_id|>", "<|im_end|>", "<|file_sep|>"], [], {}, ["<|eot_id|>", "<|im_end|>", "<|file_sep|>"]),
        (["<|im_end|>"], ["</s>"], {}, ["<|im_end|>"]),
        (["</s>"], [], {}, ["</s>"]),
        (HARMONY, [], {}, ["<|return|>", "<|call|>"]),
        (["<|calls|>", "<|flush|>", "<|end|>"], [], {}, ["<|calls|>", "<|flush|>"]),
        (["<|end|>"], [], {}, ["<|end|>"]),
        (["<|x|>"], [], {"eos_token_id": 99}, []),
    ],
)
def test_ends(
    special: list[str], plain: list[str], keys: Mapping[str, str | int], wanted: list[str], tmp_path: Path
) -> None:
    """Files name one end and their models write several; an HTML tag in the vocabulary is none."""
    tokens = ["a", "b", "ab", *special, *plain]
    fields = {
        f"tokenizer.ggml.{key}": tokens.index(text) if isinstance(text, str) else text for key, text in keys.items()
    }
    kinds = [*[NORMAL] * 3, *[CONTROL] * len(special), *[USER_DEFINED] * len(plain)]
    path = write_vocabulary(tmp_path / "a.gguf", tokens, kinds=kinds, merges=["a b"], keys=fields)
    tokenizer = load_tokenizer(path)
    assert tokenizer.eos_token_ids == {tokens.index(text) for text in wanted}
    assert "<|channel|>" not in tokens or not tokenizer.is_special(tokens.index("<|channel|>"))


def test_templates_for_tools(tmp_path: Path) -> None:
    """Some models have a template of its own for conversations with tools, and one for documents."""
    keys = {
        "tokenizer.chat_templates": ["tool_use", "rag"],
        "tokenizer.chat_template": "\n plain {{ messages[0].content }}\n",
        "tokenizer.chat_template.tool_use": "  {%- if true %}{{ tools | length }} tools\n{%- endif %} ",
        "tokenizer.chat_template.rag": "rag",
    }
    tokenizer = load_tokenizer(write_bpe(tmp_path / "a.gguf", byte_level(None), "gpt-2", keys=keys))
    try:
        talk = [{"role": "user", "content": "hello"}]
        assert tokenizer.rendered_chat(talk) == "\n plain hello"
        assert tokenizer.rendered_chat(talk, RenderOptions({"tools": [{}, {}]})) == "2 tools "
    finally:
        tokenizer.close()
    del keys["tokenizer.chat_template"]
    path = write_bpe(tmp_path / "b.gguf", byte_level(None), "gpt-2", keys=keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.text.chat_template.ChatTemplate.start", lambda self: None)
        source = load_tokenizer(path).chat_template_source
    assert source == keys["tokenizer.chat_template.tool_use"]


def test_a_whole_tokenizer_in_the_file(tmp_path: Path) -> None:
    """Its own tokenizer.json is more exact than what can be built of lists."""
    backend = byte_level(Split(Regex(".."), "isolated"))
    keys = {"tokenizer.huggingface.json": backend.to_str()}
    ours = load_tokenizer(write_bpe(tmp_path / "a.gguf", backend, "gpt-2", keys=keys))
    assert [ours.encode(text) for text in PROBES] == [backend.encode(text).ids for text in PROBES]


MODEL = ("tokenizer.ggml.model", value(TEXT, "gpt2"))
PRE = ("tokenizer.ggml.pre", value(TEXT, "gpt-2"))
SOME = ("tokenizer.ggml.tokens", items(TEXT, ["a", "b", "ab"]))
MERGES = ("tokenizer.ggml.merges", items(TEXT, ["a b"]))
SPM = ("tokenizer.ggml.model", value(TEXT, "llama"))
REFUSED: dict[str, tuple[list[tuple[str, bytes]], str]] = {
    "no tokens": ([MODEL], r"a.gguf has no tokenizer \(tokenizer.ggml.tokens\): give one with --tokenizer"),
    "tokens of numbers": (
        [MODEL, ("tokenizer.ggml.tokens", items(INT32, [1, 2]))],
        "tokenizer.ggml.tokens must be an array of texts, got an array of 2 int32",
    ),
    "an unknown model": (
        [("tokenizer.ggml.model", value(TEXT, "rwkv")), SOME],
        "tokenizer.ggml.model must be one of gpt2, llama, gemma4, bert; or give --tokenizer, got 'rwkv'",
    ),
    "an unknown rule": (
        [MODEL, ("tokenizer.ggml.pre", value(TEXT, "newest")), SOME, MERGES],
        "tokenizer.ggml.pre is 'newest', a rule that is not known: give a tokenizer with --tokenizer",
    ),
    "no merges": ([MODEL, PRE, SOME], "has no tokenizer.ggml.merges, by which its tokens are merged"),
    "a merge of one part": (
        [MODEL, PRE, SOME, ("tokenizer.ggml.merges", items(TEXT, ["ab"]))],
        "tokenizer.ggml.merges has 'ab': two parts must have a space between",
    ),
    "a merge of no token": (
        [MODEL, PRE, SOME, ("tokenizer.ggml.merges", items(TEXT, ["b a"]))],
        "no tokenizer can be built of its metadata: .*ba",
    ),
    "one text twice": (
        [MODEL, PRE, ("tokenizer.ggml.tokens", items(TEXT, ["a", "b", "a"])), MERGES],
        "tokens 0 and 2 of tokenizer.ggml.tokens are both 'a'; each text must have one id",
    ),
    "too few types": (
        [MODEL, PRE, SOME, MERGES, ("tokenizer.ggml.token_type", items(INT32, [1, 1]))],
        "tokenizer.ggml.token_type must be an array of 3 numbers, one for each token, got an array of 2 int32",
    ),
    "no scores": ([SPM, SOME], "has no tokenizer.ggml.scores, by which its tokens are merged"),
    "a score that is none": (
        [SPM, SOME, ("tokenizer.ggml.scores", items(6, [0.0, float("nan"), 1.0]))],
        "tokenizer.ggml.scores has a score that is no number",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    """A tokenizer that is guessed gives other ids, and no error shows it."""
    keys, message = REFUSED[name]
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(write(tmp_path / "a.gguf", keys))


def test_ids_beyond_the_vocabulary_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """llama.cpp ignores them, too; a file that it runs must not be refused for them."""
    keys = {"tokenizer.ggml.bos_token_id": 5000, "tokenizer.ggml.add_bos_token": True}
    backend = byte_level(None)
    ours = load_tokenizer(write_bpe(tmp_path / "a.gguf", backend, "gpt-2", keys=keys))
    assert ours.encode("a") == backend.encode("a").ids
    assert f"tokenizer.ggml.bos_token_id = 5000 is ignored: there are {backend.get_vocab_size()} tokens" in caplog.text


def test_spaces_that_special_tokens_take(tmp_path: Path) -> None:
    """Phi-3 was trained without the line breaks behind its marks, which its template writes."""
    backend = byte_level(None)
    for name, taken in (("Phi-3 mini", True), ("Other", False)):
        path = write_bpe(tmp_path / f"{taken}.gguf", backend, "gpt-2", keys={"general.name": name})
        ids = load_tokenizer(path).encode(f"{TURN}\n a")
        assert (ids == [backend.token_to_id(TURN), *backend.encode("a").ids]) == taken


def test_a_folder_made_of_a_file(tmp_path: Path) -> None:
    """The engine sees a folder with a link, the server the file itself."""
    path = write_bpe(tmp_path / "a.gguf", byte_level(None), "gpt-2")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.gguf").symlink_to(path)
    assert has_tokenizer(tmp_path / "folder")
    assert load_tokenizer(tmp_path / "folder").encode("gate") == load_tokenizer(path).encode("gate")
    (tmp_path / "none").mkdir()
    write(tmp_path / "none" / "model.gguf", [MODEL])
    assert not has_tokenizer(tmp_path / "none")


def test_neither_torch_nor_transformers_is_imported(tmp_path: Path) -> None:
    """They take seconds and hundreds of megabytes, in the server as in the engine."""
    path = write_bpe(tmp_path / "a.gguf", byte_level(None), "gpt-2")
    code = (
        "import sys; from pathlib import Path; from sluice.text.tokenizer_files import load_tokenizer\n"
        f"load_tokenizer(Path({str(path)!r}))\n"
        "print({'torch', 'transformers', 'gguf', 'numpy'} & sys.modules.keys())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
