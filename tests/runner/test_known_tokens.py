"""A vocabulary is often padded beyond its tokenizer: what is behind its last id is never sampled."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tiny_models
from gguf_makers import write_gguf
from sluice import LLM, SamplingParams
from sluice.text.token_ids import num_token_ids
from tokenizer_makers import byte_tokenizer

VOCAB_SIZE = 320
HOT = SamplingParams(max_tokens=100, temperature=3.0, ignore_eos=True, seed=1, n=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A random model with more rows than tokens."""
    tiny_models.llama(vocab_size=VOCAB_SIZE).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def sampled(llm: LLM) -> set[int]:
    (output,) = llm.generate([[5, 6, 7]], HOT)
    return {token for sample in output.samples for token in sample.token_ids}


def test_ids_behind_the_tokenizer_are_never_sampled(folder: Path) -> None:
    """119 of 900 tokens were such ids, which have no text."""
    with LLM(folder, max_total_tokens=1024, threads=1) as llm:
        assert max(sampled(llm)) > 256, "without a tokenizer all ids may be sampled"
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    with LLM(folder, max_total_tokens=1024, threads=1) as llm:
        assert max(sampled(llm)) <= 256
        (output,) = llm.generate([[5, 6, 7]], replace(HOT, n=1, logit_bias={300: 100.0}, logprobs=20))
        assert output.logprobs is not None
        assert all(token <= 256 for item in output.logprobs for token, _ in item.top)


def test_an_end_token_of_the_config_may_come(folder: Path) -> None:
    """The model could never end otherwise."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 290}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    with LLM(folder, max_total_tokens=1024, threads=1) as llm:
        assert 256 < max(sampled(llm)) <= 290


def test_the_ids_of_a_tokenizer_are_counted(folder: Path) -> None:
    assert num_token_ids(folder) is None
    byte_tokenizer(["<a>", "<b>"]).save(str(folder / "tokenizer.json"))
    assert num_token_ids(folder) == 258
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"300": {"content": "<c>"}}}))
    assert num_token_ids(folder) == 301
    (folder / "tokenizer.json").write_text("{")
    assert num_token_ids(folder) is None


def test_the_ids_of_a_gguf_file_are_counted(folder: Path) -> None:
    byte_tokenizer(["<a>", "<b>"]).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": ""}))
    (opened := folder.parent / "opened").mkdir()
    write_gguf(folder, opened / "model.gguf", "F32")
    assert num_token_ids(opened) == 258
