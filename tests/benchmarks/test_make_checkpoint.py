"""Random-weight checkpoints: what is written loads everywhere, and has the size of the model whose shape it is."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest
import torch
import transformers

import tiny_models
from benchmarks.checkpoint.shapes import SHAPES, TINY_VOCAB
from benchmarks.checkpoint.tokenizer import make_tokenizer
from benchmarks.make_checkpoint import main, write_checkpoint
from paged_model import chunked_logits
from sluice.models.checkpoint import read_config
from sluice.models.loader import load_model
from sluice.models.model_class import model_class
from sluice.text.tokenizer_files import load_tokenizer

PUBLISHED = {
    "gpt2-124m": 124_439_808,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "llama-3.2-1b": 1_235_814_400,
    "qwen3.5-0.8b": 752_393_024,  # of its text model
}
"""Parameters of the published models, a tied head counted once."""
PROMPTS = ((3, 200, 4000, 17, 17, 255, 1024, 90, 33), (1999,), (64, 65, 66))


@pytest.fixture(scope="module", params=[name for name in SHAPES if name != "qwen3-1.7b"])  # tiny, it is the other
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / request.param
    write_checkpoint(folder, SHAPES[request.param].tiny(), dtype="float32", seed=3)
    return folder


def test_both_compute_the_same(tiny: Path) -> None:
    """A tensor under a wrong name, in the wrong orientation or at a wrong offset."""
    model, _ = load_model(tiny, dtype="auto", device=torch.device("cpu"), progress=False)
    reference = tiny_models.load_reference(tiny, torch.float32)
    theirs = [tiny_models.logits(reference, prompt) for prompt in PROMPTS]
    ours = chunked_logits(model, PROMPTS, page_size=4, seed=0)
    assert min(float(part.std()) for part in theirs) > 0.05
    for a, b in zip(ours, theirs, strict=True):
        assert float((a - b).abs().max()) < 1e-5


def test_every_weight_is_there_and_none_twice(tiny: Path) -> None:
    """transformers fills what is missing with values of its own, and says so only in its log."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(tiny, output_loading_info=True)
    assert not any(report.values()), report
    # Drawn weights have a mean of nothing and one deviation: a slice written twice, or zeros, would show.
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters() if weight.ndim == 2])
    assert abs(float(weights.mean())) < 1e-4
    assert abs(float(weights.std()) - 0.02) < 1e-4


def test_each_id_has_a_text_of_its_own(tiny: Path) -> None:
    """An id without text would be a token that no client of a text stream sees come."""
    vocabulary = json.loads((tiny / "config.json").read_text())["vocab_size"]
    ours, theirs = load_tokenizer(tiny), transformers.AutoTokenizer.from_pretrained(tiny)
    assert ours.vocab_size == len(theirs) == vocabulary == TINY_VOCAB
    assert len({theirs.convert_ids_to_tokens(token) for token in range(vocabulary)}) == vocabulary
    assert all(ours.decode([token]) for token in range(256 + 3, vocabulary))
    text = "The river met 12 foxes, übermütig\n"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == text


def test_a_chat_reads_the_same_in_both(tiny: Path) -> None:
    messages = [{"role": "user", "content": "Who met the fox?"}]
    theirs = transformers.AutoTokenizer.from_pretrained(tiny).apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    assert "Who met the fox?" in theirs
    ours = load_tokenizer(tiny)
    assert asyncio.run(ours.render_chat(messages)) == theirs


def test_one_end_of_sequence(tiny: Path) -> None:
    """Several of them, and random weights would end answers early."""
    config = json.loads((tiny / "config.json").read_text())
    assert read_config(tiny).eos_token_ids == (config["eos_token_id"],)
    assert load_tokenizer(tiny).eos_token_ids == {config["eos_token_id"]}


@pytest.mark.parametrize("name", SHAPES)
def test_as_many_parameters_as_the_published_model(name: str, tmp_path: Path) -> None:
    """A shape that is not the model's would measure another model. Nothing is allocated."""
    shape = SHAPES[name]
    listed = {tensor.name: tensor.shape for tensor in shape.tensors()}
    assert sum(map(math.prod, listed.values())) == PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(shape.config()))
    checkpoint = read_config(tmp_path)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
        ours = model_class(checkpoint.architecture).from_checkpoint(checkpoint, torch.bfloat16)
    assert {name: tuple(weight.shape) for name, weight in theirs.named_parameters()} == listed
    assert sum(weight.numel() for weight in ours.parameters()) == PUBLISHED[name]


def test_equal_seeds_equal_files(tmp_path: Path) -> None:
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        status = main(["--shape", "gpt2-124m", "--tiny", "--out", str(tmp_path / folder), "--seed", seed])
        assert status == 0
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name
    first, other = ((tmp_path / folder / "model.safetensors").read_bytes() for folder in "ac")
    assert first != other


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").touch()
    assert main(["--shape", "gpt2-124m", "--tiny", "--out", str(tmp_path)]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["precious"]


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vocab_size must be at least [0-9]+.*got 300"):
        make_tokenizer(300, seed=0)
