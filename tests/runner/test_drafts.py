"""Rows with drafts: whatever was guessed, the answer is the one without, token for token."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiny_models
from drafted import Answer, Planner, guesser
from shadow_model import shadow_runner, shadow_shape
from sluice.attention.reference import ReferenceAttention
from sluice.models.base import PagedLM
from sluice.models.loader import load_model
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.runner import TorchRunner
from sluice.types import BatchPlan, Chunk, NewSlot, PlanError, SamplingParams, Submit

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


def submits(changes: list[dict[str, Any]] | None = None) -> list[Submit]:
    """A request for each way to sample, with prompts of several lengths."""
    params = {"max_tokens": MAX_TOKENS, "seed": 0}
    return [
        Submit(i, tiny_models.prompt(3 + 4 * i, i), SamplingParams(**params | each))
        for i, each in enumerate(SAMPLINGS if changes is None else changes)
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PagedLM:
    folder = tiny_models.save("llama", tmp_path_factory.mktemp("llama"))
    return load_model(folder, dtype="float64", device=CPU, progress=False)[0]


def runner_of(model: PagedLM, slots: int = len(SAMPLINGS)) -> TorchRunner:
    """A runner whose KV is NaN where nothing was written, and which notices tokens that were not sampled."""
    shape = DeviceShape.of(model.spec, CPU, num_slots=slots, num_pages=PAGES, page_size=PAGE, row_pages=PAGES)
    state = DeviceState(shape, watched=True)
    for layer in state.kv:
        layer.k.fill_(torch.nan)
        layer.v.fill_(torch.nan)
    return TorchRunner(model, state, ReferenceAttention())


def plain(answers: list[Answer]) -> list[object]:
    """Answers to compare: a sum of another order of rows differs in its last bits."""
    return [
        (
            each.tokens,
            each.error,
            [(one.token_id, round(one.logprob, 9), [token for token, _ in one.top]) for one in each.logprobs],
        )
        for each in answers
    ]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("most", [1, 4])
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
