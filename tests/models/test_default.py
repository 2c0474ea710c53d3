"""The bundled model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from paged_model import chunked_logits
from sluice.config import cache_folder
from sluice.models.default import MAX_POSITIONS, default_model_folder, write_checkpoint
from sluice.models.loader import load_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return default_model_folder(tmp_path_factory.mktemp("cache") / "not" / "there")


def test_is_made_once(folder: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert default_model_folder(folder.parent) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert list(folder.parent.iterdir()) == [folder]


def test_is_the_same_everywhere(folder: Path, tmp_path: Path) -> None:
    """Two machines that babble differently could not compare their outputs."""
    write_checkpoint(tmp_path)
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_starts_may_race_for_it(tmp_path: Path) -> None:
    """Several servers started at once on a fresh machine: one copy, no leftovers, nobody fails."""
    start = Barrier(3)

    def make(_: int) -> Path:
        start.wait()
        return default_model_folder(tmp_path)

    with ThreadPoolExecutor(3) as pool:
        folders = set(pool.map(make, range(3)))
    assert list(tmp_path.iterdir()) == list(folders)


def test_unwritable_cache_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        default_model_folder(tmp_path / "file")


def test_loads_here_as_in_transformers(folder: Path) -> None:
    model, spec = load_model(folder, dtype="auto", device=torch.device("cpu"), progress=False)
    assert (spec.dtype, spec.max_model_len) == (torch.float32, MAX_POSITIONS)
    reference = AutoModelForCausalLM.from_pretrained(folder)
    assert set(spec.eos_token_ids) == set(reference.generation_config.eos_token_id)
    tokens = list(range(40, 70))
    ours = chunked_logits(model, [tokens], page_size=8, seed=0)[0]
    with torch.inference_mode():
        theirs = reference(torch.tensor([tokens])).logits[0]
    assert float((ours - theirs).abs().max()) < 1e-4


def test_tokenizer_keeps_any_text(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in ("The sluice gate.", "Grüße, 水門 🌊", "\x00\t  \n two  spaces ", "<|im_end|>"):
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids) == text
        assert max(ids) < len(tokenizer)
    assert len(tokenizer("The river rises in the night.").input_ids) < 20


def test_chat_template(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(("value", "expected"), [("/somewhere", "/somewhere/sluice"), ("relative", None), ("", None)])
def test_cache_folder_follows_the_environment(
    value: str, expected: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == Path(expected or tmp_path / ".cache" / "sluice")
