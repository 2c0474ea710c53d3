"""What is said of a GGUF file before it is loaded: `sluice explain` and `sluice models` with a path."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_models
from gguf_makers import write_gguf
from sluice import LLM, cli
from sluice.cli.models import estimates
from sluice.config import ConfigError
from sluice.models.catalog.gguf_sizes import GGUFSizes
from sluice.sim.hardware import predicted_machine
from tokenizer_makers import byte_tokenizer

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
Write = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    """Write a model as a GGUF file `tiny.gguf` of Q4_K, with its head in Q6_K."""

    def write(*, split: int = 0, **changes: object) -> Path:
        tiny_models.llama(**SIZES, num_key_value_heads=4, vocab_size=300, **changes).save_pretrained(
            tmp_path / "source"
        )
        byte_tokenizer().save(str(tmp_path / "source" / "tokenizer.json"))
        others = {"lm_head": "Q6_K"}
        (tmp_path / "files").mkdir()
        return write_gguf(
            tmp_path / "source", tmp_path / "files" / "tiny.gguf", "Q4_K", tokens=None, others=others, split=split
        )[0]

    return write


@pytest.mark.parametrize("tied", [False, True])
def test_the_memory_is_that_of_a_loaded_model(tied: bool, written: Write) -> None:
    """A machine is chosen by this figure."""
    path = written(tie_word_embeddings=tied)
    tokenizer = path.parents[1] / "source"
    found = GGUFSizes.read(path)
    with LLM(path, tokenizer=tokenizer, max_total_tokens=256) as llm:
        computes_blocks = "computed as stored" in llm.info.reasons["quantization"]
        loaded, token_bytes = llm.memory_report()["weights_bytes"], llm.info.token_bytes
        stored = llm.info.stored
    estimate = found.estimate(None, computes_blocks=computes_blocks)
    # Packed matrices have rows in blocks of 32.
    assert loaded == pytest.approx(estimate.weights_bytes, rel=0.05)
    assert found.sizes.token_bytes == token_bytes
    assert (stored.format, stored.level, stored.numbers) == ("gguf", "Q4_K", found.numbers)
    assert stored.nbytes == found.file_bytes == path.stat().st_size


def test_an_embedding_is_not_read_for_every_token(written: Write) -> None:
    path = written(tie_word_embeddings=False)
    whole = GGUFSizes.read(path).estimate(None, computes_blocks=True)
    assert whole.read_bytes == whole.weights_bytes < path.stat().st_size - 300 * 144


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    assert cli.main(["explain", *arguments, "--device", "cpu", "--json"]) == 0
    found: dict[str, dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("split", [0, 8])
def test_explain_tells_what_a_file_says(split: int, written: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the file, and of a folder with it, split or not."""
    path = written(split=split)
    for place in (path, path.parent):
        found = explained(capsys, str(place))
        assert "Q4_K (15), Q6_K (1)" in str(found["weights_bytes"]["reason"])
        assert found["kv_token_bytes"]["value"] == 2 * 2 * 4 * 32 * 2
        assert found["max_model_len"]["value"] == GGUFSizes.read(path).sizes.max_model_len
        rate, bandwidth = found["most_tokens_per_second"]["value"], found["memory_bandwidth"]["value"]
        assert isinstance(rate, float)
        assert isinstance(bandwidth, int)
        assert rate > 0.9 * bandwidth / path.parent.stat().st_size / 1e3
    again = explained(capsys, str(path), "--quantization", "int8")["weights_bytes"]
    assert "in int8, made of Q4_K (15), Q6_K (1)" in str(again["reason"])
    plain = explained(capsys, str(path), "--quantization", "none")["weights_bytes"]
    assert "in 16 bits" in str(plain["reason"])
    assert int(str(plain["value"])) > int(str(again["value"]))


def test_explain_knows_the_default_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """If it is on this machine; nothing is downloaded for a figure."""
    monkeypatch.setattr(estimates, "default_file", lambda cache: None)
    reason = explained(capsys)["weights_bytes"]["reason"]
    assert reason == "not known: the default model, SmolLM2-135M-Instruct, is not on this machine yet"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nope.gguf", "there is no file nope.gguf"),
        ("broken.gguf", "broken.gguf is not a GGUF file"),
        ("words.txt", "words.txt is neither a folder nor a GGUF file"),
        (".", ". holds 2 GGUF files: name one of them: broken.gguf, other.gguf"),
    ],
)
def test_explain_says_why_a_file_tells_nothing(
    name: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in ("broken.gguf", "other.gguf", "words.txt"):
        (tmp_path / file).write_text("words")
    monkeypatch.chdir(tmp_path)
    reason = explained(capsys, name)["weights_bytes"]["reason"]
    assert f"not known: {problem}" in str(reason)


def test_models_of_a_path(written: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(split=8)
    (path.parent / "broken.gguf").write_text("words")
    assert cli.main(["models", str(path.parent), "--memory-bandwidth", "10"]) == 0
    broken, tiny = capsys.readouterr().out.splitlines()[1:3]
    assert broken.endswith("no: broken.gguf is not a GGUF file: it does not begin with GGUF")
    assert tiny.startswith(str(path))
    assert "GGUF, Q4_K (15), Q6_K (1)" in tiny
    assert tiny.endswith(f"serve {path}")
    assert cli.main(["models", str(path), "--memory-bandwidth", "10", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["cached"]
    assert found["bytes"] == sum(part.stat().st_size for part in path.parent.glob("tiny-*"))
    assert found["most_tokens_per_second"] == pytest.approx(10e9 / found["weights_bytes"], rel=0.01)
    assert cli.main(["models", str(path.parents[1] / "source"), "--memory-bandwidth", "10"]) == 0
    assert "source" in capsys.readouterr().out.splitlines()[1]
    assert cli.main(["models", "nope.gguf"]) == 1
    assert "there is no file 'nope.gguf'" in capsys.readouterr().err


@pytest.mark.parametrize("split", [0, 8])
def test_a_file_can_be_simulated_on_a_machine_that_is_not_at_hand(split: int, written: Write) -> None:
    """Its bytes were read as the text of a config.json."""
    path = written(split=split)
    assert predicted_machine("h100", path).token_bytes == GGUFSizes.read(path).sizes.token_bytes
    (broken := path.parent / "broken.gguf").write_bytes(b"GGUF\xc3")
    with pytest.raises(ConfigError, match=r"--model: .*broken\.gguf"):
        predicted_machine("h100", broken)
