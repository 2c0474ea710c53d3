"""What is sent and when, as plain data that is made before the run from the options and the seed.

Arrival times are absolute: they are made before the run, and nothing that a server does moves them.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low
from typing import Any, TypeVar

from sluice.bench.options import WorkloadOptions
from sluice.config import ConfigError

Number = TypeVar("Number", int, float)
SHORT, LONG = "short", "long"
LONG_FACTOR = 4
"""A prompt is long from this many times the (lower) median of the workload's prompts."""
SAFE_VOCABULARY = 256
"""Every model knows the ids below. The ids in a prompt do not change how long it takes to compute."""
SPECIAL_SHARE = 8
"""Prompts use no ids of the vocabulary's first eighth: many models have their special tokens there."""
WORDS = (
    *("time", "water", "house", "light", "river", "stone", "green", "paper", "music", "north", "table", "horse"),
    *("small", "great", "under", "after", "there", "place", "world", "still", "night", "sound", "point", "earth"),
    *("three", "white", "plant", "story", "power", "young", "watch", "front"),
)
"""Common words, each one token of nearly every tokenizer when a space precedes it."""


@dataclass(frozen=True, slots=True)
class FixedLength:
    """A number of tokens that is always the same."""

    tokens: int

    def draw(self, rng: random.Random) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Numbers of tokens from `lowest` to `highest`, both included, each as likely."""

    lowest: int
    highest: int

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.lowest, self.highest)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Numbers of tokens of which half lie below `median`; `sigma` is the deviation of their natural logarithm.

    With sigma 1 one in six is more than e times the median, as with prompts and answers of people.
    """

    median: float
    sigma: float

    def draw(self, rng: random.Random) -> int:
        return max(1, round(rng.lognormvariate(math.log(self.median), self.sigma)))


Lengths = FixedLength | Uniform | LogNormal
"""How many tokens a prompt or an answer has, each at least 1."""


def parse_lengths(text: str, flag: str) -> Lengths:
    """Read a length or a distribution of lengths.

    Args:
        text: "64", "uniform:16:512" or "lognormal:200:0.8".
        flag: the option, for the error.

    Raises:
        ConfigError: anything else.
    """
    kind, *numbers = text.split(":")
    try:
        match kind, numbers:
            case ("uniform", [lowest, highest]) if 1 <= int(lowest) <= int(highest):
                return Uniform(int(lowest), int(highest))
            case ("lognormal", [median, sigma]) if 1 <= float(median) < math.inf and 0 <= float(sigma) < math.inf:
                return LogNormal(float(median), float(sigma))
            case (tokens, []) if int(tokens) >= 1:
                return FixedLength(int(tokens))
    except ValueError:
        pass
    accepted = "a number of tokens, uniform:LOWEST:HIGHEST or lognormal:MEDIAN:SIGMA"
    raise ConfigError(f"{flag} must be {accepted}, each at least 1, got {text!r}")


def fixed_times(count: int, seconds: float, size: int = 1) -> list[float]:
    """Return the times of arrivals of `size` at once, every `seconds`; the first at once."""
    return [index // size * seconds for index in range(count)]


def random_times(count: int, rate: float, burstiness: float, rng: random.Random) -> list[float]:
    """Return random arrival times, in order. The first request arrives after a first gap.

    Gaps are drawn from a gamma distribution with mean `1 / rate` and variance `1 / (rate**2 * burstiness)`:
    `burstiness` 1 is a Poisson process, below 1 requests come in clusters, above 1 more evenly.
    """
    now, found = 0.0, []
    for _ in range(count):
        now += rng.gammavariate(burstiness, 1 / (rate * burstiness))
        found.append(now)
    return found


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Makes prompts of token ids that depend on the seed alone, so that every server gets the same ones.

    Args:
        seed: the same seed gives the same prompts.
        vocab_size: ids are below this.
        unique: every key has a text of its own. Else all prompts are beginnings of one text, and a prefix cache finds
            what it has seen before.
        shared_prefix_tokens: tokens that all prompts begin with, in addition to their own length.
    """

    seed: int
    vocab_size: int = SAFE_VOCABULARY
    unique: bool = True
    shared_prefix_tokens: int = 0

    def prompt(self, key: str, length: int, *, repeats: int = 1, with_prefix: bool = True) -> tuple[int, ...]:
        """Return a text of `length` tokens, `repeats` times, after the shared prefix."""
        own = self._draw(key if self.unique else "common", length) * repeats
        prefix = self._draw("shared prefix", self.shared_prefix_tokens) if with_prefix else ()
        return prefix + own

    def _draw(self, key: str, length: int) -> tuple[int, ...]:
        rng = random.Random(f"{self.seed}/{key}")
        ids = range(self.vocab_size // SPECIAL_SHARE, self.vocab_size)
        return tuple(rng.choices(ids, k=length))


def as_text(prompt: tuple[int, ...]) -> str:
    """Return a text with a word for each id: about as many tokens with any tokenizer."""
    return " ".join(WORDS[token % len(WORDS)] for token in prompt)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. In a conversation `prompt` is the new part: earlier turns and their answers precede it."""

    prompt: tuple[int, ...]
    max_tokens: int
    kind: str = SHORT


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation, most often of one turn. A turn is sent `think` seconds after the answer before it ended."""

    turns: tuple[Turn, ...]
    at: float | None = None
    """Seconds after the start at which the first turn is sent; None: as soon as one of `concurrency` places is free."""
    think: float = 0.0


@dataclass(frozen=True, slots=True)
class BackgroundRequest:
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
    background: tuple[BackgroundRequest, ...] = ()
    concurrency: int | None = None
    """Most sessions at once. A session that has to wait for a place is late from when it was due."""

    @property
    def num_requests(self) -> int:
        """Requests of the sessions. How often the background repeats is seen in the run."""
        return sum(len(session.turns) for session in self.sessions)


@dataclass(frozen=True, slots=True)
class ArrivalLine:
    """A line of an arrivals file."""

    at: float
    prompt_tokens: int
    max_tokens: int
    kind: str | None


def build_workload(options: WorkloadOptions, *, vocab_size: int) -> Workload:
    """Make the workload that resolved options (`options.resolve_workload`) describe. Equal options, equal workloads.

    Raises:
        ConfigError: a value or a combination makes no workload, or an arrivals file cannot be read.
    """
    maker = PromptMaker(options.seed, vocab_size, options.unique_prompts, options.shared_prefix_tokens)
    planned = None if options.arrivals is None else read_arrivals(Path(options.arrivals))
    sessions = _from_plan(planned, maker, options) if planned else _drawn(maker, options)
    background = tuple(
        BackgroundRequest(
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
    """Make requests as long as the workload's first, with other prompts: they warm the machine, not the cache."""
    maker = PromptMaker(options.seed, vocab_size)
    found = []
    for index in range(count):
        turn = workload.sessions[index % len(workload.sessions)].turns[0]
        found.append(replace(turn, prompt=maker.prompt(f"warm-up {index}", len(turn.prompt))))
    return found


def read_arrivals(path: Path) -> list[ArrivalLine]:
    """Read requests from a file of JSON lines, ordered by time: `at_ms`, `prompt_tokens`, `max_tokens`, maybe `class`.

    Raises:
        ConfigError: the file is missing or empty, or a line is malformed; the message names file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--arrivals: cannot read {path}: {error}") from error
    found = [_planned(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise ConfigError(f"--arrivals: {path} holds no request; each is a line of JSON")
    return sorted(found, key=lambda item: item.at)


def _planned(line: str, place: str) -> ArrivalLine:
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
    return ArrivalLine(at / 1000, content["prompt_tokens"], content["max_tokens"], kind)


def _from_plan(planned: Sequence[ArrivalLine], maker: PromptMaker, options: WorkloadOptions) -> tuple[Session, ...]:
    chosen = planned[: _count(options, len(planned), "--arrivals")]
    prompts = [maker.prompt(f"request {index}", item.prompt_tokens) for index, item in enumerate(chosen)]
    return tuple(
        Session((Turn(prompt, item.max_tokens, item.kind or ""),), item.at)
        for prompt, item in zip(prompts, chosen, strict=True)
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
    repeats = _numbers(options.prompt_repeats, "--prompt-repeats", int)
    times = _arrival_times(options)
    # Lengths, arrivals and each prompt have a generator of their own: another length does not move the arrivals.
    rng = random.Random(f"{options.seed}/lengths")
    sessions = []
    for index, at in enumerate(times):
        turns = []
        for number in range(options.turns):
            prompt = maker.prompt(
                f"request {index}.{number}",
                prompt_tokens.draw(rng),
                repeats=repeats[index % len(repeats)],
                with_prefix=number == 0,
            )
            turns.append(Turn(prompt, output_tokens.draw(rng), ""))
        sessions.append(Session(tuple(turns), at, options.think_ms / 1000))
    return tuple(sessions)


def _output_tokens(options: WorkloadOptions) -> Lengths:
    if options.max_new_tokens is not None:
        return FixedLength(options.max_new_tokens)
    assert options.output_tokens is not None, f"not resolved: {options}"
    return parse_lengths(options.output_tokens, "--output-tokens")


def _arrival_times(options: WorkloadOptions) -> Sequence[float | None]:
    """Return the time of each session; None in a closed loop."""
    if options.at_ms is not None:
        times = sorted(time / 1000 for time in _numbers(options.at_ms, "--at-ms", float))
        return times[: _count(options, len(times), "--at-ms")]
    count = options.num_requests
    assert count is not None, f"not resolved: {options}"
    if options.submit_interval_ms is not None:
        return fixed_times(count, options.submit_interval_ms / 1000)
    if options.request_rate is not None:
        rng = random.Random(f"{options.seed}/arrivals")
        return random_times(count, options.request_rate, options.burstiness, rng)
    if options.burst_size is not None:
        assert options.burst_interval_ms is not None, f"not resolved: {options}"
        return fixed_times(count, options.burst_interval_ms / 1000, options.burst_size)
    return [None] * count


def _numbers(text: str, flag: str, kind: type[Number]) -> list[Number]:
    """Read numbers with commas between them: integers of at least 1, or any numbers of at least 0."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = [kind(-1)]
    lowest, accepted = (1, "integers of at least 1") if kind is int else (0, "numbers of at least 0")
    if not all(lowest <= number < math.inf for number in found):
        raise ConfigError(f"{flag} must be {accepted} with commas between them, got {text!r}")
    return found


def _classified(workload: Workload, threshold: int | None) -> Workload:
    """Call every turn short or long by its own new tokens, unless a file names its class."""
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


def _typical(background: BackgroundRequest) -> int:
    return len(next(background.turns()).prompt)
