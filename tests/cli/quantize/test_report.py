"""`sluice quantize --report`: its figures must be those of the definitions, computed another way."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn import functional

from any_checkpoint import any_checkpoint
from compiled import library
from paged_model import chunked_logits
from sluice import cli
from sluice.cli.quantize.report import relative_error
from sluice.kernels.cpu.library import Kernels
from sluice.models.block_quantizers import EightBits
from sluice.models.loader import load_model
from sluice.models.packers import NativePacker
from sluice.models.quantized import Int8Weight

ROOT = Path(__file__).parents[3]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text((ROOT / "README.md").read_text(encoding="utf-8")[:3000], encoding="utf-8")
    return path


def expected_reading(text: Path, quantization: str) -> tuple[float, torch.Tensor]:
    """Perplexity and the most likely tokens, from all logits at once."""
    packer = NativePacker(Kernels(library(), library().best(), 1))
    model, _ = load_model(
        any_checkpoint(),
        dtype="bfloat16",
        device=torch.device("cpu"),
        progress=False,
        quantization=quantization,
        packer=packer,
    )
    ids = Tokenizer.from_file(str(any_checkpoint() / "tokenizer.json")).encode(text.read_text()).ids
    logits = chunked_logits(model, [ids], page_size=32, seed=0, max_chunk=128)[0].float()[:-1]
    return math.exp(functional.cross_entropy(logits, torch.tensor(ids[1:]))), logits.argmax(-1)


def test_figures_are_those_of_the_definitions(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A perplexity of tokens that are shifted by one, or errors of another weight."""
    assert cli.main(["quantize", str(any_checkpoint()), "-q", "int8", "--report", "--text", str(text), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    stored = load_file(any_checkpoint() / "model.safetensors")
    matrices = {name: value.float() for name, value in stored.items() if value.dim() == 2}
    found = {weight["name"]: weight["relative_error"]["int8"] for weight in report["weights"]}
    assert found.keys() == matrices.keys()
    for name, value in matrices.items():
        difference = EightBits.quantize(value).dense(torch.float32) - value
        assert found[name] == pytest.approx(float(difference.norm() / value.norm()), rel=1e-3)
    (plain, best), (int8, best_int8) = (expected_reading(text, name) for name in ("none", "int8"))
    assert report["text"]["tokens"] == len(best)
    models = report["text"]["models"]
    # Attention in other chunks rounds elsewhere.
    assert models["bfloat16"]["perplexity"] == pytest.approx(plain, rel=0.01)
    assert models["int8"]["perplexity"] == pytest.approx(int8, rel=0.01)
    assert models["bfloat16"]["agreement"] == 1
    assert models["int8"]["agreement"] == pytest.approx(float((best == best_int8).float().mean()), abs=0.03)


def test_the_table_names_every_weight(capsys: pytest.CaptureFixture[str]) -> None:
    """A layer that is left out of the table looks like one without an error."""
    assert cli.main(["quantize", str(any_checkpoint()), "-q", "int4", "--report"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [name for name, value in load_file(any_checkpoint() / "model.safetensors").items() if value.dim() == 2]
    assert sorted(line.split()[0] for line in lines[1:-1]) == sorted(names)
    assert all(line.endswith("%") for line in lines[1:])


def test_weights_without_an_error() -> None:
    """A matrix of zeros has no norm to divide by; one of whole numbers up to 127 is kept as it is."""
    assert relative_error(torch.zeros(4, 8), Int8Weight) == 0
    assert relative_error(torch.arange(-127.0, 128.0)[None], Int8Weight) == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "give --output FOLDER"),
        (("--output", "x"), "--output needs --quantization, one of int8, int4"),
        (("-q", "int8", "--output", "x", "--text", "y"), "--text needs --report"),
        (("-q", "int8", "--output", "x", "--json"), "--json needs --report"),
        (("--report", "--text", "missing.txt"), "--text missing.txt cannot be read"),
        (("a", "--model", "b", "--report"), "two models are given: a and --model b"),
        (("-q", "int3", "--report"), "invalid choice: 'int3'"),
        (("--report",), "name a MODEL in safetensors: the default one is a GGUF file"),
    ],
)
def test_wrong_command_lines(arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Flags without an effect; a typo that is found after minutes of reading weights."""
    try:
        status = cli.main(["quantize", *arguments])
    except SystemExit as end:
        status = int(str(end.code))
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1


def test_a_text_of_one_token_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("a")
    written = ["--output", str(tmp_path / "out"), "--quantization", "int8"]
    assert cli.main(["quantize", str(any_checkpoint()), "--report", "--text", str(tmp_path / "text"), *written]) == 1
    assert "--text must hold at least two tokens" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
