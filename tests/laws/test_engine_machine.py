"""Random lives of an engine over the shadow runner, every law checked after every call.

The machine interleaves rules one at a time and shrinks well. `test_lives.py` draws lives whole, from a seed, and runs
them at thousands a minute.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from scenarios import AIMS
from slow import examples
from sluice.engine.messages import Abort, FlushCache, Submit
from sluice.scheduler.request import Status
from sluice.testing import Faults, FaultyRunner
from worlds import SlowDisk, World, check_ends, enough_steps, submits, worlds

MAX_REQUESTS = 10


class EngineMachine(RuleBasedStateMachine):
    """Submit, abort, flush, step, in any order, with a disk that takes its time; at the end everything must drain and
    match the oracle."""

    @initialize(world=worlds(), faulty=st.booleans(), data=st.data())
    def build(self, world: World, faulty: bool, data: st.DataObject) -> None:
        self.faulty = faulty
        self.sent: dict[int, Submit] = {}
        launches = st.integers(0, 40)
        faults = Faults(
            launch_raises=data.draw(st.frozensets(launches, max_size=2)) if faulty else frozenset(),
            wait_raises=data.draw(st.frozensets(launches, max_size=2)) if faulty else frozenset(),
            row_fails=data.draw(st.dictionaries(launches, st.integers(0, 4), max_size=2)) if faulty else {},
        )
        chance = data.draw(st.randoms(use_true_random=False))
        self.disk = SlowDisk(world, chance, lambda shadow: FaultyRunner(shadow, faults))
        self.bench = self.disk.bench()

    @precondition(lambda self: len(self.sent) < MAX_REQUESTS)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        submit = data.draw(submits(self.bench.world, len(self.sent)))
        self.sent[submit.request_id] = submit
        self.bench.link.put(submit)

    @precondition(lambda self: 0 < len(self.sent) < MAX_REQUESTS)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        """An earlier prompt, which may lie on the device or on a tier by now, or be on its way."""
        earlier = self.sent[data.draw(st.sampled_from(sorted(self.sent)))]
        submit = replace(data.draw(submits(self.bench.world, len(self.sent))), prompt=earlier.prompt)
        max_tokens = earlier.sampling.max_tokens  # what fits behind this prompt
        submit = replace(submit, sampling=replace(submit.sampling, max_tokens=max_tokens, prompt_logprobs=None))
        self.sent[submit.request_id] = submit
        self.bench.link.put(submit)

    @rule(status=st.sampled_from(AIMS))
    def abort_one_that_is(self, status: Status) -> None:
        requests = self.bench.scheduler.state.requests.values()
        targets = [request.id for request in requests if request.status is status]
        self.bench.link.put(*map(Abort, targets[:1]))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.bench.link.put(Abort(data.draw(st.sampled_from(sorted(self.sent)))))

    @precondition(lambda self: self.sent)
    @rule()
    def submit_twice(self) -> None:
        """The same id again is ignored while the first lives, and the first is not disturbed."""
        self.bench.step()
        last = self.sent[max(self.sent)]
        if last.request_id in self.bench.scheduler.state.requests:
            self.bench.link.put(last)
            self.bench.step()

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.bench.step()

    @rule()
    def flush(self) -> None:
        self.bench.link.put(FlushCache(0))

    @precondition(lambda self: not self.bench.engine.in_flight)
    @rule()
    def lose_the_device(self) -> None:
        """With nothing in flight the device's state may vanish, and every request goes on where it was."""
        self.bench.scheduler.forget_device()
        self.disk.replace(self.bench)

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.step()
        self.bench.drain(enough_steps(self.sent))
        check_ends(self.bench, self.sent, faults=self.faulty)


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(examples(80), stateful_step_count=40)
