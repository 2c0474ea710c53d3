"""Tokenizers of other formats than tokenizer.json encode as their own libraries do, or are refused by name."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import sentencepiece
import tiktoken

from processes import free_port
from random_checkpoint import random_checkpoint
from serve_process import announced, server
from serving import parse_events
from sluice.text import conversion
from sluice.text.tokenizer import TokenizerError
from sluice.text.tokenizer_files import has_tokenizer, load_tokenizer
from tokenizer_makers import byte_level_bpe

CORPUS = ["the quick brown fox jumps over the lazy dog", "hello world, this is a text", "café au lait 123"] * 8
TEXTS = ["hello world, the fox", "two  spaces\nand lines ", "naïve 日本語 🙂 12,5", "the dog's <s> and </s>"]
LLAMA = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
CUT = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"""
    r"""\s+(?!\S)|\s+"""
)
"""How the original tokenizer of Llama 3 cuts text."""
MERGED = [b"th", b"he", b"the", b" the", b" t", b"ll", b"llo", b"lo", b"or", b"wor", b" w", b" wor"]


def sentencepiece_model(path: Path, **options: object) -> Path:
    """Train a model with the settings of Llama 2's."""
    written = io.BytesIO()
    settings: dict[str, Any] = {"model_type": "bpe", "normalization_rule_name": "identity", **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=written,
        vocab_size=320,
        byte_fallback=True,
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **settings,
    )
    path.write_bytes(written.getvalue())
    return path


def tiktoken_file(path: Path) -> dict[bytes, int]:
    """Write ranks as tiktoken does: a token in base64 and its rank in each line."""
    ranks = {token: rank for rank, token in enumerate([*(bytes([byte]) for byte in range(256)), *MERGED])}
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    return ranks


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a SentencePiece model as Llama 2's, and no tokenizer.json."""
    folder = tmp_path_factory.mktemp("llama")
    sentencepiece_model(folder / "tokenizer.model")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer_config.json").write_text(json.dumps(LLAMA))
    return folder


def test_sentencepiece(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ids than the model was trained with would make it answer nonsense.

    A server that is started in the checkpoint's folder would run a json.py that the checkpoint brings.
    """
    (llama / "json.py").write_text("raise SystemExit('it ran')")
    monkeypatch.chdir(llama)
    original = sentencepiece.SentencePieceProcessor(model_file=str(llama / "tokenizer.model"))
    assert has_tokenizer(llama)
    tokenizer = load_tokenizer(llama)
    assert tokenizer.vocab_size == original.vocab_size()
    assert tokenizer.eos_token_ids == {original.eos_id()}
    for text in TEXTS[:3]:
        ids = original.encode(text)
        assert tokenizer.encode(text) == [original.bos_id(), *ids]
        assert tokenizer.decode(ids) == original.decode(ids) == text
        stream = tokenizer.detokenizer()
        assert "".join(map(stream.push, ids)) + stream.flush() == text
    assert tokenizer.encode("<s>", add_special_tokens=False) == [original.bos_id()]


def test_a_conversion_imports_no_torch(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With it transformers imports all its models, which takes four times as long."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert has_tokenizer(llama)
    assert conversion.convert(llama / "tokenizer.model").backend.get_vocab_size() > 256


def test_tiktoken(tmp_path: Path) -> None:
    """The ids of special tokens are in no file but tokenizer_config.json."""
    ranks = tiktoken_file(tmp_path / "tokenizer.model")
    special = {"<|begin|>": len(ranks), "<|end|>": len(ranks) + 1}
    added = {str(number): {"content": text, "special": True} for text, number in special.items()}
    settings = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "added_tokens_decoder": added}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path)
    original = tiktoken.Encoding("tiny", pat_str=CUT, mergeable_ranks=ranks, special_tokens=special)
    assert tokenizer.eos_token_ids == {special["<|end|>"]}
    for text in TEXTS:
        ids = original.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("the<|end|>", add_special_tokens=False) == [ranks[b"the"], special["<|end|>"]]


@pytest.mark.slow
def test_served_from_outside(llama: Path, tmp_path: Path) -> None:
    """Text goes in and out as SentencePiece has it, whole and streamed."""
    random_checkpoint(tmp_path)
    for name in ("tokenizer.json", "generation_config.json"):
        (tmp_path / name).unlink()
    for name in ("tokenizer.model", "tokenizer_config.json"):
        shutil.copy(llama / name, tmp_path)
    original = sentencepiece.SentencePieceProcessor(model_file=str(llama / "tokenizer.model"))
    text = "hello world, the fox"
    command = ("-m", "sluice", "serve", str(tmp_path), "--port", str(port := free_port()), "--max-total-tokens", "512")
    with server(*command) as process, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        announced(process)
        ids = http.post("/tokenize", json={"prompt": text}).json()["tokens"]
        assert ids == [original.bos_id(), *original.encode(text)]
        asked = {"prompt": text, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        (choice,) = http.post("/v1/completions", json=asked).json()["choices"]
        known = [token for token in choice["token_ids"] if token < original.vocab_size()]
        words = original.decode([*ids, *known]).removeprefix(original.decode(ids))
        assert choice["text"] == words
        *events, _ = parse_events(http.post("/v1/completions", json=asked | {"stream": True}).text)
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == words


def test_a_conversion_that_encodes_otherwise(tmp_path: Path) -> None:
    """transformers converts a model without a class of its own by rules that leave out the leading space."""
    sentencepiece_model(tmp_path / "tokenizer.model", model_type="unigram")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    with pytest.raises(TokenizerError) as refused:
        load_tokenizer(tmp_path)
    message = str(refused.value)
    assert "its tokenizer.model cannot be converted: transformers' TokenizersBackend encodes 'Hello, world'" in message
    assert "tokenizer_class in tokenizer_config.json" in message


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "damaged"),
        ({"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}}, r"code of the checkpoint \(auto_map\)"),
    ],
)
def test_what_cannot_be_converted(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    """It is an error of one line, and Python code of the checkpoint does not run."""
    (tmp_path / "tokenizer.model").write_bytes(b"damaged")
    (tmp_path / "tokenization_own.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(SystemExit, match=f"^[^\n]*{reason}[^\n]*$"):
        conversion.main([str(tmp_path / "tokenizer.model")])


@pytest.mark.parametrize("package", ["transformers", "sentencepiece"])
def test_without_the_extra(tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the file that is there, and what would read it."""
    sentencepiece_model(tmp_path / "tokenizer.model", model_type="unigram")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        TokenizerError, match=rf"tokenizer.model needs {package} .*pip install 'sluice-llm\[transformers\]'"
    ):
        load_tokenizer(tmp_path)


def test_formats_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json, and no tokenizer of another format"):
        load_tokenizer(tmp_path)
    assert not has_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]")
    with pytest.raises(TokenizerError, match=r"its vocab\.txt is of no format that is accepted"):
        load_tokenizer(tmp_path)


def test_tokenizer_json_goes_first(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama 2's checkpoints have both files; no conversion is needed."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    shutil.copy(llama / "tokenizer.model", tmp_path)
    byte_level_bpe().save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).vocab_size == byte_level_bpe().get_vocab_size()
