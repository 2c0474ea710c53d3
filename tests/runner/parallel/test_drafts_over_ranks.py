"""Rows with drafts over several ranks: the answers of one rank without any."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from drafted import Planner, guesser, plain
from ranks import FakeGrammar, running
from slow import products
from sluice.attention.reference import ReferenceAttention
from sluice.models.base import PagedLM
from sluice.models.loader import load_model
from sluice.parallel.layout import Layout
from sluice.parallel.member import ALONE, Member
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.features.grammars import GrammarMasks
from sluice.runner.runner import TorchRunner
from sluice.types import SamplingParams, Submit

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
VOCAB = tiny_models.VOCAB_SIZE
GRAMMAR = FakeGrammar(VOCAB)
PAGES, PAGE, SLOTS = 64, 4, 6
ASKED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 0.0, "logprobs": 3}, ""),
    ({"seed": 3}, ""),
    ({"seed": 4, "top_k": 20, "top_p": 0.9, "logprobs": 0}, ""),
    ({"temperature": 0.0, "frequency_penalty": 1.2, "repetition_penalty": 1.4, "logit_bias": {5: 3.0}}, ""),
    ({"temperature": 0.0, "logprobs": 1}, "any"),
    ({"seed": 5, "min_p": 0.1, "presence_penalty": 0.5}, "any"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


def submits() -> list[Submit]:
    params = {"max_tokens": 12, "seed": 0}
    return [
        Submit(i, tiny_models.prompt(4 + 3 * i, i), SamplingParams(**params | changes), grammar=grammar)
        for i, (changes, grammar) in enumerate(ASKED)
    ]


def part(folder: Path, member: Member) -> PagedLM:
    return load_model(folder, dtype="float64", device=CPU, progress=False, member=member)[0]


def shape_of(folder: Path, member: Member) -> DeviceShape:
    spec = part(folder, ALONE).spec.of(member.place)
    return DeviceShape.of(spec, CPU, num_slots=SLOTS, num_pages=PAGES, page_size=PAGE, row_pages=PAGES)


@products(layout=[Layout(2), Layout(1, 2), Layout(2, 2)], is_ahead=[True, False])
def test_no_rank_changes_an_answer(folder: Path, layout: Layout, is_ahead: bool) -> None:
    """Every rank verifies the same drafts: one that kept another token, or counted others, would go its own way."""
    parts = partial(part, folder), partial(shape_of, folder)
    state = DeviceState(shape_of(folder, ALONE), new_grammars=partial(GrammarMasks, grammars=GRAMMAR))
    alone = TorchRunner(part(folder, ALONE), state, ReferenceAttention())
    expected = Planner(alone, PAGES, PAGE).run(submits())
    for how in ("right", "partly"):
        with running(layout, *parts, GRAMMAR, is_ahead=is_ahead) as ranks:
            planner = Planner(ranks.leader, PAGES, PAGE)
            assert plain(planner.run(submits(), guesser(expected, how, VOCAB))) == plain(expected)
            assert planner.accepted > 15
