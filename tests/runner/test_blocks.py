"""Block diffusion in the runner, over plans made by hand, against passes that compute everything again."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import diffusion_reference
import tiny_models
from diffusion_reference import Answer, Rule
from sluice.attention.reference import ReferenceAttention
from sluice.models.base import PagedLM
from sluice.models.loader import load_model
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.open_blocks import Denoising, Strategy, Unmasking
from sluice.runner.runner import TorchRunner
from sluice.types import BatchPlan, Chunk, NewSlot, PlanError, SamplingParams, Submit

PAGE_SIZE = 16
GREEDY = SamplingParams(max_tokens=13, temperature=0.0, seed=0, ignore_eos=True)
WARM = SamplingParams(max_tokens=13, temperature=1.3, top_p=0.95, top_k=40, seed=5, ignore_eos=True)
STRATEGIES = {
    "low_confidence_dynamic": Strategy.DYNAMIC,
    "low_confidence_static": Strategy.STATIC,
    "sequential": Strategy.SEQUENTIAL,
}

CONFIDENCE = [0.2, 0.9, 0.5, 0.9, 0.1, 0.6]


@dataclass
class Request:
    """A request in the slot of its number."""

    number: int
    prompt: Sequence[int]
    sampling: SamplingParams
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    pages: int = 0
    passes: int = 0
    is_new: bool = True

    def chunk(self, block_size: int, at_most: int) -> Chunk:
        """Its next chunk: whole blocks, up to the open one."""
        known = len(self.tokens)
        goal = (known // block_size + 1) * block_size
        end = min(goal, self.computed + max(at_most // block_size, 1) * block_size)
        needed = -(-end // PAGE_SIZE)
        pages = tuple(range(8 * self.number + self.pages, 8 * self.number + needed))
        self.pages = max(self.pages, needed)
        drafts = max(0, end - known)
        ids = tuple(self.tokens[self.computed : min(end, known)])
        start, length = self.computed, end - self.computed
        return Chunk(self.number, self.number, start, length, ids, pages, drafts > 0, num_drafts=drafts)

    def new_slot(self) -> NewSlot:
        return NewSlot(self.number, Submit(self.number, (), self.sampling), len(self.prompt))

    def committed(self, chunk: Chunk, tokens: Sequence[int], block_size: int) -> None:
        self.computed = chunk.end - (block_size if chunk.samples else 0)
        self.passes += chunk.samples
        self.tokens += tokens


@dataclass
class Rig:
    """A tiny model, its runner and its reference."""

    folder: Path
    rule: Rule
    model: PagedLM
    runner: TorchRunner

    @classmethod
    def of(cls, folder: Path, rule: Rule, *, watched: bool = False) -> Rig:
        model, spec = load_model(folder, dtype="float64", device=torch.device("cpu"), progress=False)
        assert spec.diffusion is not None
        sizes: dict[str, Any] = {"num_slots": 4, "num_pages": 32, "page_size": PAGE_SIZE, "row_pages": 8}
        unmasking = Unmasking(STRATEGIES[rule.strategy], rule.threshold, rule.steps or rule.block_size)
        state = DeviceState(
            DeviceShape.of(spec, torch.device("cpu"), **sizes),
            watched=watched,
            denoising=Denoising(spec.diffusion, unmasking),
        )
        for layer in state.kv:
            layer.k.fill_(torch.nan)
            layer.v.fill_(torch.nan)
        return cls(folder, rule, model, TorchRunner(model, state, ReferenceAttention()))

    def run(self, requests: Sequence[Request], at_most: int) -> None:
        """Run them side by side, one arriving with each step, chunks of `at_most` tokens or so."""
        size, step = self.rule.block_size, 0
        while todo := [each for each in requests if self._wants(each)][: step + 1]:
            opened = tuple(each.new_slot() for each in todo if each.is_new)
            for each in todo:
                each.tokens = each.tokens or list(each.prompt)
                each.is_new = False
            chunks = [each.chunk(size, at_most) for each in todo]
            result = self.runner.launch(BatchPlan(step, opened, tuple(chunks))).wait()
            assert result.accepted == (0,) * len(result.token_ids)
            brought = iter(result.token_ids)
            for each, chunk in zip(todo, chunks, strict=True):
                each.committed(chunk, next(brought) if chunk.samples else (), size)
            step += 1

    @staticmethod
    def _wants(request: Request) -> bool:
        assert request.sampling.max_tokens is not None
        return request.is_new or len(request.tokens) - len(request.prompt) < request.sampling.max_tokens

    def expected(self, request: Request, sample_index: int = 0) -> Answer:
        reference = diffusion_reference.load(self.folder, torch.float64)
        return diffusion_reference.generate(reference, request.prompt, request.sampling, self.rule, sample_index)


def check(rig: Rig, request: Request) -> None:
    assert request.sampling.max_tokens is not None
    found = request.tokens[len(request.prompt) :][: request.sampling.max_tokens]
    answer = rig.expected(request)
    assert found == answer.token_ids
    assert request.passes == sum(answer.passes), "passes of all blocks"


RULES = [
    Rule(1, threshold=0.05),
    Rule(4, threshold=0.05),
    Rule(8, threshold=0.02, steps=3),
    Rule(8, "low_confidence_static", steps=3),
    Rule(4, "sequential"),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_mixed_steps_give_the_tokens_of_the_reference(rule: Rule, tmp_path: Path) -> None:
    """Open blocks beside chunks of prompts: a state of another slot, a stale block, a wrong page."""
    rig = Rig.of(tiny_models.save_sdar(tmp_path, rule.block_size), rule)
    lengths = (21, 5, 32)
    requests = [
        Request(number, tiny_models.prompt(length, number), WARM if number == 1 else GREEDY)
        for number, length in enumerate(lengths)
    ]
    rig.run(requests, at_most=16)
    for request in requests:
        check(rig, request)


def test_a_slot_that_is_filled_anew_begins_its_block_again(tmp_path: Path) -> None:
    """The next request in a slot, or one that was preempted, would go on with the old block."""
    rule = Rule(8, "sequential")
    rig = Rig.of(tiny_models.save_sdar(tmp_path, 8), rule)
    prompt = tiny_models.prompt(8)
    first = Request(0, prompt, GREEDY, list(prompt))
    chunk = first.chunk(8, 64)
    rig.runner.launch(BatchPlan(0, (first.new_slot(),), (chunk,))).wait()
    second = Request(0, tiny_models.prompt(8, 1), GREEDY)
    rig.run([second], at_most=64)
    check(rig, second)


def test_watched_blocks_give_the_same_tokens(tmp_path: Path) -> None:
    """A pass over a block that is open was taken for one that is not."""
    rule = Rule(8, threshold=0.02, steps=3)
    rig = Rig.of(tiny_models.save_sdar(tmp_path, 8), rule, watched=True)
    requests = [Request(number, tiny_models.prompt(5 + 8 * number, number), GREEDY) for number in range(2)]
    rig.run(requests, at_most=16)
    for request in requests:
        check(rig, request)


@pytest.mark.parametrize("watched", [False, True])
def test_a_pass_over_a_whole_block_is_noticed(watched: bool, tmp_path: Path) -> None:
    """A step that is planned once more than its block has passes brings whatever lies there now."""
    rig = Rig.of(tiny_models.save_sdar(tmp_path, 4), Rule(4, "sequential", steps=1), watched=watched)
    one = Request(0, (7, 8), GREEDY, [7, 8])
    other = Request(1, (9, 8), GREEDY, [9, 8])
    chunk = one.chunk(4, 4)
    assert rig.runner.launch(BatchPlan(0, (one.new_slot(),), (chunk,))).wait().token_ids[0], "one pass"
    plan = BatchPlan(1, (other.new_slot(),), (chunk, other.chunk(4, 4)))
    errors = rig.runner.launch(plan).wait().errors
    assert [error.row for error in errors] == ([0] if watched else [])
    assert all("a block that was not open" in error.message for error in errors)


def test_a_row_with_nan_ends_alone(tmp_path: Path) -> None:
    """A request whose logits are NaN gets an error; its neighbours go on."""
    rig = Rig.of(tiny_models.save_sdar(tmp_path, 4), Rule(4))
    rig.model.lm_head = deepcopy(rig.model.lm_head)  # it is the embedding
    rig.model.embed_tokens.weight.data[7] = torch.nan
    requests = [Request(0, (7, 8), GREEDY, [7, 8]), Request(1, (9, 8), GREEDY, [9, 8])]
    chunks = tuple(each.chunk(4, 4) for each in requests)
    result = rig.runner.launch(BatchPlan(0, tuple(each.new_slot() for each in requests), chunks)).wait()
    assert [error.row for error in result.errors] == [0]
    assert result.token_ids == ((), ()), "of two masked positions one has its token"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"start": 2, "length": 6}, "tokens 2 to 8 are no whole blocks of 4"),
        ({"length": 7}, "tokens 0 to 7 are no whole blocks of 4"),
        ({"num_drafts": 5}, "5 masked positions in a block of 4"),
        ({"num_drafts": 1}, "6 token ids for length 8 with 1 masked positions"),
        ({"samples": False}, "2 masked positions in a chunk that samples: False"),
    ],
    ids=str,
)
def test_plans_that_are_refused(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    rig = Rig.of(tiny_models.save_sdar(tmp_path, 4), Rule(4))
    request = Request(0, tiny_models.prompt(6), GREEDY, list(tiny_models.prompt(6)))
    chunk = request.chunk(4, 64)._replace(**changes)
    with pytest.raises(PlanError, match=problem):
        rig.runner.launch(BatchPlan(0, (request.new_slot(),), (chunk,)))


def chosen(strategy: Strategy, masked: list[int], passes: int = 0, steps: int = 6, threshold: float = 0.7) -> list[int]:
    is_masked = torch.tensor([[column in masked for column in range(6)]])
    found = Unmasking(strategy, threshold, steps).choose(is_masked, torch.tensor([CONFIDENCE]), torch.tensor([passes]))
    return found[0].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("masked", "steps", "expected"),
    [
        (range(6), 6, [1, 3]),
        (range(6), 2, [1, 3, 5]),
        ([0, 4], 6, [0]),
        ([0, 2, 4], 2, [0, 2, 4]),
        ([1, 3], 6, [1, 3]),
        ([], 6, []),
    ],
    ids=str,
)
def test_dynamic_takes_all_above_the_threshold_and_at_least_its_share(
    masked: list[int], steps: int, expected: list[int]
) -> None:
    """None above it would be a pass without progress, for ever."""
    assert chosen(Strategy.DYNAMIC, list(masked), steps=steps) == expected


@pytest.mark.parametrize(
    ("passes", "steps", "expected"), [(0, 6, [1]), (0, 4, [1, 3]), (1, 4, [1, 3]), (2, 4, [1]), (0, 1, list(range(6)))]
)
def test_static_takes_the_most_confident(passes: int, steps: int, expected: list[int]) -> None:
    """Six positions in four passes: 2, 2, 1, 1. Of equal ones the first is taken."""
    assert chosen(Strategy.STATIC, list(range(6)), passes, steps) == expected


def test_sequential_takes_the_first_masked_ones() -> None:
    assert chosen(Strategy.SEQUENTIAL, [2, 4, 5], steps=3) == [2, 4]


def test_rows_are_apart() -> None:
    """A row's passes and masks are its own."""
    masked = torch.tensor([[True] * 4, [False, True, True, False]])
    confidence = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.9, 0.1, 0.3, 0.9]])
    found = Unmasking(Strategy.STATIC, 0.9, 3).choose(masked, confidence, torch.tensor([0, 1]))
    assert found.tolist() == [[True, True, False, False], [False, False, True, False]]
