"""Rows with drafts: whatever was guessed, the answer is the one without, token for token."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

import tiny_models
from drafted import Answer, Planner, guesser, plain
from ranks import FakeGrammar, FakeMatcher
from shadow_model import ShadowModel, shadow_runner, shadow_shape, shadow_state
from slow import products
from sluice.attention.reference import ReferenceAttention
from sluice.models.base import PagedLM
from sluice.models.loader import load_model
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.features.grammars import NO_GRAMMARS, GrammarMasks
from sluice.runner.grammar.base import CompiledGrammars
from sluice.runner.grammar.guidance import Bits
from sluice.runner.offload.loaders import LoadTotals
from sluice.runner.offload.offloader import OffloadFailed
from sluice.runner.runner import TorchRunner
from sluice.testing import digests, shadow_logits
from sluice.types import BatchPlan, Chunk, ChunkSlice, NewSlot, PlanError, SamplingParams, Submit

CPU = torch.device("cpu")
VOCAB = tiny_models.VOCAB_SIZE
PAGE, PAGES, MAX_TOKENS = 4, 96, 24
HOW = ["right", "wrong", "partly"]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"seed": 3},
    {"seed": 4, "temperature": 0.8, "top_k": 20, "logprobs": 2},
    {"seed": 5, "temperature": 1.2, "top_p": 0.9},
    {"seed": 6, "min_p": 0.05, "logprobs": 0},
    {"temperature": 0.0, "frequency_penalty": 1.2, "repetition_penalty": 1.4, "logprobs": 1},
    {"seed": 7, "presence_penalty": 1.5, "frequency_penalty": -0.8},
    {"seed": 8, "logit_bias": {5: 6.0, 9: 6.0}, "min_tokens": 9, "stop_token_ids": (5, 9)},
    {"temperature": 0.0, "repetition_penalty": 0.7},
]


def submits(grammar: str = "") -> list[Submit]:
    """A request for each way to sample, with prompts of several lengths."""
    params = {"max_tokens": MAX_TOKENS, "seed": 0}
    return [
        Submit(i, tiny_models.prompt(3 + 4 * i, i), SamplingParams(**params | each), grammar=grammar)
        for i, each in enumerate(SAMPLINGS)
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PagedLM:
    folder = tiny_models.save("llama", tmp_path_factory.mktemp("llama"))
    return load_model(folder, dtype="float64", device=CPU, progress=False)[0]


def runner_of(model: PagedLM, slots: int = len(SAMPLINGS), grammars: CompiledGrammars = NO_GRAMMARS) -> TorchRunner:
    """A runner whose KV is NaN where nothing was written, and which notices tokens that were not sampled."""
    shape = DeviceShape.of(model.spec, CPU, num_slots=slots, num_pages=PAGES, page_size=PAGE, row_pages=PAGES)
    state = DeviceState(shape, watched=True, new_grammars=partial(GrammarMasks, grammars=grammars))
    for layer in state.kv:
        layer.k.fill_(torch.nan)
        layer.v.fill_(torch.nan)
    return TorchRunner(model, state, ReferenceAttention())


@products(how=HOW, most=[4, 1])
def test_no_draft_changes_an_answer(model: PagedLM, how: str, most: int) -> None:
    """All ways to sample in one batch, over pages that rejected drafts have been in."""
    expected = Planner(runner_of(model), PAGES, PAGE).run(submits())
    assert len({tuple(each.tokens) for each in expected}) == len(expected)
    planner = Planner(runner_of(model), PAGES, PAGE, most=most)
    found = planner.run(submits(), guesser(expected, how, VOCAB))
    assert plain(found) == plain(expected)
    assert all(each.error is None for each in found)
    shares = {"right": (1.0, 1.0), "wrong": (0.0, 0.0), "partly": (0.2, 0.8)}[how]
    assert shares[0] <= planner.accepted / planner.drafted <= shares[1]


def test_right_drafts_save_steps(model: PagedLM) -> None:
    asked = submits()[:1]
    without = Planner(runner_of(model), PAGES, PAGE)
    expected = without.run(asked)
    drafted = Planner(runner_of(model), PAGES, PAGE)
    drafted.run(asked, guesser(expected, "right", VOCAB))
    assert (without.steps, drafted.steps) == (MAX_TOKENS, 1 + -(-(MAX_TOKENS - 1) // 5))


GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=MAX_TOKENS)


def test_the_slots_last_token_is_the_last_that_came(model: PagedLM) -> None:
    """A later step may read it from the device: of a sample behind a wrong draft it would be another request's."""
    runner = runner_of(model)
    prompt = tiny_models.prompt(6)
    (answer,) = Planner(runner_of(model), PAGES, PAGE).run([Submit(0, prompt, GREEDY)])
    first, second, third, *_ = answer.tokens
    wrong = (third + 1) % VOCAB
    runner.launch(BatchPlan(0, (NewSlot(0, Submit(0, (), GREEDY)),), (Chunk(0, 0, 0, 6, prompt, (0, 1), True),)))
    drafts = Chunk(0, 0, 6, 4, (first, second, wrong, wrong), (2,), True, num_drafts=3)
    result = runner.launch(BatchPlan(1, (), (drafts,))).wait()
    assert (result.token_ids, result.accepted) == (((second, third),), (1,))
    late = Chunk(0, 0, 8, 1, (), (), True)
    assert runner.launch(BatchPlan(2, (), (late,))).wait().token_ids == ((answer.tokens[3],),)


@pytest.mark.parametrize("how", HOW)
def test_nan_fails_a_row_where_it_is_reached(how: str) -> None:
    """A token after which the model gives NaN: behind a wrong draft it is not looked at; behind right ones the tokens
    before it come, and the row fails in the next step as without drafts."""
    shape = shadow_shape(num_pages=64, page_size=4, vocab_size=20, num_slots=8)
    asked = [Submit(i, (1, 2, i + 8), SamplingParams(seed=i, max_tokens=40)) for i in range(8)]
    expected = Planner(shadow_runner(shape, poison=7), 64, 4).run(asked)
    assert sum(each.error is not None for each in expected) > 4
    assert all(each.error is None or each.tokens[-1] == 7 for each in expected)
    found = Planner(shadow_runner(shape, poison=7), 64, 4).run(asked, guesser(expected, how, 20))
    assert plain(found) == plain(expected)


BAD_DRAFTS = {
    "no known token": ({"num_drafts": 3}, "3 drafts in length 3"),
    "fewer than none": ({"num_drafts": -1}, "-1 drafts in length 3"),
    "no ids": ({"num_drafts": 2, "token_ids": (1,)}, "1 token ids for length 3, of which 2 are drafts"),
    "not sampling": ({"num_drafts": 1, "samples": False}, "1 drafts in a chunk that does not sample"),
    "targets": ({"num_drafts": 1, "targets": (2,)}, "or does more"),
    "outside the vocabulary": ({"num_drafts": 1, "token_ids": (1, 2, 50)}, "token ids 1..50 of 50"),
}


@pytest.mark.parametrize("name", BAD_DRAFTS)
def test_bad_drafts_are_refused(name: str) -> None:
    changes, message = BAD_DRAFTS[name]
    runner = shadow_runner(shadow_shape(num_pages=8, page_size=4))
    chunk = Chunk(0, 0, 0, 3, (1, 2, 3), (0,), True)._replace(**changes)
    with pytest.raises(PlanError, match=message):
        runner.launch(BatchPlan(0, (NewSlot(0, Submit(0, (), GREEDY)),), (chunk,)))


GRAMMAR = FakeGrammar(VOCAB)


@pytest.mark.parametrize("how", HOW)
def test_a_grammar_holds_at_every_draft(model: PagedLM, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample has the mask of its own place; what the grammar forces behind a draft is not sampled, and follows the
    last token as ever; and an answer ends where it would."""
    monkeypatch.setattr("sluice.runner.features.grammars.PATIENCE", 60.0)
    asked = submits("any")
    expected = Planner(runner_of(model, grammars=GRAMMAR), PAGES, PAGE).run(asked)
    assert len({len(each.tokens) for each in expected}) > 2, "no answer was complete early"
    planner = Planner(runner_of(model, grammars=GRAMMAR), PAGES, PAGE)
    found = planner.run(asked, guesser(expected, how, VOCAB))
    assert plain(found) == plain(expected)
    assert planner.accepted > 30 or how == "wrong"


class GatedGrammar(FakeGrammar):
    """Its copies, which follow drafts, wait for a gate."""

    opened = threading.Event()
    copies = 0

    def matcher(self, *, may_force: bool = True) -> FakeMatcher:
        return GatedMatcher(self.vocab_size)


class GatedMatcher(FakeMatcher):
    is_copy = False

    def copy(self) -> FakeMatcher:
        copy = GatedMatcher(self._vocab_size, self._total)
        copy.is_copy = True
        GatedGrammar.copies += 1
        return copy

    def fill(self, bits: Bits) -> None:
        assert not self.is_copy or GatedGrammar.opened.wait(60)
        super().fill(bits)


def test_late_masks_behind_drafts_keep_no_row(model: PagedLM) -> None:
    """The row goes on by a token a step, whose own mask is there, and follows no drafts for a while."""
    asked = submits("any")[:1]
    expected = Planner(runner_of(model, grammars=GRAMMAR), PAGES, PAGE).run(asked)
    planner = Planner(runner_of(model, grammars=GatedGrammar(VOCAB)), PAGES, PAGE)
    found = planner.run(asked, guesser(expected, "right", VOCAB))
    GatedGrammar.opened.set()
    assert plain(found) == plain(expected)
    assert planner.accepted == 0 < planner.drafted
    assert GatedGrammar.copies == 1, "every step waits for masks that are not in time"


class ShadowSlices:
    """Offloaded chunks of the shadow model, whose contexts are lists."""

    ring_bytes = 0
    totals = LoadTotals()

    def __init__(self, vocab_size: int, lost: int | None = None) -> None:
        self._vocab_size = vocab_size
        self._lost = lost
        self._tokens: dict[int, tuple[int, ...]] = {}

    def run(self, step: int, part: ChunkSlice) -> torch.Tensor:
        chunk = part.chunk
        if chunk.start == self._lost:
            raise OffloadFailed("it is lost")
        tokens = self._tokens[chunk.slot] = self._tokens.get(chunk.slot, ())[: chunk.start] + chunk.token_ids
        after = [*digests(tokens)][-chunk.num_samples :] if chunk.samples else []
        logits = [shadow_logits(digest, self._vocab_size) for digest in after]
        return torch.tensor(logits, dtype=torch.float64).reshape(-1, self._vocab_size)

    def open_slots(self, slots: Sequence[int]) -> None:
        """Return: no slot is filled twice."""

    def close(self) -> None:
        """Return: nothing is loaded."""

    def failed(self, part: ChunkSlice) -> torch.Tensor:
        return torch.full((part.chunk.num_samples, self._vocab_size), torch.nan, dtype=torch.float64)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("offloaded", [{1}, {0, 2}, {0, 1, 2, 3}])
def test_offloaded_rows_have_drafts_beside_others(how: str, offloaded: set[int]) -> None:
    """Their samples follow those of the resident rows, whichever of them have drafts."""
    shape = shadow_shape(num_pages=64, page_size=4)
    params = {"seed": 3, "logprobs": 1, "max_tokens": 20}
    asked = [Submit(i, (1, 2, i + 8), SamplingParams(**params, frequency_penalty=i / 2)) for i in range(4)]
    expected = Planner(shadow_runner(shape), 64, 4).run(asked)

    def answers(which: set[int], offload: ShadowSlices) -> list[Answer]:
        runner = TorchRunner(ShadowModel(50), shadow_state(shape), ReferenceAttention(), offload=offload)
        planner = Planner(runner, 64, 4, offloaded=frozenset(which))
        found = planner.run(asked, guesser(expected, how, 50))
        assert planner.accepted > 20 or how == "wrong"
        return found

    assert plain(answers(offloaded, ShadowSlices(50))) == plain(expected)
    failed = answers({3}, ShadowSlices(50, lost=3))
    assert failed[3].error is not None
    assert plain(failed[:3]) == plain(expected[:3])
