"""A model that computes no numbers is refused at the start, and not by every request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_models
from gguf_makers import write_gguf
from sluice import LLM, SamplingParams
from sluice.models.checkpoint import CheckpointError
from tokenizer_makers import byte_tokenizer

Spoil = Callable[[dict[str, torch.Tensor]], object]
DOWN = "model.layers.1.mlp.down_proj.weight"


def made(folder: Path, spoil: Spoil) -> Path:
    tiny_models.llama(hidden_size=32, intermediate_size=64).save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    weights = load_file(folder / "model.safetensors")
    spoil(weights)
    save_file(weights, folder / "model.safetensors")
    return folder


def nan(weights: dict[str, torch.Tensor]) -> None:
    weights[DOWN][3, 5] = torch.nan


def refused(model: Path, problem: str, **options: object) -> None:
    with pytest.raises(CheckpointError, match=problem):
        LLM(model, max_total_tokens=256, **options).close()


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_the_weight_is_named(kernels: str, tmp_path: Path) -> None:
    problem = rf"computes NaN or infinite numbers for the first token .*: its weight {DOWN} holds such numbers"
    refused(made(tmp_path, nan), problem, cpu_kernels=kernels)


def test_the_weight_of_a_gguf_file_is_named(tmp_path: Path) -> None:
    """In its own words."""
    path, _ = write_gguf(made(tmp_path / "source", nan), tmp_path / "tiny.gguf", "F32", tokens=None)
    refused(path, r"its weight blk\.1\.ffn_down\.weight holds such numbers", tokenizer=tmp_path / "source")


def test_numbers_that_are_too_large_for_the_dtype(tmp_path: Path) -> None:
    def enlarge(weights: dict[str, torch.Tensor]) -> None:
        weights["model.norm.weight"].fill_(3e38)

    refused(made(tmp_path, enlarge), r"its weights do not, so the dtype may have too little room", dtype="bfloat16")


def test_another_model_is_as_before(tmp_path: Path) -> None:
    """The step leaves nothing behind, neither in its slot nor in its page."""
    folder = made(tmp_path, lambda weights: None)
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    texts = [[1, 2, 3, 4], [0], [5] * 40]
    answers = []
    for _ in range(2):
        with LLM(folder, max_total_tokens=256) as llm:
            answers.append([result.token_ids for result in llm.generate(texts, params)])
            alone = [llm.generate([text], params)[0].token_ids for text in texts]
        assert alone == answers[-1]
    assert answers[0] == answers[1]
