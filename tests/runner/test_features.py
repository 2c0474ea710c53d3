"""The contract of features: one more of them takes its file and a line in the list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from shadow_model import shadow_runner, shadow_shape
from sluice.runner import device_state
from sluice.runner.features import NewGrammars, make_features
from sluice.runner.features.base import Feature, Outcome, StagedFeature, StepLogits
from sluice.runner.inputs import HostBatch, Ints
from sluice.types import BatchPlan, Chunk, NewSlot, PlanError, SamplingParams, Submit

GREEDY = SamplingParams(temperature=0.0, seed=0)
FORBIDS = SamplingParams(temperature=0.0, seed=0, stop_token_ids=(1, 2, 3))
SHAPE = shadow_shape(num_pages=8, page_size=4, vocab_size=5)


class StagedForbidden(StagedFeature):
    def __init__(self, rows: Ints, ids: Ints) -> None:
        self.arrays = (rows, ids)

    def arrive(self, tensors: Sequence[torch.Tensor]) -> None:
        self.entries = tuple(tensors)

    def apply(self, logits: StepLogits) -> None:
        logits.writable().index_put_(self.entries, torch.tensor(-torch.inf, dtype=logits.writable().dtype))

    def sampled(self, logits: StepLogits) -> tuple[torch.Tensor, ...]:
        return (logits.tokens + 100,)

    def report(self, tensors: Sequence[torch.Tensor], outcome: Outcome) -> None:
        (looked_at,) = tensors
        assert looked_at.tolist() == [token + 100 for token in outcome.tokens]
        assert outcome.tokens[0] in (0, 4), "the mask lets no other token through"
        outcome.failed[0] = "a feature says so"


class Forbidden(Feature):
    """A mask as a grammar makes one: stop tokens are never sampled."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self.ids: dict[int, tuple[int, ...]] = {}
        self.staged = 0

    def problem(self, new: NewSlot) -> str | None:
        return "a mask of everything" if len(new.sampling.stop_token_ids) == 5 else None

    def forget(self, slot: int) -> None:
        self.ids.pop(slot, None)

    def fill(self, new: NewSlot) -> None:
        if new.sampling.stop_token_ids:
            self.ids[new.slot] = new.sampling.stop_token_ids

    def stage(self, host: HostBatch) -> StagedForbidden | None:
        found = [
            (row, token) for row, slot in enumerate(host.sample_slots.tolist()) for token in self.ids.get(slot, ())
        ]
        if not found:
            return None
        self.staged += 1
        rows, ids = np.array(found, dtype=np.int64).T
        return StagedForbidden(rows, ids)


def plan_of(*params: SamplingParams) -> BatchPlan:
    """One prompt of three tokens in each slot, which all sample."""
    new = tuple(NewSlot(slot, Submit(slot, (), each)) for slot, each in enumerate(params))
    chunks = tuple(Chunk(slot, slot, 0, 3, (slot, 1, 2), (slot,), True) for slot in range(len(params)))
    return BatchPlan(0, new, chunks)


def with_forbidden(
    num_slots: int, vocab_size: int, device: torch.device, new_grammars: NewGrammars, *rest: Any
) -> Sequence[Feature]:
    """Return all features and one more, the first."""
    features = make_features(num_slots, vocab_size, device, new_grammars, *rest)
    return (Forbidden(num_slots, vocab_size, device), *features)


def test_a_feature_masks_looks_and_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contract that only fits the features there are; a row that the mask does not name keeps its token."""
    plain = shadow_runner(SHAPE).launch(plan_of(GREEDY, GREEDY)).wait()
    monkeypatch.setattr(device_state, "make_features", with_forbidden)
    runner = shadow_runner(SHAPE)
    result = runner.launch(plan_of(FORBIDS, GREEDY)).wait()
    assert result.token_ids == ((), plain.token_ids[1])
    assert [(error.row, error.message) for error in result.errors] == [(0, "a feature says so")]
    assert runner.launch(plan_of(GREEDY, GREEDY)).wait() == plain, "the slot remembers its former request"
    (feature,) = (each for each in runner._state.features if isinstance(each, Forbidden))
    assert feature.staged == 1


def test_a_feature_may_refuse_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_state, "make_features", with_forbidden)
    with pytest.raises(PlanError, match="a mask of everything"):
        shadow_runner(SHAPE).launch(plan_of(SamplingParams(seed=0, stop_token_ids=range(5))))
