"""TorchRunner under the real engine and scheduler, over a model whose tokens show every wrong page."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import worlds
from shadow_model import ShadowModel, shadow_runner, shadow_shape, shadow_state
from slow import examples
from sluice.attention.reference import ReferenceAttention
from sluice.engine.messages import Submit
from sluice.runner.runner import TorchRunner
from sluice.types import BatchPlan, Chunk, FinishReason, NewSlot, SamplingParams, TierLimits
from worlds import Bench, World, check_ends, enough_steps, limits_of

GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=8)


def runner_of(world: World, vocab_size: int = worlds.VOCAB, poison: int | None = None) -> TorchRunner:
    shape = shadow_shape(
        num_pages=world.num_pages,
        page_size=world.page_size,
        num_slots=world.limits.max_running_requests,
        vocab_size=vocab_size,
    )
    return shadow_runner(shape, poison, num_layers=world.limits.num_layers)


@examples(30)
@given(st.data(), worlds.worlds())
def test_every_world_gives_the_oracles_tokens(data: st.DataObject, world: World) -> None:
    """The whole path from plans to tokens: page tables, slots, late tokens, chunks, reuse, preemption."""
    submits = {}
    for request_id in range(data.draw(st.integers(1, 6))):
        drawn = data.draw(worlds.submits(world, request_id))
        greedy = replace(drawn.sampling, temperature=0.0, seed=0)
        submits[request_id] = replace(drawn, sampling=greedy, sample_index=0, embeds=False, grammar="", adapter="")
    world = replace(world, tiers=TierLimits())
    bench = Bench.of(world, runner_of(world))
    for submit in submits.values():
        bench.link.put(submit)
        bench.engine.step()
    bench.drain(enough_steps(submits))
    check_ends(bench, submits)


def test_a_row_with_nan_ends_alone() -> None:
    """A request whose logits are NaN gets an error; its neighbours, and a later step in flight, go on."""
    for depth, lookahead in ((1, 0), (2, 1), (3, 2)):
        world = World(limits_of(lookahead=lookahead), num_pages=32, page_size=4, depth=depth)
        bench = Bench.of(world, runner_of(world, vocab_size=5000, poison=4999))
        submits = {i: Submit(i, (i + 1, 2, 3), GREEDY) for i in range(3)}
        bench.link.put(*submits.values(), Submit(3, (4, 4999, 4), GREEDY))
        bench.engine.step()
        bench.drain(100)
        last = bench.link.end(3)
        assert last.finish_reason is FinishReason.ERROR
        assert last.error is not None
        assert "NaN" in last.error
        assert bench.link.tokens(3) == ()
        check_ends(bench, submits, vocab_size=5000)


def test_errors_name_the_row_of_the_plan() -> None:
    """`RowError.row` counts all chunks, also those that do not sample."""
    shape = shadow_shape(num_pages=8, page_size=4)
    chunks = (
        Chunk(0, 0, 0, 1, (5,), (0,), True),
        Chunk(1, 1, 0, 2, (5, 6), (1,), False),
        Chunk(2, 2, 0, 2, (49, 6), (2,), True),
    )
    plan = BatchPlan(0, tuple(NewSlot(c.slot, Submit(c.request_id, (), GREEDY)) for c in chunks), chunks)
    result = shadow_runner(shape, poison=49).launch(plan).wait()
    assert [error.row for error in result.errors] == [2]
    assert [len(tokens) for tokens in result.token_ids] == [1, 0]


def test_a_failed_rows_token_is_never_looked_up() -> None:
    """With lookahead the next step of a failed row is already launched; its input id must be inside the embedding."""
    seen: list[int] = []

    class Watched(ShadowModel):
        def forward(self, batch, kv, attention):  # type: ignore[no-untyped-def]
            seen.extend(batch.input_ids.tolist())
            return torch.full((len(batch.logit_rows), self.vocab_size), torch.nan)

    runner = TorchRunner(Watched(50), shadow_state(shadow_shape(num_pages=8, page_size=4)), ReferenceAttention())
    runner.launch(BatchPlan(0, (NewSlot(0, Submit(0, (), GREEDY)),), (Chunk(0, 0, 0, 1, (5,), (0,), True),)))
    runner.launch(BatchPlan(1, (), (Chunk(0, 0, 1, 1, (), (), True),)))
    assert len(seen) == 2
    assert all(0 <= token < 50 for token in seen)


def test_a_step_that_samples_nothing() -> None:
    runner = shadow_runner(shadow_shape(num_pages=8, page_size=4))
    plan = BatchPlan(5, (NewSlot(0, Submit(0, (), GREEDY)),), (Chunk(0, 0, 0, 3, (1, 2, 3), (4,), False),))
    result = runner.launch(plan).wait()
    assert (result.step, result.token_ids, result.errors) == (5, (), ())


def test_sampling_parameters_belong_to_the_slots_request() -> None:
    """A slot filled again takes the new request's parameters, and two requests in one step keep their own."""

    class FlatModel(ShadowModel):
        def forward(self, batch, kv, attention):  # type: ignore[no-untyped-def]
            return torch.linspace(1, 0, self.vocab_size).expand(len(batch.logit_rows), -1)

    shape = shadow_shape(num_pages=8, page_size=4, vocab_size=1000)

    def first_tokens(*params: SamplingParams, runner: TorchRunner) -> list[int]:
        chunks = tuple(Chunk(i, i, 0, 1, (1,), (i,), True) for i in range(len(params)))
        new = tuple(NewSlot(i, Submit(i, (), p)) for i, p in enumerate(params))
        return [tokens[0] for tokens in runner.launch(BatchPlan(0, new, chunks)).wait().token_ids]

    hot = [SamplingParams(temperature=2.0, seed=seed) for seed in range(2)]
    runner = TorchRunner(FlatModel(1000), shadow_state(shape), ReferenceAttention())
    a, b, greedy = first_tokens(*hot, GREEDY, runner=runner)
    assert a != b
    assert greedy == 0
    assert first_tokens(GREEDY, hot[0], hot[1], runner=runner) == [0, a, b]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_launch_does_not_wait_for_the_device() -> None:
    """A launch that reads a device value stalls the overlap; torch raises on any hidden synchronisation."""

    class CudaFlat(ShadowModel):
        def forward(self, batch, kv, attention):  # type: ignore[no-untyped-def]
            logits = torch.linspace(1, 0, self.vocab_size, device=batch.input_ids.device)
            return logits.expand(len(batch.logit_rows), -1)

    device = torch.device("cuda", torch.cuda.current_device())
    shape = replace(shadow_shape(num_pages=8, page_size=4, vocab_size=2000), device=device, dtype=torch.float32)
    params = [GREEDY, SamplingParams(seed=1), SamplingParams(seed=1, top_k=5), SamplingParams(seed=1, top_p=0.5)]

    def run(runner: TorchRunner) -> list[tuple[tuple[int, ...], ...]]:
        new = tuple(NewSlot(i, Submit(i, (), p)) for i, p in enumerate(params))
        first = BatchPlan(0, new, tuple(Chunk(i, i, 0, 1, (1,), (i,), True) for i in range(4)))
        second = BatchPlan(1, (), tuple(Chunk(i, i, 1, 1, (), (), True) for i in range(4)))
        steps = [runner.launch(first), runner.launch(second)]
        return [step.wait().token_ids for step in steps]

    runner = TorchRunner(CudaFlat(2000), shadow_state(shape), ReferenceAttention())
    run(runner)
    torch.cuda.set_sync_debug_mode("error")
    try:
        on_cuda = run(runner)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    cpu = replace(shape, device=torch.device("cpu"))
    assert run(TorchRunner(CudaFlat(2000), shadow_state(cpu), ReferenceAttention())) == on_cuda
