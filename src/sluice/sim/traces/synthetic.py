"""A synthetic workload of `sluice bench` as arrivals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.bench.options import resolve_workload
from sluice.bench.workload import SAFE_VOCABULARY, Session, build_workload
from sluice.config import ConfigError
from sluice.sim.workload import Arrival, KnownTokens, Segment, TokenSource


def synthetic_arrivals(given: Mapping[str, Any], *, ms_per_token: float | None) -> list[Arrival]:
    """Make the arrivals of a schedule.

    Args:
        given: options of `sluice bench` by their name (`WorkloadOptions`).
        ms_per_token: a later turn of a conversation arrives `think_ms` and this much for each token of the answer after
            the turn before it. Arrivals are made before the simulation, so they cannot wait for an answer.

    Raises:
        ConfigError: a wrong value, or a workload whose arrivals depend on the answers.
    """
    options = resolve_workload(given)
    if options.background:
        raise ConfigError(f"--background {options.background} depends on answers and cannot be simulated")
    workload = build_workload(options, vocab_size=SAFE_VOCABULARY)
    if workload.concurrency is not None or any(session.at is None for session in workload.sessions):
        raise ConfigError("a simulation needs a schedule of arrivals, such as --request-rate")
    if options.turns > 1 and ms_per_token is None:
        raise ConfigError(
            f"--turns {options.turns} needs --ms-per-token: what a token of an answer is expected to take"
        )
    seconds = (ms_per_token or 0.0) / 1000
    found = [
        arrival
        for number, session in enumerate(workload.sessions)
        for arrival in _turns(session, f"{number}", seconds, first_seed=-1 - number * options.turns)
    ]
    return sorted(found, key=lambda arrival: arrival.time)


def _turns(session: Session, name: str, seconds_per_token: float, *, first_seed: int) -> list[Arrival]:
    found: list[Arrival] = []
    assert session.at is not None, f"session {name} has no time"
    time, context = session.at, tuple[int, ...]()
    for index, turn in enumerate(session.turns):
        prompt = (*context, *turn.prompt)
        answer: TokenSource = Segment(first_seed - index, turn.max_tokens)
        found.append(
            Arrival(
                time=time,
                prompt=KnownTokens(prompt),
                output_tokens=turn.max_tokens,
                max_tokens=turn.max_tokens,
                session=name if len(session.turns) > 1 else None,
                answer=answer,
                kind=turn.kind,
            )
        )
        context = (*prompt, *answer.tokens())
        time += session.think + turn.max_tokens * seconds_per_token
    return found
