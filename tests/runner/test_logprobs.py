"""Log-probabilities from logits: right, in slices of bounded size, and on the right rows of a result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tiny_models
from any_checkpoint import any_checkpoint
from features import sampling_rows
from shadow_model import ShadowModel, shadow_runner, shadow_shape, shadow_state
from sluice import LLM
from sluice.attention.reference import ReferenceAttention
from sluice.engine.engine import Engine
from sluice.engine.messages import Submit
from sluice.kv.manager import KVManager
from sluice.models.base import CausalLM
from sluice.models.loader import load_model
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.features.logprobs import Logprobs, score_rows
from sluice.runner.runner import TorchRunner
from sluice.scheduler.scheduler import Scheduler
from sluice.testing import ManualLink, digests, shadow_logprobs
from sluice.types import BatchPlan, Chunk, FinishReason, NewSlot, SamplingParams
from worlds import limits_of

VOCAB = 50
GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("slice_bytes", [1, 4 * 40, 1 << 20])
def test_scores_are_the_log_softmax_of_what_the_model_gave(dtype: torch.dtype, slice_bytes: int) -> None:
    """Widened before it is summed, for any slices; rows without log-probabilities are left out."""
    logits = (torch.randn(7, 40, generator=torch.Generator().manual_seed(0)) * 8).to(dtype)
    tokens = torch.tensor([3, 0, 39, 7, -1, 11, 5])
    rows = [0, 2, 3, 4, 6]
    scores = score_rows(logits, tokens, torch.tensor(rows), 5, slice_bytes)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    exact = logits.double().log_softmax(-1)
    assert {scores.logprobs.dtype, scores.top_logprobs.dtype} == {wide}
    tolerance = {"rtol": 0, "atol": 1e-12 if wide is torch.float64 else 1e-5}
    expected = exact[rows, tokens[rows].clamp(min=0)]
    torch.testing.assert_close(scores.logprobs.double(), expected, **tolerance)
    best = exact[rows].topk(5)
    torch.testing.assert_close(scores.top_logprobs.double(), best.values, **tolerance)
    torch.testing.assert_close(exact[rows].gather(-1, scores.top_ids), best.values, **tolerance)


def test_no_request_asks_and_nothing_is_scored() -> None:
    """A step that pays for log-probabilities that no row of it wants, though a former request or another slot does."""
    feature = Logprobs(3, 9, torch.device("cpu"))
    feature.fill(NewSlot(0, Submit(1, (), GREEDY)))
    assert feature.stage(sampling_rows([0], np.array([4]))) is None
    feature.fill(NewSlot(1, Submit(2, (), replace(GREEDY, logprobs=2))))
    assert feature.stage(sampling_rows([0], np.array([4]))) is None
    assert feature.stage(sampling_rows([0, 1], np.array([4, 4]))) is not None
    feature.forget(1)
    assert feature.stage(sampling_rows([0, 1], np.array([4, 4]))) is None


def test_alternatives_end_with_the_vocabulary() -> None:
    scores = score_rows(torch.zeros(1, 3), torch.tensor([1]), torch.tensor([0]), 20)
    assert sorted(scores.top_ids[0].tolist()) == [0, 1, 2]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_logits_give_nan(bad: float) -> None:
    """An infinite logit would make every other token merely impossible."""
    logits = torch.zeros(2, 9)
    logits[0, 4] = bad
    scores = score_rows(logits, torch.tensor([1, 1]), torch.tensor([0, 1]), 0)
    assert scores.logprobs.isnan().tolist() == [True, False]


def test_an_impossible_token_has_minus_infinity() -> None:
    logits = torch.zeros(1, 4)
    logits[0, 1] = -torch.inf
    scores = score_rows(logits, torch.tensor([1]), torch.tensor([0]), 4)
    assert scores.logprobs.item() == -torch.inf
    assert scores.top_logprobs[0, -1].item() == -torch.inf
    assert not scores.top_logprobs.isnan().any()


def expected_logprobs(tokens: tuple[int, ...], token: int, count: int) -> Any:
    *_, digest = digests(tokens)
    expected = shadow_logprobs(digest, token, count, VOCAB)
    numbers = (expected.logprob, *(logprob for _, logprob in expected.top))
    return (expected.token_id, [other for other, _ in expected.top], pytest.approx(numbers, abs=1e-9))


def flat(item: Any) -> Any:
    return (item.token_id, [other for other, _ in item.top], (item.logprob, *(logprob for _, logprob in item.top)))


def test_each_row_gets_what_its_request_asked_for() -> None:
    """Rows that ask for nothing, for the output, for the prompt and for both, with different numbers, in one step."""
    asked = [
        GREEDY,
        replace(GREEDY, logprobs=3),
        replace(GREEDY, prompt_logprobs=0),
        replace(GREEDY, logprobs=0, prompt_logprobs=2),
    ]
    chunks = (
        Chunk(0, 0, 0, 1, (5,), (0,), True),
        Chunk(1, 1, 0, 1, (6,), (1,), True),
        Chunk(2, 2, 0, 3, (7, 8, 9), (2,), False, (8, 9, 10)),
        Chunk(3, 3, 0, 2, (11, 12), (3,), True, (12,)),
    )
    new = tuple(NewSlot(slot, Submit(slot, (), params)) for slot, params in enumerate(asked))
    result = shadow_runner(shadow_shape(num_pages=8, page_size=4)).launch(BatchPlan(0, new, chunks)).wait()
    (zero,), (one,), (three,) = result.token_ids
    assert len(result.logprobs) == 3
    assert result.logprobs[0] == ()
    assert [flat(item) for item in result.logprobs[1]] == [expected_logprobs((6,), one, 3)]
    assert [flat(item) for item in result.logprobs[2]] == [expected_logprobs((11, 12), three, 0)]
    second, third = result.prompt_logprobs
    assert [flat(item) for item in second] == [
        expected_logprobs((7,), 8, 0),
        expected_logprobs((7, 8), 9, 0),
        expected_logprobs((7, 8, 9), 10, 0),
    ]
    assert [flat(item) for item in third] == [expected_logprobs((11,), 12, 2)]
    assert zero != one


def test_a_step_without_requested_logprobs_returns_none() -> None:
    runner = shadow_runner(shadow_shape(num_pages=8, page_size=4))
    result = runner.launch(
        BatchPlan(0, (NewSlot(0, Submit(0, (), GREEDY)),), (Chunk(0, 0, 0, 1, (5,), (0,), True),))
    ).wait()
    assert (result.logprobs, result.prompt_logprobs) == ((), ())


def test_a_slot_filled_again_forgets_the_former_parameters() -> None:
    runner = shadow_runner(shadow_shape(num_pages=8, page_size=4))
    for step, params in enumerate((replace(GREEDY, logprobs=1, prompt_logprobs=1), GREEDY)):
        chunk = Chunk(step, 0, 0, 1, (5,), (0,), True)
        result = runner.launch(BatchPlan(step, (NewSlot(0, Submit(step, (), params)),), (chunk,))).wait()
        assert len(result.logprobs) == (1 if step == 0 else 0)


@pytest.mark.parametrize("poison", [0, 4])
def test_bad_logits_before_a_target_end_the_request(poison: int) -> None:
    """NaN in the middle of a prompt: JSON has no word for it, and nothing behind it could be right either."""
    params = replace(GREEDY, prompt_logprobs=1)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    prompt[poison] = 49
    chunk = Chunk(0, 0, 0, 4, tuple(prompt[:4]), (0,), False, tuple(prompt[1:5]))
    other = Chunk(1, 1, 0, 2, (1, 2), (1,), True)
    plan = BatchPlan(0, (NewSlot(0, Submit(0, (), params)), NewSlot(1, Submit(1, (), GREEDY))), (chunk, other))
    result = shadow_runner(shadow_shape(num_pages=8, page_size=4), poison=49).launch(plan).wait()
    if poison < 4:
        assert [error.row for error in result.errors] == [0]
        assert result.prompt_logprobs == ((),)
    else:
        assert result.errors == ()
        assert len(result.prompt_logprobs[0]) == 4
    assert len(result.token_ids[0]) == 1


def test_a_failed_sample_has_no_logprobs() -> None:
    params = replace(GREEDY, logprobs=1)
    chunks = tuple(Chunk(slot, slot, 0, 1, (token,), (slot,), True) for slot, token in enumerate((5, 49)))
    plan = BatchPlan(0, tuple(NewSlot(slot, Submit(slot, (), params)) for slot in range(2)), chunks)
    result = shadow_runner(shadow_shape(num_pages=8, page_size=4), poison=49).launch(plan).wait()
    assert [len(entry) for entry in result.logprobs] == [1, 0]


class Recorded:
    """A model that notes how much was asked of it at once."""

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self.forward_rows: list[int] = []
        self.logit_rows: list[int] = []

    def forward(self, batch: Any, kv: Any, attention: Any) -> torch.Tensor:
        hidden: torch.Tensor = self._model(batch, kv, attention)
        self.forward_rows.append(len(hidden))
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.logit_rows.append(len(hidden))
        return self._model.logits(hidden)


@pytest.mark.parametrize("length", [20, 400])
def test_memory_is_bounded_by_the_slice_and_the_chunk(length: int, tmp_path: Any) -> None:
    """Prompt logprobs have exhausted memory in every engine that kept [prompt, vocabulary] at once: here the largest
    tensor of logits is a slice, the hidden states kept are a chunk's, and the results leave chunk by chunk."""
    tiny_models.save("llama", tmp_path)
    model, spec = load_model(tmp_path, dtype="float32", device=torch.device("cpu"), progress=False)
    chunk, rows = 32, 5
    shape = DeviceShape.of(
        spec,
        torch.device("cpu"),
        num_slots=2,
        num_pages=32,
        page_size=16,
        row_pages=32,
    )
    recorded = Recorded(model)
    slice_bytes = rows * spec.vocab_size * 4
    runner = TorchRunner(recorded, DeviceState(shape), ReferenceAttention(), slice_bytes=slice_bytes)
    scheduler = Scheduler(limits_of(chunk=chunk, running=2), KVManager(num_pages=32, page_size=16))
    link = ManualLink()
    engine = Engine(scheduler, runner, link)
    prompt = tiny_models.prompt(length)
    link.put(Submit(0, prompt, replace(GREEDY, prompt_logprobs=3)))
    engine.step()
    while not engine.is_idle:
        engine.step()
    assert [item.token_id for item in link.prompt_logprobs(0)] == list(prompt[1:])
    assert max(recorded.logit_rows) == rows
    assert max(recorded.forward_rows) <= chunk + 1
    assert max(len(output.prompt_logprobs) for output in link.outputs) <= chunk
    assert link.end(0).finish_reason is FinishReason.LENGTH


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_logprobs_do_not_wait_for_the_device_either() -> None:
    """Scores are copied to the host behind the step, like its tokens; numbers are those of the CPU."""

    class CudaFlat(ShadowModel):
        def forward(self, batch, kv, attention):  # type: ignore[no-untyped-def]
            logits = torch.linspace(1, 0, self.vocab_size, device=batch.input_ids.device)
            return logits.expand(len(batch.logit_rows), -1)

    device = torch.device("cuda", torch.cuda.current_device())
    shape = replace(shadow_shape(num_pages=8, page_size=4, vocab_size=2000), device=device, dtype=torch.float32)
    asked = [GREEDY, replace(GREEDY, logprobs=0), replace(GREEDY, logprobs=3, prompt_logprobs=2)]
    chunks = tuple(Chunk(i, i, 0, 3, (1, 2, 3), (i,), True, () if i < 2 else (2, 3)) for i in range(len(asked)))
    plan = BatchPlan(0, tuple(NewSlot(i, Submit(i, (), params)) for i, params in enumerate(asked)), chunks)
    runner = TorchRunner(CudaFlat(2000), shadow_state(shape), ReferenceAttention())
    runner.launch(plan).wait()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step = runner.launch(plan)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    on_cuda = step.wait()
    cpu = shadow_state(replace(shape, device=torch.device("cpu")))
    on_cpu = TorchRunner(CudaFlat(2000), cpu, ReferenceAttention()).launch(plan).wait()
    for one, other in zip(
        (*on_cuda.logprobs, *on_cuda.prompt_logprobs), (*on_cpu.logprobs, *on_cpu.prompt_logprobs), strict=True
    ):
        for a, b in zip(one, other, strict=True):
            assert flat(a)[:2] == flat(b)[:2]
            assert flat(a)[2] == pytest.approx(flat(b)[2], abs=1e-5)


def test_a_request_may_name_the_tokens_that_are_reported() -> None:
    """In the order in which it names them, whatever others of the step ask for, and however many they name."""
    prompt = (5, 9, 3, 7)
    with LLM(str(any_checkpoint()), max_total_tokens=256, threads=1) as llm:
        greedy = SamplingParams(max_tokens=3, temperature=0.0, logprobs=20, ignore_eos=True)
        ((whole,),) = (output.samples for output in llm.generate([list(prompt)], greedy))
        assert whole.logprobs is not None
        ids = [token for token, _ in whole.logprobs[0].top[::-3]]
        named = replace(greedy, logprobs=None, logprob_token_ids=tuple(ids))
        shorter = replace(named, logprob_token_ids=tuple(ids[2:4]))
        params = [named, replace(greedy, logprobs=None), replace(greedy, logprobs=2), shorter]
        outputs = [output.samples[0] for output in llm.generate([list(prompt)] * 4, params)]
    assert len({output.token_ids for output in outputs}) == 1
    first, nothing, two, other = [output.logprobs for output in outputs]
    assert nothing is None
    expected = dict(whole.logprobs[0].top)
    assert first is not None
    assert [token for token, _ in first[0].top] == ids
    assert dict(first[0].top) == pytest.approx({token: expected[token] for token in ids}, abs=1e-5)
    assert two is not None
    assert [len(item.top) for item in two] == [2, 2, 2]
    assert other is not None
    assert [item.top for item in other] == [item.top[2:4] for item in first]
