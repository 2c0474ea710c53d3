"""Small verbs for tests that drive an engine step by step."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.engine.messages import Submit
from sluice.testing import resolved
from sluice.types import BatchPlan
from worlds import Bench

Shape = list[tuple[int, int, int]]
"""(request, start, length) of each chunk"""


def add(bench: Bench, request_id: int, prompt: Sequence[int], *, max_tokens: int, seed: int = 0) -> None:
    bench.link.put(Submit(request_id, tuple(prompt), resolved(max_tokens, seed=seed)))


def queue(
    bench: Bench, request_id: int, length: int, max_tokens: int = 8, *, token: int | None = None, **rest: object
) -> None:
    """Add a prompt of one token repeated; prompts of different requests share nothing unless `token` says so."""
    prompt = [request_id + 10 if token is None else token] * length
    bench.scheduler.add(Submit(request_id, tuple(prompt), resolved(max_tokens), **rest))


def steps_of(bench: Bench, count: int = 1) -> list[BatchPlan]:
    """The next plans, each committed at once."""
    plans: list[BatchPlan] = []
    for _ in range(count):
        plan = bench.scheduler.schedule()
        if plan is None:
            break
        bench.link.send(bench.scheduler.commit(plan, bench.engine.runner.launch(plan).wait()))
        plans.append(plan)
    return plans


def shapes_of(bench: Bench, count: int = 1) -> list[Shape]:
    return [shape(plan) for plan in steps_of(bench, count)]


def shape(plan: BatchPlan) -> Shape:
    return [(chunk.request_id, chunk.start, chunk.length) for chunk in plan.chunks]


def until_preemption(bench: Bench, max_steps: int = 100) -> list[int]:
    """Step until a request is preempted. Returns its id."""
    for _ in range(max_steps):
        bench.engine.step()
        victims = [request.id for request in bench.scheduler.state.requests.values() if request.preemptions]
        if victims:
            return victims
    raise AssertionError(f"no request was preempted in {max_steps} steps")
