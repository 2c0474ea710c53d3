"""Small verbs for tests that drive an engine step by step."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.engine.messages import Submit
from sluice.testing import resolved
from worlds import Bench


def add(bench: Bench, request_id: int, prompt: Sequence[int], *, max_tokens: int, seed: int = 0) -> None:
    bench.link.put(Submit(request_id, tuple(prompt), resolved(max_tokens, seed=seed)))


def until_retraction(bench: Bench, max_steps: int = 100) -> list[int]:
    """Step until somebody is retracted; who."""
    for _ in range(max_steps):
        bench.engine.step()
        victims = [request.id for request in bench.scheduler.state.requests.values() if request.retractions]
        if victims:
            return victims
    raise AssertionError(f"nobody was retracted in {max_steps} steps")
