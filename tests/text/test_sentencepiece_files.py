"""SentencePiece's BPE and tekken.json are read without transformers, and encode as their own libraries do."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2 as proto

from sluice.text.tokenizer import TokenizerError
from sluice.text.tokenizer_files import load_tokenizer

CORPUS = ["the quick brown fox jumps over the lazy dog", "hello world, this is a text", "café au lait 123"] * 8
PIECES = [
    "<s>",
    "</s>",
    "[INST]",
    "<0x0A>",
    "\u2581",
    " ",
    "   ",
    "\n",
    "\t",
    "\0",
    "a",
    "hello",
    "the fox",
    "é",
    "日本",
    "🙂",
]
SPACES = ["\u2581" * count for count in (2, 4, 8, 5, 6, 3, 7)]
"""Mistral's vocabulary has runs of spaces that are all of one score, in about this order."""
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MERGED = [b"th", b"he", b"the", b" the", b" t", b"ll", b"llo", b"hello", b"wor", b" w", b" wor", "é".encode(), b"  "]


def texts(count: int = 300) -> list[str]:
    """Return random texts of pieces that tokenizers find hard, the same in every run."""
    draw = random.Random(3)
    return ["".join(draw.choices(PIECES, k=draw.randrange(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model as Mistral's: the ids of its pieces are in another order than their scores."""
    folder = tmp_path_factory.mktemp("mistral")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(folder / "trained"),
        model_type="bpe",
        vocab_size=330,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        control_symbols=["[INST]"],
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    model = proto.ModelProto()
    model.ParseFromString((folder / "trained.model").read_bytes())
    normal = [piece for piece in model.pieces if piece.type == 1]
    others = [piece for piece in model.pieces if piece.type != 1]
    assert not any(piece.piece in SPACES for piece in normal)
    random.Random(1).shuffle(normal)
    spaces = [proto.ModelProto.SentencePiece(piece=text, score=-1e9) for text in SPACES]
    next(piece for piece in normal if piece.piece == "\u2581").score = -1e9
    del model.pieces[:]
    model.pieces.extend([*others, *spaces, *normal])
    (folder / "tokenizer.model").write_bytes(model.SerializeToString())
    return folder


def with_settings(folder: Path, to: Path, **settings: Any) -> Path:
    (to / "tokenizer.model").write_bytes((folder / "tokenizer.model").read_bytes())
    (to / "tokenizer_config.json").write_text(json.dumps(settings))
    return to


def test_every_text_has_sentencepieces_ids(mistral: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers merges by id. Then a Mistral model would read other tokens than it was trained with."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    original = sentencepiece.SentencePieceProcessor(model_file=str(mistral / "tokenizer.model"))
    ours = load_tokenizer(mistral)
    assert ours.vocab_size == original.vocab_size()
    assert ours.eos_token_ids == {original.eos_id()}
    for text in texts():
        if not any(token in text for token in ("<s>", "</s>", "[INST]")):
            ids = original.encode(text)
            assert ours.encode(text) == [original.bos_id(), *ids], text
            assert ours.decode(ids) == original.decode(ids) == text.replace("\u2581", " ")


def test_typed_special_tokens_are_text(mistral: Path, tmp_path: Path) -> None:
    """A message that holds `[INST]` would otherwise begin a turn."""
    template = "{% for m in messages %}<s>[INST]{{ m.content }}[/INST]{% endfor %}"
    ours = load_tokenizer(with_settings(mistral, tmp_path, chat_template=template, legacy=True))
    original = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    try:
        for text in [text for text in texts(60) if text.strip(" \u2581\n\t\0")]:
            ids = ours.encode(ours.rendered_chat([{"role": "user", "content": text}]), add_special_tokens=False)
            assert ids[:2] == [original.bos_id(), original.piece_to_id("[INST]")]
            assert ids[2:] == original.encode(f"{text}[/INST]"), text
    finally:
        ours.close()


def test_settings(mistral: Path, tmp_path: Path) -> None:
    """`legacy` and `add_prefix_space` say where a space is put, `add_bos_token` whether a text begins with bos."""
    original = sentencepiece.SentencePieceProcessor(model_file=str(mistral / "tokenizer.model"))
    word, spaced = original.encode("the")[1:], original.encode("the")
    bos = original.bos_id()
    plain = load_tokenizer(with_settings(mistral, tmp_path, add_prefix_space=False))
    bare = plain.encode("the")[1:]
    assert bare != spaced
    assert plain.encode(" the") == [bos, *spaced]
    first = load_tokenizer(with_settings(mistral, tmp_path, legacy=False))
    assert first.encode("the[INST]the", add_special_tokens=False) == [*spaced, original.piece_to_id("[INST]"), *bare]
    always = load_tokenizer(with_settings(mistral, tmp_path, legacy=True, add_bos_token=False))
    assert always.encode("the[INST]the") == [*spaced, original.piece_to_id("[INST]"), *spaced]
    assert word != spaced


def test_added_tokens(mistral: Path, tmp_path: Path) -> None:
    """Fine-tuned models of old checkpoints have more tokens in a file of their own."""
    folder = with_settings(mistral, tmp_path, eos_token="<|im_end|>")
    size = load_tokenizer(mistral).vocab_size
    (folder / "added_tokens.json").write_text(json.dumps({"<|im_end|>": size + 1, "<|im_start|>": size}))
    ours = load_tokenizer(folder)
    assert ours.eos_token_ids == {size + 1}
    assert ours.encode("<|im_start|>", add_special_tokens=False) == [size]
    (folder / "added_tokens.json").write_text(json.dumps({"<|im_end|>": size + 7}))
    with pytest.raises(TokenizerError, match=rf"added_tokens.json gives '<\|im_end\|>' the id {size + 7}"):
        load_tokenizer(folder)


def test_a_cut_off_file_is_named(mistral: Path, tmp_path: Path) -> None:
    """A download that ended early must not be served with half of its tokens."""
    data = (mistral / "tokenizer.model").read_bytes()
    for size in (1, len(data) // 2, len(data) - 1):
        (tmp_path / "tokenizer.model").write_bytes(data[:size])
        with pytest.raises(TokenizerError, match=r"its tokenizer\.model"):
            load_tokenizer(tmp_path)


def tekken(path: Path, **changes: Any) -> dict[bytes, int]:
    """Write a file as Mistral's, with more tokens than it uses, and return its ranks."""
    ranks = {token: rank for rank, token in enumerate([*(bytes([byte]) for byte in range(256)), *MERGED, b"unused"])}
    vocabulary = [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for token, rank in ranks.items()]
    size = {"default_num_special_tokens": 30, "default_vocab_size": 30 + len(ranks) - 1}
    path.write_text(json.dumps({"config": {"pattern": PATTERN, **size}, "vocab": vocabulary, **changes}))
    return ranks


def test_tekken(tmp_path: Path) -> None:
    """Ids begin behind the special tokens, of which old files name none."""
    ranks = tekken(tmp_path / "tekken.json")
    del ranks[b"unused"]
    original = tiktoken.Encoding("tekken", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    ours = load_tokenizer(tmp_path)
    assert (ours.vocab_size, ours.eos_token_ids) == (30 + len(ranks), {2})
    for text in texts():
        if not any(token in text for token in ("<s>", "</s>", "[INST]")):
            ids = [30 + rank for rank in original.encode(text)]
            assert ours.encode(text) == [1, *ids], text
            assert ours.decode(ids) == text
    assert ours.encode("[INST]<SPECIAL_29>", add_special_tokens=False) == [3, 29]


def test_tekkens_own_special_tokens(tmp_path: Path) -> None:
    named = ["<unk>", "<s>", "</s>", "[THINK]"]
    special = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(named)]
    tekken(tmp_path / "tekken.json", special_tokens=special)
    assert load_tokenizer(tmp_path).encode("[THINK]") == [1, 3]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": {}}, "KeyError: 'default_num_special_tokens'"),
        ({"vocab": []}, "no token for each rank below 269"),
        ({"special_tokens": [{"rank": 4, "token_str": "<s>"}]}, "ranks are not 0, 1, 2"),
        ({"special_tokens": [{"rank": 0, "token_str": "the"}]}, "'the' both as a special token and as text"),
    ],
)
def test_a_broken_tekken_file(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    tekken(tmp_path / "tekken.json", **changes)
    with pytest.raises(TokenizerError, match=reason):
        load_tokenizer(tmp_path)


def test_transformers_is_not_imported(mistral: Path) -> None:
    """It takes seconds, and is no requirement."""
    program = f"""
import sys
from pathlib import Path
from sluice.text.tokenizer_files import load_tokenizer
load_tokenizer(Path({str(mistral)!r}))
assert not {{"transformers", "sentencepiece", "google.protobuf"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
