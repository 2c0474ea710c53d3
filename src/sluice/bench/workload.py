"""What is sent and when, whoever it is sent to: plain data, made before the run from the options and the seed."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low
from typing import Any

from sluice.bench.arrivals import Arrivals, At, Bursts, Every, Random
from sluice.bench.lengths import Fixed, Lengths, parse_lengths
from sluice.bench.options import WorkloadOptions
from sluice.bench.prompts import PromptMaker
from sluice.config import ConfigError

SHORT, LONG = "short", "long"
LONG_FACTOR = 4
"""A prompt is long from this many times the (lower) median of the workload's prompts."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. In a conversation `prompt` is what is new; the turns before and their answers precede it."""

    prompt: tuple[int, ...]
    max_tokens: int
    kind: str = SHORT


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation, most often of one turn. A turn is sent `think` seconds after the answer before it ended."""

    turns: tuple[Turn, ...]
    at: float | None = None
    """Seconds after the start at which the first turn is sent. None: when one of `concurrency` places is free."""
    think: float = 0.0


@dataclass(frozen=True, slots=True)
class Background:
    """A request that is sent again, with a new prompt, whenever it has ended, as long as a session is unfinished."""

    maker: PromptMaker
    name: str
    seed: int
    prompt_tokens: Lengths
    output_tokens: Lengths
    kind: str = SHORT

    def turns(self) -> Iterator[Turn]:
        rng = random.Random(f"{self.seed}/{self.name}")
        number = 0
        while True:
            prompt = self.maker.prompt(f"{self.name} {number}", self.prompt_tokens.draw(rng))
            yield Turn(prompt, self.output_tokens.draw(rng), self.kind)
            number += 1


@dataclass(frozen=True, slots=True)
class Workload:
    """All that is sent in one run."""

    sessions: tuple[Session, ...]
    background: tuple[Background, ...] = ()
    concurrency: int | None = None
    """Most sessions at once; what has to wait for a place counts as late from when it was due."""

    @property
    def num_requests(self) -> int:
        """Of the sessions; how often the background repeats is seen in the run."""
        return sum(len(session.turns) for session in self.sessions)


@dataclass(frozen=True, slots=True)
class Planned:
    """A line of an arrivals file."""

    at: float
    prompt_tokens: int
    max_tokens: int
    kind: str | None


def build_workload(options: WorkloadOptions, *, vocab_size: int) -> Workload:
    """The workload that resolved options (`presets.resolve_workload`) describe. Equal options, equal workloads.

    Raises:
        ConfigError: a value, or a combination, that makes no workload; an arrivals file that cannot be read.
    """
    maker = PromptMaker(options.seed, vocab_size, options.unique_prompts, options.shared_prefix_tokens)
    planned = None if options.arrivals is None else read_arrivals(Path(options.arrivals))
    sessions = _from_plan(planned, maker, options) if planned else _drawn(maker, options)
    background = tuple(
        Background(
            maker,
            f"background {index}",
            options.seed,
            parse_lengths(options.background_prompt_tokens, "--background-prompt-tokens"),
            parse_lengths(options.background_output_tokens, "--background-output-tokens"),
        )
        for index in range(options.background)
    )
    return _classified(Workload(sessions, background, options.concurrency), options.long_prompt_tokens)


def warmup_turns(workload: Workload, options: WorkloadOptions, count: int, *, vocab_size: int) -> list[Turn]:
    """Requests as long as the first ones of the workload, with other prompts: they warm the machine, not the cache."""
    maker = PromptMaker(options.seed, vocab_size)
    found = []
    for index in range(count):
        turn = workload.sessions[index % len(workload.sessions)].turns[0]
        found.append(replace(turn, prompt=maker.prompt(f"warm-up {index}", len(turn.prompt))))
    return found


def read_arrivals(path: Path) -> list[Planned]:
    """Requests of a file of JSON lines, ordered by time: `at_ms`, `prompt_tokens`, `max_tokens`, maybe `class`.

    Raises:
        ConfigError: no such file, no line in it, or a line that is none; the message names file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--arrivals: cannot read {path}: {error}") from error
    found = [_planned(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise ConfigError(f"--arrivals: {path} holds no request; each is a line of JSON")
    return sorted(found, key=lambda item: item.at)


def _planned(line: str, place: str) -> Planned:
    try:
        content: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{place}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{place}: each line must hold a JSON object, got {line.strip()[:40]!r}")
    known = {"at_ms", "prompt_tokens", "max_tokens", "class"}
    if unknown := content.keys() - known:
        raise ConfigError(f"{place}: unknown {sorted(unknown)[0]!r}; known: {', '.join(sorted(known))}")
    at, kind = content.get("at_ms"), content.get("class")
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < math.inf:
        raise ConfigError(f"{place}: at_ms must be a number of at least 0, got {at!r}")
    for name in ("prompt_tokens", "max_tokens"):
        value = content.get(name)
        if type(value) is not int or value < 1:
            raise ConfigError(f"{place}: {name} must be an integer of at least 1, got {value!r}")
    if kind is not None and (not isinstance(kind, str) or not kind):
        raise ConfigError(f"{place}: class must be a non-empty text, got {kind!r}")
    return Planned(at / 1000, content["prompt_tokens"], content["max_tokens"], kind)


def _from_plan(planned: Sequence[Planned], maker: PromptMaker, options: WorkloadOptions) -> tuple[Session, ...]:
    chosen = planned[: _count(options, len(planned), "--arrivals")]
    return tuple(
        Session(
            (Turn(maker.prompt(f"request {index}", item.prompt_tokens), item.max_tokens, item.kind or ""),), item.at
        )
        for index, item in enumerate(chosen)
    )


def _count(options: WorkloadOptions, available: int, flag: str) -> int:
    if options.num_requests is None:
        return available
    if options.num_requests > available:
        raise ConfigError(f"--num-requests must be at most {available} with this {flag}, got {options.num_requests}")
    return options.num_requests


def _drawn(maker: PromptMaker, options: WorkloadOptions) -> tuple[Session, ...]:
    prompt_tokens = parse_lengths(options.prompt_tokens, "--prompt-tokens")
    output_tokens = _output_tokens(options)
    repeats = _integers(options.prompt_repeats, "--prompt-repeats")
    arrivals = _arrivals(options)
    assert isinstance(arrivals, At) or options.num_requests is not None, f"not resolved: {options}"
    count = options.num_requests or 0
    if isinstance(arrivals, At):
        count = _count(options, len(arrivals.seconds), "--at-ms")
    # Each of the three has a generator of its own: another length does not move the arrivals.
    lengths = random.Random(f"{options.seed}/lengths")
    times = None if arrivals is None else arrivals.times(count, random.Random(f"{options.seed}/arrivals"))
    sessions = []
    for index in range(count):
        turns = tuple(
            Turn(
                maker.prompt(
                    f"request {index}.{turn}",
                    prompt_tokens.draw(lengths),
                    repeats=repeats[index % len(repeats)],
                    with_prefix=turn == 0,
                ),
                output_tokens.draw(lengths),
                "",
            )
            for turn in range(options.turns)
        )
        sessions.append(Session(turns, None if times is None else times[index], options.think_ms / 1000))
    return tuple(sessions)


def _output_tokens(options: WorkloadOptions) -> Lengths:
    if options.max_new_tokens is not None:
        return Fixed(options.max_new_tokens)
    assert options.output_tokens is not None, f"not resolved: {options}"
    return parse_lengths(options.output_tokens, "--output-tokens")


def _arrivals(options: WorkloadOptions) -> Arrivals | None:
    """None is a closed loop."""
    if options.submit_interval_ms is not None:
        return Every(options.submit_interval_ms / 1000)
    if options.request_rate is not None:
        return Random(options.request_rate, options.burstiness)
    if options.burst_size is not None:
        assert options.burst_interval_ms is not None, f"not resolved: {options}"
        return Bursts(options.burst_size, options.burst_interval_ms / 1000)
    if options.at_ms is not None:
        return At(sorted(time / 1000 for time in _numbers(options.at_ms, "--at-ms")))
    return None


def _integers(text: str, flag: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise ConfigError(f"{flag} must be integers of at least 1 with commas between them, got {text!r}")
    return found


def _numbers(text: str, flag: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= number < math.inf for number in found):
        raise ConfigError(f"{flag} must be numbers of at least 0 with commas between them, got {text!r}")
    return found


def _classified(workload: Workload, threshold: int | None) -> Workload:
    """Every turn called short or long by its own new tokens, unless a file named it."""
    firsts = [len(session.turns[0].prompt) for session in workload.sessions]
    typical = [_typical(item) for item in workload.background]
    bound = threshold or LONG_FACTOR * median_low(firsts + typical)

    def classed(turn: Turn) -> Turn:
        return replace(turn, kind=turn.kind or (LONG if len(turn.prompt) >= bound else SHORT))

    return replace(
        workload,
        sessions=tuple(replace(item, turns=tuple(map(classed, item.turns))) for item in workload.sessions),
        background=tuple(
            replace(item, kind=LONG if length >= bound else SHORT)
            for item, length in zip(workload.background, typical, strict=True)
        ),
    )


def _typical(background: Background) -> int:
    return len(next(background.turns()).prompt)
