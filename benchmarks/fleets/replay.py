"""The same conversations live, on three replicas whose steps take a set time, and simulated, by router.

Turns come at set times, as in a simulation: they do not wait for answers. These are known beforehand, since they are
those of the shadow model, and every one that comes back is compared.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import httpx

from benchmarks.fleets.process import fleet
from benchmarks.fleets.streams import client_of
from benchmarks.fleets.timed import VOCAB, WORLD, setup_of
from sluice.assembly.resolve import resolve
from sluice.bench.metrics import percentile
from sluice.bench.options import resolve_workload
from sluice.bench.workload import build_workload
from sluice.config import EngineConfig
from sluice.fleet.ingress import LOOK_SECONDS
from sluice.routing.policies import POLICIES, TOLD
from sluice.sim.fleet import ReplicaSpec
from sluice.sim.routers import sim_router
from sluice.sim.simulate import simulate
from sluice.sim.workload import Arrival, KnownTokens
from sluice.testing import oracle, resolved

REPLICAS = 3
ENGINE = {"max_total_tokens": 32768, "page_size": 16}
TALKS: dict[str, Any] = {
    "turns": 5,
    "think_ms": 3000.0,
    "prompt_tokens": "lognormal:120:0.8",
    "output_tokens": "lognormal:40:0.5",
}
MS_PER_TOKEN = 30.0
"""What a token of an answer is expected to take, until the next turn comes."""
SEED = 0
"""Of the shadow model's answers."""
FIRST_SECONDS = 3.0
"""From the emptying of the caches to the first turn: the router hears of it meanwhile."""


@dataclass(frozen=True)
class Figures:
    """What came of one run."""

    ttft_p50_ms: float
    ttft_p99_ms: float
    cached_share: float

    @classmethod
    def of(cls, ttfts: Sequence[float], cached: int, prompt: int) -> Figures:
        """
        Args:
            ttfts: in seconds.
            cached, prompt: tokens of all prompts.
        """
        ordered = sorted(ttfts)
        return cls(1e3 * percentile(ordered, 50), 1e3 * percentile(ordered, 99), cached / prompt)


@dataclass(frozen=True)
class Talks:
    """Conversations that begin at random moments."""

    conversations: int
    rate: float
    """Of them that begin in a second."""
    prefix: int
    """Tokens with which all of them begin."""
    seed: int


def arrivals_of(talks: Talks) -> list[Arrival]:
    """Return the turns of conversations, in order."""
    chosen = {"num_requests": talks.conversations, "request_rate": talks.rate, "seed": talks.seed}
    options = resolve_workload(TALKS | chosen | {"shared_prefix_tokens": talks.prefix})
    found = []
    for session in build_workload(options, vocab_size=VOCAB).sessions:
        assert session.at is not None, "conversations begin at a rate"
        at, context = session.at, tuple[int, ...]()
        for turn in session.turns:
            prompt = (*context, *turn.prompt)
            answer = oracle(prompt, resolved(max_tokens=turn.max_tokens, seed=SEED), vocab_size=VOCAB)
            found.append(
                Arrival(
                    time=at,
                    prompt=KnownTokens(prompt),
                    output_tokens=turn.max_tokens,
                    max_tokens=turn.max_tokens,
                    answer=KnownTokens(answer),
                )
            )
            context = (*prompt, *answer)
            at += session.think + turn.max_tokens * MS_PER_TOKEN / 1e3
    return sorted(found, key=lambda arrival: arrival.time)


def simulated(router: str, arrivals: Sequence[Arrival], seed: int = 0) -> Figures:
    """Simulate a router in front of the replicas."""
    setup = setup_of(resolve(EngineConfig.from_options(ENGINE), "cpu").config)
    every = LOOK_SECONDS if router in TOLD else 0.0
    spec = ReplicaSpec(setup, WORLD, REPLICAS, seed=seed, publish_every=every)
    records = simulate(arrivals, spec.make(range(REPLICAS)), sim_router(router, setup, REPLICAS, seed))
    return Figures.of(
        [each.arrivals[0].at - each.due for each in records],
        sum(each.cached_tokens or 0 for each in records),
        sum(each.prompt_tokens for each in records),
    )


def live(router: str, arrivals: Sequence[Arrival], rounds: int) -> list[Figures]:
    """Send the turns to a fleet, several times, each time to empty caches.

    Raises:
        RuntimeError: an answer is not that of the shadow model.
    """
    options = [word for name, value in ENGINE.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with fleet(
        *("--replicas", str(REPLICAS), "--router", router, *options), module="benchmarks.fleets.timed_fleet"
    ) as world:
        return [asyncio.run(_round(world.url, arrivals, f"round {number}")) for number in range(rounds)]


async def _round(url: str, arrivals: Sequence[Arrival], salt: str) -> Figures:
    """
    Args:
        salt: namespace of the caches, for a router that keeps what it knows when they are emptied.
    """
    async with client_of(url) as http:
        warm = Arrival(time=0.0, prompt=KnownTokens((1,)), output_tokens=1, max_tokens=1)
        await asyncio.gather(*(_turn(http, warm, salt, time.perf_counter()) for _ in range(2 * REPLICAS)))
        (await http.post("/flush_cache")).raise_for_status()
        start = time.perf_counter() + FIRST_SECONDS - arrivals[0].time
        turns = await asyncio.gather(*(_turn(http, arrival, salt, start) for arrival in arrivals))
    return Figures.of([ttft for ttft, _, _ in turns], sum(turn[1] for turn in turns), sum(turn[2] for turn in turns))


async def _turn(http: httpx.AsyncClient, arrival: Arrival, salt: str, start: float) -> tuple[float, int, int]:
    """Send a turn at its time. Returns its TTFT from that time on, its cached tokens and its prompt tokens."""
    due = start + arrival.time
    body = {"prompt": list(arrival.tokens()), "max_tokens": arrival.max_tokens, "temperature": 0, "seed": SEED}
    body |= {"ignore_eos": True, "stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    body |= {"cache_salt": salt}
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    first, usage, ids = 0.0, dict[str, Any](), list[int]()
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError((await answer.aread()).decode())
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                first = first or time.perf_counter()
                ids += choice.get("token_ids") or []
    if arrival.answer is not None and tuple(ids) != tuple(arrival.answer.tokens()):
        raise RuntimeError(f"the answer to {arrival.num_tokens} tokens at {arrival.time:.1f} s is not the right one")
    return first - due, (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0), usage["prompt_tokens"]


def measure(routers: Sequence[str], rounds: int, talks: Talks, before: Mapping[str, Any]) -> dict[str, Any]:
    """Run the same conversations live, and once simulated where the router can be.

    Args:
        before: an earlier result of the same workload, whose other routers are kept.
    """
    arrivals = arrivals_of(talks)
    workload = asdict(talks) | {"requests": len(arrivals)}
    kept = before["routers"] if before.get("workload") == workload else {}
    found = {
        router: compared(live(router, arrivals, rounds) if rounds else [], _predicted(router, arrivals))
        for router in routers
    }
    return {"workload": workload, "routers": {**kept, **found}}


def _predicted(router: str, arrivals: Sequence[Arrival]) -> Figures | None:
    return simulated(router, arrivals) if router in POLICIES else None


def compared(runs: Sequence[Figures], predicted: Figures | None) -> dict[str, Any]:
    """Return each figure live and simulated, and how far the simulated one is off, as a share of the live mean."""
    result: dict[str, Any] = {}
    for name in Figures.__dataclass_fields__:
        values = [getattr(run, name) for run in runs]
        said = None if predicted is None else getattr(predicted, name)
        result[name] = {"live": values, "simulated": said}
        if values:
            result[name]["mean"] = mean = fmean(values)
            if said is not None:
                result[name]["off"] = said / mean - 1
    return result
