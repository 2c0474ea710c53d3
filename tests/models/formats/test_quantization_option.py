"""Serving a checkpoint of quantised weights, and the option that names its format."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import quantized_checkpoints as made
from models.formats.test_compressed import SCHEMES, config_of, storing
from random_checkpoint import random_checkpoint
from sluice import LLM, SamplingParams
from sluice.models.checkpoint import CheckpointError

PROMPT = "Every boat goes through the lock"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint of four-bit weights with a tokenizer, and the plain one that they stand for."""
    source = random_checkpoint(tmp_path_factory.mktemp("random"))
    scheme = SCHEMES["int4-zero-points"]
    return made.quantized(source, tmp_path_factory.mktemp("both"), config_of(*scheme), storing(*scheme))


def answer(folder: Path) -> list[int]:
    with LLM(folder, max_total_tokens=128) as llm:
        return llm.generate(PROMPT, SamplingParams(max_tokens=12, temperature=0, ignore_eos=True))[0].token_ids


def test_tokens_are_those_of_the_plain_weights(folders: tuple[Path, Path]) -> None:
    """What a user sees of a quantised checkpoint is what its numbers say, and nothing else."""
    quantized, plain = folders
    assert answer(quantized) == answer(plain)


def test_it_names_what_the_checkpoint_is(folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    """vLLM's and SGLang's flag is a promise about the checkpoint: one that does not hold is a mistake to be told of."""
    quantized, plain = folders
    with caplog.at_level(logging.INFO, "sluice"), LLM(quantized, max_total_tokens=64, quantization="w8a8_int8") as llm:
        config, reasons = llm.info.config.model, llm.info.reasons
    said = "compressed-tensors: W4A16 int4, groups of 16, dequantised to bfloat16"
    assert (config.quantization, reasons["quantization"]) == ("compressed-tensors", said)
    assert [record.message for record in caplog.records if said in record.message] != []
    with pytest.raises(CheckpointError, match="--quantization none: the checkpoint is compressed-tensors; leave the"):
        LLM(quantized, quantization="none")
    with pytest.raises(CheckpointError, match="--quantization compressed-tensors: the checkpoint's weights are not qu"):
        LLM(plain, quantization="compressed-tensors")
