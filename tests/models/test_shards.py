"""Models that are cut into shards and stages, over threads: their logits are those of the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from paged_model import chunked_logits
from sluice.models.loader import load_model
from sluice.parallel.layout import Layout
from sluice.parallel.member import Member
from sluice.testing.groups import run_ranks, thread_members

PROMPTS = tuple(tiny_models.prompt(length, seed) for seed, length in enumerate((25, 1, 12)))
CPU = torch.device("cpu")
WHOLE = Layout()


def logits(folder: Path, layout: Layout = WHOLE, dtype: str = "float64", **options: Any) -> torch.Tensor:
    """Return the logits of all prompts, [tokens, vocab_size], with each rank in a thread."""

    def body(member: Member) -> torch.Tensor:
        model, _ = load_model(folder, dtype=dtype, device=CPU, progress=False, member=member, **options)
        return torch.cat(chunked_logits(model, PROMPTS, page_size=4, seed=0))

    members = thread_members(layout)
    found = run_ranks(members, body)
    return torch.cat([part for member, part in zip(members, found, strict=True) if member.place.is_last], 1)


FAMILIES: dict[str, Callable[..., Any]] = {
    "llama, untied": tiny_models.llama,
    "llama with biases": tiny_models.llama2,
    "windows": tiny_models.mistral,
    "tied, biases of q, k and v": tiny_models.qwen2,
    "head norms": tiny_models.qwen3,
    "gpt2": lambda **sizes: tiny_models.gpt2(n_embd=32, n_head=4, **sizes),
}
SIZES = {"vocab_size": 197}
"""Of a vocabulary whose last shard of four is shorter than the others."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Ranks that each wait for threads of their own take several times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    FAMILIES[request.param](**SIZES).save_pretrained(tmp_path)
    return tmp_path


def test_parts_compute_what_the_whole_model_does(folder: Path) -> None:
    """A head of another shard, a bias that is added once per shard, a sum that is left out; a residual that is lost
    between stages, or a first delta that is added in each."""
    whole = logits(folder)
    for shards in (2, 4):  # of two KV heads: with four shards, two have the same one
        assert (logits(folder, Layout(shards)) - whole).abs().max() <= 1e-12
    for stages in (2, 3):
        assert torch.equal(logits(folder, Layout(1, stages)), whole)
    assert torch.equal(logits(folder, Layout(2, 2)), logits(folder, Layout(2)))
