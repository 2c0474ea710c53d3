"""The order between a step's queues, on a device that runs everything as late, or as early, as events allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain, combinations

import numpy as np
import pytest
import torch

from shadow_model import ShadowModel, shadow_shape, shadow_state
from slow import products
from sluice.attention.reference import ReferenceAttention
from sluice.device import queues
from sluice.device.queues import (
    NAP_SECONDS,
    SPIN_SECONDS,
    TICK_SECONDS,
    DeviceQueue,
    DeviceQueues,
    Event,
    cuda_queues,
    pinned_host_buffer,
    plain_host_buffer,
    wait_until,
)
from sluice.device.transport import staged_transport
from sluice.engine.messages import Submit
from sluice.runner.device_state import DeviceShape
from sluice.runner.runner import TorchRunner
from sluice.testing.device import LateEvent, late_queues
from sluice.types import BatchPlan, Chunk, NewSlot, SamplingParams
from worlds import Bench, World, check_ends, limits_of

ORDERS = [*chain.from_iterable(combinations(DeviceQueues._fields, size) for size in range(4))]
"""Sets of queues that hurry while the others dawdle."""
OVERLAP = World(limits_of(lookahead=1, running=3), num_pages=24, page_size=4, depth=2)
GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=7)
SUBMITS = {
    number: Submit(number, prompt, GREEDY)
    for number, prompt in enumerate([(1, 0, 1), (0,) * 9, (1,) * 5, (0, 1), (1, 1, 0, 0)])
}


def runner_over(queues: DeviceQueues, shape: DeviceShape, *, num_buffers: int, poison: bool = False) -> TorchRunner:
    transport = staged_transport(queues, shape.device, plain_host_buffer, num_buffers, poison=poison)
    model = ShadowModel(shape.vocab_size)
    return TorchRunner(model, shadow_state(shape, watched=poison), ReferenceAttention(), transport=transport)


def play(queues: DeviceQueues, world: World, *, num_buffers: int, poison: bool = False) -> None:
    """Serve `SUBMITS` and hold the tokens to the oracle's."""
    shape = shadow_shape(
        num_pages=world.num_pages,
        page_size=world.page_size,
        num_slots=world.limits.max_running_requests,
        vocab_size=2,
    )
    bench = Bench.of(world, runner_over(queues, shape, num_buffers=num_buffers, poison=poison))
    for submit in SUBMITS.values():
        bench.link.put(submit)
        bench.engine.step()
    bench.drain(200)
    check_ends(bench, SUBMITS)


@products(eager=ORDERS, poison=[True, False])
def test_every_order_gives_the_oracles_tokens(eager: tuple[str, ...], poison: bool) -> None:
    """A step that reads its inputs before they are there or after the next ones are, or a host that does either to the
    results; with as many num_buffers as steps, fewer and more."""
    for depth, lookahead, num_buffers in [(1, 0, 1), (2, 1, 1), (2, 1, 2), (3, 2, 2), (3, 0, 4)]:
        limits = replace(OVERLAP.limits, lookahead=lookahead)
        play(late_queues(eager), replace(OVERLAP, limits=limits, depth=depth), num_buffers=num_buffers, poison=poison)


class Unasked:
    """An event that the host does not wait for."""

    def __init__(self, event: LateEvent) -> None:
        self.event = event

    def query(self) -> bool:
        return True


class Forgetful:
    """A queue of a runner with a bug in it.

    Args:
        inner: the queue that should have waited.
        waits: what it does with events to wait for.
        records: what it does with events that it records.
    """

    def __init__(self, inner: DeviceQueue, *, waits: bool = True, records: bool = True) -> None:
        self._inner = inner
        self._waits = waits
        self._records = records

    def run(self, work: Callable[[], None]) -> None:
        self._inner.run(work)

    def wait(self, event: Event) -> None:
        if self._waits:
            self._inner.wait(event.event if isinstance(event, Unasked) else event)

    def record(self) -> Event:
        event = self._inner.record()
        assert isinstance(event, LateEvent)
        return event if self._records else Unasked(event)


BUGS: dict[str, Callable[[DeviceQueues], DeviceQueues]] = {
    "inputs overwrite what a step still reads": lambda s: DeviceQueues(
        Forgetful(s.inputs, waits=False), s.compute, s.results
    ),
    "compute reads before the inputs are there": lambda s: DeviceQueues(
        s.inputs, Forgetful(s.compute, waits=False), s.results
    ),
    "results are copied before they are there": lambda s: DeviceQueues(
        s.inputs, s.compute, Forgetful(s.results, waits=False)
    ),
    "the host overwrites what is still copied": lambda s: DeviceQueues(
        Forgetful(s.inputs, records=False), Forgetful(s.compute), s.results
    ),
    "the host reads what is still copied": lambda s: DeviceQueues(
        s.inputs, s.compute, Forgetful(s.results, records=False)
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_no_wait_is_there_for_nothing(bug: str) -> None:
    """The fake must notice each wait that is forgotten, or the test above says little."""

    def goes_wrong(eager: tuple[str, ...]) -> bool:
        try:
            play(BUGS[bug](late_queues(eager)), OVERLAP, num_buffers=1)
        except Exception:  # noqa: BLE001 - a bug may show as any error
            return True
        return False

    assert any(map(goes_wrong, ORDERS))


def test_a_step_that_reads_an_unsampled_slot_is_found() -> None:
    """A slot of a request that is gone still holds its last token: without the poison it would be taken for the new
    request's."""
    shape = shadow_shape(num_pages=8, page_size=4)
    first = BatchPlan(0, (NewSlot(0, Submit(1, (), GREEDY)),), (Chunk(1, 0, 0, 2, (5, 6), (0,), True),))
    again = (NewSlot(0, Submit(2, (), GREEDY)),)
    early = BatchPlan(1, again, (Chunk(2, 0, 0, 2, (7,), (1,), True),))
    for poison in (False, True):
        runner = runner_over(late_queues(), shape, num_buffers=2, poison=poison)
        runner.launch(first).wait()
        errors = runner.launch(early).wait().errors
        assert [error.row for error in errors] == [0] * poison
        assert all("not sampled yet" in error.message for error in errors)


def test_a_sample_is_read_once() -> None:
    """A step that was to read the sample of the one before it and reads the one before that."""
    shape = shadow_shape(num_pages=8, page_size=4)
    runner = runner_over(late_queues(), shape, num_buffers=2, poison=True)
    runner.launch(BatchPlan(0, (NewSlot(0, Submit(1, (), GREEDY)),), (Chunk(1, 0, 0, 2, (5, 6), (0,), True),)))
    reads = Chunk(1, 0, 2, 1, (), (), False)
    assert not runner.launch(BatchPlan(1, (), (reads,))).wait().errors
    result = runner.launch(BatchPlan(2, (), (reads._replace(start=3, samples=True),))).wait()
    assert [error.row for error in result.errors] == [0]


def test_a_step_larger_than_any_before() -> None:
    """A place that grows while the step before still reads it."""
    shape = shadow_shape(num_pages=4, page_size=16384)
    prompt = tuple(i % 50 for i in range(9000))
    new = (NewSlot(0, Submit(1, (), GREEDY)), NewSlot(1, Submit(2, (), GREEDY)))
    small = Chunk(1, 0, 0, 2, (5, 6), (0,), False)
    results = []
    for eager in ((), ("inputs",)):
        runner = runner_over(late_queues(eager), shape, num_buffers=1)
        runner.launch(BatchPlan(0, new, (small,)))
        large = runner.launch(BatchPlan(1, (), (Chunk(2, 1, 0, len(prompt), prompt, (1,), False),)))
        after = runner.launch(BatchPlan(2, (), (Chunk(1, 0, 2, 2, (7, 8), (), True),)))
        large.wait()
        results.append(after.wait())
    plain = TorchRunner(ShadowModel(50), shadow_state(shape), ReferenceAttention())
    plain.launch(BatchPlan(0, new[:1], (small,)))
    assert results == [plain.launch(BatchPlan(2, (), (Chunk(1, 0, 2, 2, (7, 8), (), True),))).wait()] * 2


def test_what_a_step_has_read_is_poisoned() -> None:
    """Debugging: a late reader of the inputs of a step that is over must not find them as they were."""
    array = np.arange(5)
    for poison, expected in ((False, array.tolist()), (True, [-1] * 5)):
        transport = staged_transport(late_queues(), torch.device("cpu"), plain_host_buffer, 1, poison=poison)
        arrived = transport.staging.stage([array])
        arrived.done()
        transport.queues.compute.record().query()
        assert arrived.tensors[0].tolist() == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_queues_are_ordered_by_events() -> None:
    """The real queues keep the promises of the fake ones."""
    device = torch.device("cuda", torch.cuda.current_device())
    queues = cuda_queues(device)
    value = torch.zeros(1 << 20, device=device)
    host = pinned_host_buffer((1 << 20,), torch.float32)
    torch.cuda.synchronize()
    for number in range(20):
        queues.compute.run(lambda: torch.cuda._sleep(1_000_000))
        queues.compute.run(partial(_fill, value, number))
        queues.results.wait(queues.compute.record())
        queues.results.run(partial(_copy, host, value))
        copied = queues.results.record()
        queues.compute.wait(copied)
        while not copied.query():
            pass
        assert bool((host == number).all())


def _fill(tensor: torch.Tensor, number: int) -> None:
    tensor.fill_(number)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


class Clock:
    """Time that passes when a thread sleeps, or asks whether the work is done."""

    def __init__(self, done_at: float) -> None:
        self.now = 0.0
        self.done_at = done_at
        self.ticks: list[float] = []
        self.naps = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.naps += seconds > 0

    def is_done(self) -> bool:
        self.now += 0.00005
        return self.now >= self.done_at


def waited(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Clock:
    clock = Clock(seconds)
    monkeypatch.setattr(queues, "time", clock)
    wait_until(clock.is_done, lambda: clock.ticks.append(clock.now))
    return clock


def test_a_long_step_ticks_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute on the device without a heartbeat of the engine looks like its death."""
    clock = waited(monkeypatch, 5.5)
    assert len(clock.ticks) == 6
    gaps = [after - before for before, after in zip(clock.ticks, clock.ticks[1:], strict=False)]
    assert max(gaps) < TICK_SECONDS + 2 * NAP_SECONDS
    assert clock.now < 5.5 + 2 * NAP_SECONDS


def test_a_short_one_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nap after each step would be part of every token's latency."""
    clock = waited(monkeypatch, SPIN_SECONDS / 2)
    assert (clock.naps, len(clock.ticks)) == (0, 1)
