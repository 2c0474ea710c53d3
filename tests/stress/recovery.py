"""Kill the engine of running streams, over a real model: what changes in them, and how long they stand still.

    python tests/stress/recovery.py --json recovery.json

    float64     16 streams, half of them greedy and half seeded, and their engine killed 5 times at random moments:
                every stream must be that of the same requests undisturbed
    default     the same in the checkpoint's own dtype: no streamed token is lost, repeated or changed, every stream
                is complete, and where one first differs from the undisturbed stream the two tokens are a tie by a
                teacher-forced check in float64: their scores (logit + noise) differ by no more than twice the dtype's
                error, which is measured on the same streams
    poison      15 good requests and one that kills every engine that reads it: only this one is ended
    long step   a step of a minute: the server stays healthy and restarts nothing
    hang        the server notices and replaces the engine within 5 s and a start

The first token after a kill comes within 2 s and a plain start of an engine, which is measured in the same run. The
exit status is 1 if any of this does not hold. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from sluice import LLM
from sluice.config import EngineConfig
from sluice.process.client import EngineClient
from sluice.process.engine_state import EngineState
from sluice.process.launch import EngineTimeouts
from sluice.process.supervisor import Supervisor
from sluice.process.wire import Start
from sluice.runner.noise import gumbel, noise_key
from sluice.types import FinishReason, Output, SamplingParams, Submit

ALLOWED_OVER_START = 2.0
"""Seconds allowed from a kill to the next token, in addition to a plain start."""
HEARTBEAT = 5.0
TEMPERATURE = 0.8


@dataclass
class Host:
    """A supervised engine."""

    client: EngineClient
    state: EngineState
    start_seconds: float


@asynccontextmanager
async def hosting(options: dict[str, Any], *, faults: str = "", heartbeat: float = HEARTBEAT) -> AsyncIterator[Host]:
    """Run an engine in a process of its own, and its successors."""
    state = EngineState()
    client = EngineClient(recovery=state.stats)
    start = Start(EngineConfig.from_options(options), faults=faults)
    supervisor = Supervisor(start, client, state, max_restarts=20, timeouts=EngineTimeouts(heartbeat=heartbeat))
    began = time.perf_counter()
    await supervisor.start()
    host = Host(client, state, time.perf_counter() - began)
    running = asyncio.create_task(supervisor.run())
    try:
        yield host
    finally:
        running.cancel()
        await asyncio.wait({running})
        await supervisor.close()


@dataclass
class Stream:
    """The outputs of one request."""

    request: Submit
    outputs: list[Output] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    """Time of each output."""

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def logprobs(self) -> list[float]:
        return [item.logprob for output in self.outputs for item in output.logprobs]

    def problem(self) -> str | None:
        """Return what is wrong with this stream alone, if anything."""
        ends = [output for output in self.outputs if output.finish_reason is not None]
        if len(ends) != 1 or ends[0] is not self.outputs[-1] or ends[0].finish_reason is not FinishReason.LENGTH:
            return f"ended {[(end.finish_reason, end.error) for end in ends]}"
        starts, delivered = [output.start for output in self.outputs], 0
        for start, output in zip(starts, self.outputs, strict=True):
            if start != delivered:
                return f"tokens from {start} on, after {delivered} of them"
            delivered += len(output.token_ids)
        if delivered != self.request.sampling.max_tokens or len(self.logprobs) != delivered:
            return f"{delivered} tokens and {len(self.logprobs)} log-probabilities"
        return None


def requests_of(count: int, tokens: int, vocab_size: int) -> list[Submit]:
    """Make requests with prompts of several lengths; every other one is greedy."""
    draw = random.Random(1)
    return [
        Submit(
            0,
            tuple(draw.randrange(3, vocab_size) for _ in range(20 + 17 * number)),
            SamplingParams(
                max_tokens=tokens,
                temperature=TEMPERATURE * (number % 2),
                seed=1000 + number,
                ignore_eos=True,
                logprobs=0,
            ),
        )
        for number in range(count)
    ]


async def play(
    host: Host, requests: Sequence[Submit], on_tokens: Callable[[int], None] = lambda count: None
) -> list[Stream]:
    """Run requests to their ends, all at once. `on_tokens` gets the number of all tokens after each output."""
    streams = [Stream(request) for request in requests]
    counts = [0] * len(streams)

    async def read(index: int) -> None:
        stream = streams[index]
        inbox = host.client.submit([replace(stream.request, request_id=host.client.next_id())])
        while not stream.outputs or stream.outputs[-1].finish_reason is None:
            for output in await inbox.get():
                stream.outputs.append(output)
                stream.moments.append(time.perf_counter())
                counts[index] += len(output.token_ids)
            on_tokens(sum(counts))

    await asyncio.gather(*(read(index) for index in range(len(streams))))
    return streams


class Killer:
    """Kills each engine once, at a chosen number of delivered tokens: outputs of a dead engine still arrive."""

    def __init__(self, host: Host, kills: int, total: int, seed: int) -> None:
        self._host = host
        self._due = sorted(random.Random(seed).sample(range(1, total), kills))
        self._killed: set[int] = set()
        self.moments: list[float] = []

    def on_tokens(self, count: int) -> None:
        pid = self._host.state.pid
        if self._due and count >= self._due[0] and pid is not None and pid not in self._killed:
            self._due.pop(0)
            self._killed.add(pid)
            self.moments.append(time.perf_counter())
            os.kill(pid, signal.SIGKILL)


def pauses(moments: Sequence[float], streams: Sequence[Stream], slack: float = 0.05) -> list[float]:
    """Return the time from each kill to the first token after it. Outputs sent before the kill do not count."""
    came = sorted(moment for stream in streams for moment in stream.moments)
    return [next(after for after in came if after > moment + slack) - moment for moment in moments]


@dataclass(frozen=True)
class Divergence:
    """The position at which a stream first differs from the undisturbed one."""

    stream: int
    position: int
    gap: float
    """Difference of the two tokens' scores, teacher-forced in float64."""


def divergences(llm: LLM, undisturbed: Sequence[Stream], disturbed: Sequence[Stream]) -> list[Divergence]:
    found = []
    for index, (one, other) in enumerate(zip(undisturbed, disturbed, strict=True)):
        pairs = enumerate(zip(one.tokens, other.tokens, strict=True))
        position = next((position for position, (a, b) in pairs if a != b), None)
        if position is not None:
            found.append(Divergence(index, position, _gap(llm, one, other, position)))
    return found


def _gap(llm: LLM, one: Stream, other: Stream, position: int) -> float:
    request, before = one.request, one.tokens[:position]
    scores = []
    for token in (one.tokens[position], other.tokens[position]):
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
        (result,) = llm.generate([[*request.prompt, *before, token]], params)
        assert result.prompt_logprobs is not None
        last = result.prompt_logprobs[-1]
        assert last is not None
        scores.append(last.logprob + _noise(llm, request, position, token))
    return abs(scores[0] - scores[1])


def _noise(llm: LLM, request: Submit, position: int, token: int) -> float:
    """Return the noise of a token, in units of log-probability; 0 for a greedy request."""
    sampling = request.sampling
    if sampling.temperature == 0:
        return 0.0
    assert sampling.seed is not None
    stream = torch.tensor([noise_key(sampling.seed, request.sample_index)])
    at = torch.tensor([len(request.prompt) + position])
    noise = gumbel(stream, at, llm.info.limits.vocab_size, torch.float64)
    return sampling.temperature * float(noise[0, token])


def type_error(llm: LLM, streams: Sequence[Stream], tokens: int = 100) -> float:
    """Return the 99th percentile of the error of the streams' log-probabilities against float64."""
    errors = []
    for stream in streams:
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
        (result,) = llm.generate([[*stream.request.prompt, *stream.tokens[:tokens]]], params)
        assert result.prompt_logprobs is not None
        right = [item.logprob for item in result.prompt_logprobs[len(stream.request.prompt) :] if item is not None]
        errors += [abs(a - b) for a, b in zip(right, stream.logprobs, strict=False)]
    return statistics.quantiles(errors, n=100)[-1]


async def killed_streams(options: dict[str, Any], count: int, tokens: int, kills: int, llm: LLM) -> dict[str, Any]:
    """Run the same requests without and with kills, and return the differences."""
    requests = requests_of(count, tokens, llm.info.limits.vocab_size)
    async with hosting(options) as host:
        undisturbed = await play(host, requests)
        starts = [host.start_seconds]
    async with hosting(options) as host:
        starts.append(host.start_seconds)
        killer = Killer(host, kills, count * tokens, seed=kills)
        disturbed = await play(host, requests, killer.on_tokens)
        stats = host.state.stats
    problems = [f"stream {index}: {text}" for index, text in problems_of(undisturbed + disturbed)]
    stood = pauses(killer.moments, disturbed)
    if len(killer.moments) != kills or stats.restarts != kills or stats.ended_requests:
        problems.append(f"{len(killer.moments)} kills, {stats.restarts} restarts, {stats.ended_requests} given up")
    start = statistics.median(starts)
    if max(stood) > start + ALLOWED_OVER_START:
        problems.append(f"a stream stood still for {max(stood):.2f} s, a plain start takes {start:.2f} s")
    return {
        "plain_start_seconds": [round(seconds, 3) for seconds in starts],
        "seconds_from_kill_to_next_token": [round(seconds, 3) for seconds in stood],
        "replayed_requests": stats.replayed_requests,
        "replayed_tokens": stats.replayed_tokens,
        "divergences": divergences(llm, undisturbed, disturbed),
        "streams": undisturbed,
        "problems": problems,
    }


def problems_of(streams: Sequence[Stream]) -> list[tuple[int, str]]:
    return [(index, text) for index, stream in enumerate(streams) if (text := stream.problem()) is not None]


async def in_float64(options: dict[str, Any], args: argparse.Namespace, llm: LLM) -> dict[str, Any]:
    found = await killed_streams(options | {"dtype": "float64"}, args.streams, args.tokens, args.kills, llm)
    found["problems"] += [f"stream {each.stream} differs at {each.position}" for each in found.pop("divergences")]
    del found["streams"]
    return found


async def in_default_dtype(options: dict[str, Any], args: argparse.Namespace, llm: LLM) -> dict[str, Any]:
    found = await killed_streams(options, args.streams, args.tokens, args.kills, llm)
    error = type_error(llm, found.pop("streams"))
    diverging = found["divergences"]
    found["problems"] += [
        f"stream {each.stream} differs at {each.position}, by {each.gap:.4f}, no tie within {2 * error:.4f}"
        for each in diverging
        if each.gap > 2 * error
    ]
    return found | {
        "error_of_a_logprob": round(error, 5),
        "divergences": [{"stream": d.stream, "token": d.position, "gap": round(d.gap, 5)} for d in diverging],
    }


async def poison(options: dict[str, Any], args: argparse.Namespace, llm: LLM) -> dict[str, Any]:
    """Run with a token at which the engine crashes. Only one prompt holds it; no output of the others may."""
    token = 7
    requests = [
        replace_sampling(request, logit_bias=((token, -100.0),))._replace(
            prompt=tuple(t + (t == token) for t in request.prompt)
        )
        for request in requests_of(16, 64, llm.info.limits.vocab_size)
    ]
    requests[9] = requests[9]._replace(prompt=(*requests[9].prompt, token))
    async with hosting(options, faults=f"crash@token:{token}") as host:
        streams = await play(host, requests)
        restarts = host.state.stats.restarts
    bad = streams.pop(9).outputs[-1]
    problems = [f"stream {index}: {text}" for index, text in problems_of(streams)]
    if bad.finish_reason is not FinishReason.ERROR or "alone" not in (bad.error or ""):
        problems.append(f"the poisonous request ended {bad.finish_reason}: {bad.error}")
    return {"restarts": restarts, "error": bad.error, "problems": problems}


def replace_sampling(request: Submit, **changes: Any) -> Submit:
    return replace(request, sampling=replace(request.sampling, **changes))


async def long_step(options: dict[str, Any], args: argparse.Namespace, llm: LLM) -> dict[str, Any]:
    requests, problems = requests_of(4, 32, llm.info.limits.vocab_size), []
    silent = 0.0
    async with hosting(options, faults=f"slow@5={args.long_step}") as host:
        playing, began = asyncio.create_task(play(host, requests)), time.perf_counter()
        while not playing.done():
            if not host.state.is_serving:
                problems.append(f"not healthy after {time.perf_counter() - began:.1f} s")
            silent = max(silent, host.state.silent_seconds)
            await asyncio.wait({playing}, timeout=0.1)
        problems += [f"stream {index}: {text}" for index, text in problems_of(playing.result())]
        if host.state.stats.restarts:
            problems.append(f"{host.state.stats.restarts} restarts")
    return {"step_seconds": args.long_step, "longest_silence_seconds": round(silent, 2), "problems": problems}


async def hang(options: dict[str, Any], args: argparse.Namespace, llm: LLM) -> dict[str, Any]:
    requests = requests_of(4, 64, llm.info.limits.vocab_size)
    async with hosting(options, faults="hang@20") as host:
        streams = await play(host, requests)
        start, stats = host.start_seconds, host.state.stats
    problems = [f"stream {index}: {text}" for index, text in problems_of(streams)]
    moments = sorted(moment for stream in streams for moment in stream.moments)
    stood = max(b - a for a, b in pairwise(moments))
    if stats.restarts != 1 or stood > HEARTBEAT + start + ALLOWED_OVER_START:
        problems.append(f"{stats.restarts} restarts; stood still for {stood:.2f} s, a start takes {start:.2f} s")
    return {"seconds_stood_still": round(stood, 2), "plain_start_seconds": round(start, 2), "problems": problems}


PARTS = {"float64": in_float64, "default": in_default_dtype, "poison": poison, "long step": long_step, "hang": hang}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="", help="folder or hub id (default: the default model)")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=400, help="tokens of each stream")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--long-step", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--only", choices=PARTS, action="append", help="parts to run (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(arguments)
    options = {"model": args.model, "max_total_tokens": 1 << 15}
    found = {}
    with LLM(args.model or None, dtype="float64", max_total_tokens=1 << 13) as llm:
        for name in args.only or PARTS:
            found[name] = asyncio.run(PARTS[name](options, args, llm))
            print(f"{name}:", *(f"  {key}: {value}" for key, value in found[name].items()), sep="\n", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return int(any(part["problems"] for part in found.values()))


if __name__ == "__main__":
    sys.exit(main())
