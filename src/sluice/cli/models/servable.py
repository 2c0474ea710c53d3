"""Whether Sluice can serve a checkpoint, seen from its files alone: no weight is read."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from sluice.models.checkpoint import (
    CheckpointConfig,
    CheckpointError,
    Fields,
    parse_config,
    read_config,
    refuse_unsupported,
)
from sluice.models.formats.gguf_config import model_config
from sluice.models.formats.gguf_open import open_gguf
from sluice.models.formats.read import read_format
from sluice.models.model_class import model_class
from sluice.models.registry import is_native
from sluice.models.stored_sizes import check_sizes
from sluice.models.weights import weight_files
from sluice.text.tokenizer_files import has_tokenizer

GENERATES = "ForCausalLM"
"""The end of the names of architectures that write text."""


class Verdict(NamedTuple):
    """What the files of a checkpoint say."""

    weights: str
    """The dtype of its weights, or how they are quantised; empty: unknown."""
    problem: str | None = None
    """Why Sluice cannot serve it; None: nothing speaks against it."""
    note: str | None = None
    """What one should know before one serves it."""


def judge(folder: Path) -> Verdict:
    """Judge the folder of a checkpoint."""
    try:
        checkpoint = read_config(folder)
    except CheckpointError as error:
        return Verdict("", _short(error, folder))
    missing = None
    try:
        weight_files(folder)
    except CheckpointError as error:
        missing = error
    if missing is None:
        try:
            check_sizes(checkpoint, folder)  # before a model is built in these sizes
        except CheckpointError as error:
            return Verdict(checkpoint.dtype or "", _short(error, folder))
    verdict = _judge_config(checkpoint)
    if verdict.problem is not None:
        return verdict
    if missing is not None:
        if any(folder.glob("*.bin")):
            return verdict._replace(problem=_short(missing, folder))
        return verdict._replace(note="its weights are not all here: they are downloaded when it is served")
    if not has_tokenizer(folder):
        return verdict._replace(problem="it has no tokenizer")
    return verdict


def judge_gguf(file: Path) -> Verdict:
    """Judge a GGUF file."""
    try:
        fields = Fields(model_config(open_gguf(file)), file.name)
        return _judge_config(parse_config(fields, file.parent))
    except CheckpointError as error:
        return Verdict("GGUF", _short(error, file.parent))


def _judge_config(checkpoint: CheckpointConfig) -> Verdict:
    name, weights = checkpoint.architecture, checkpoint.dtype or ""
    try:
        stored_as = read_format(checkpoint)
        if stored_as is not None:
            weights = stored_as.description
        if not is_native(name):
            return _judge_fallback(name, weights, is_quantized=stored_as is not None)
        architecture = model_class(name)
        refuse_unsupported(checkpoint.fields, architecture.reads)
        with torch.device("meta"):
            architecture.from_checkpoint(checkpoint, torch.bfloat16)
    except CheckpointError as error:
        return Verdict(weights, str(error))
    return Verdict(weights)


def _judge_fallback(name: str, weights: str, *, is_quantized: bool) -> Verdict:
    """Judge an architecture that Sluice does not implement itself."""
    if not name.endswith(GENERATES):
        return Verdict(weights, f"{name} is no language model that writes text")
    if is_quantized:
        return Verdict(weights, f"{name} runs through transformers, whose weights are not quantised")
    if find_spec("transformers") is None:
        return Verdict(weights, f"{name} needs the extra `transformers`, which is not installed")
    return Verdict(weights, note=f"through transformers, if that runs {name} on paged KV")


def _short(error: CheckpointError, folder: Path) -> str:
    """Return a message about a folder without its name, which is long in the hub's cache."""
    return str(error).replace(f"{folder} ", "").replace(f"{folder}/", "")
