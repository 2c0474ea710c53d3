"""Loads checkpoints in plain layout, to compare their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sluice.models.base import PagedLM
from sluice.models.checkpoint import CheckpointError
from sluice.models.loader import load_model


def load(folder: Path, **options: Any) -> PagedLM:
    """Load a checkpoint on the CPU."""
    options = {"dtype": "auto"} | options
    return load_model(folder, device=torch.device("cpu"), progress=False, **options)[0]


def refusal(folder: Path, **options: Any) -> str:
    """Return the message with which a checkpoint is refused; it is one line."""
    with pytest.raises(CheckpointError) as caught:
        load(folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_same(ours: PagedLM, other: PagedLM) -> None:
    """Assert that two models have the same weights, bit for bit, and the same sizes."""
    theirs = dict(other.named_parameters())
    assert {name for name, _ in ours.named_parameters()} == set(theirs)
    for name, value in ours.named_parameters():
        assert value.dtype == theirs[name].dtype, name
        assert torch.equal(value, theirs[name]), name
