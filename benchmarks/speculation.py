"""Measure what guessing tokens by n-grams brings, and what it costs where there is nothing to guess.

    python benchmarks/speculation.py --out build/speculation.json

Two engines run in this process over one checkpoint, by default that of `sluice serve`, one with
`--speculative-algorithm ngram` and one without. They are given the same requests in turns (A B B A ...), and must give
the same answers.

    quotes   a list of sentences, and an answer that repeats them in another order, at temperature 0
    story    what the model writes when it is asked for a story, in which phrases come again, at temperature 1
    noise    the same at temperature 2, in which hardly a pair of tokens comes again

Each is measured with 1, 4 and 32 requests at a time: tokens a second, from the first token of all to the last. Batches
have twice as many rounds of half as many tokens. Ratios are medians of those of single rounds, each with an interval
that holds the true median 19 times in 20, if rounds are alike.
`beside` measures the gaps of 4 streams while prompts of 2,000 tokens are computed, which arrive one after the other.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.checkpoint.stories import story as written
from benchmarks.long_context.link import TimedLink
from sluice.assembly.engine import build_engine
from sluice.bench.results import IN_PROCESS_PACKAGES, machine, versions
from sluice.config import EngineConfig
from sluice.engine.engine import Engine
from sluice.models import default_model
from sluice.process.engine_process import freeze_gc
from sluice.text.tokenizer import Tokenizer
from sluice.text.tokenizer_files import load_tokenizer
from sluice.types import Output, SamplingParams, Submit

NGRAM = {"speculative_algorithm": "ngram"}
BATCHES = (1, 4, 32)
LONG_PROMPT = 2000
STREAMS = 4


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one kind."""

    prompt: Callable[[random.Random], str]
    temperature: float


def quotes(draw: random.Random) -> str:
    """A list of sentences, and the beginning of an answer that says them again."""
    sentences = [f"{each}." for _ in range(4) for each in written(draw).rstrip(".").split(". ")]
    return chat(" ".join(sentences)) + " ".join(draw.sample(sentences, 3))


def story(draw: random.Random) -> str:
    return chat(draw.choice(["Tell me a story.", "Can you tell me a short story?", "I would like to hear a story."]))


def chat(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


KINDS = {"quotes": Kind(quotes, 0.0), "story": Kind(story, 1.0), "noise": Kind(story, 2.0)}


class CpuLink(TimedLink):
    """Times tokens by the processor time of this process, which other processes change little."""

    def send(self, outputs: Sequence[Output]) -> None:
        super().send(outputs)
        now = time.process_time()
        for output in outputs:
            times, count = self.times[output.request_id], len(output.token_ids)
            times[len(times) - count :] = [now] * count


@dataclass(slots=True)
class Rig:
    """An engine, and the requests given to it."""

    engine: Engine
    link: TimedLink
    folder: Path
    """Of its tokenizer."""
    ids: count[int] = field(default_factory=count)

    @classmethod
    def of(cls, model: str | None, options: dict[str, Any], link: TimedLink) -> Rig:
        config = EngineConfig.from_options(options if model is None else {"model": model} | options)
        engine, info = build_engine(config, link, progress=False)
        return cls(engine, link, info.tokenizer_folder)

    def submit(self, prompt: Sequence[int], seed: int, tokens: int, temperature: float) -> int:
        request_id = next(self.ids)
        sampling = SamplingParams(max_tokens=tokens, temperature=temperature, seed=seed)
        self.link.put(Submit(request_id, tuple(prompt), sampling))
        return request_id

    def finish(self, ids: Sequence[int]) -> None:
        while not all(request_id in self.link.ended for request_id in ids):
            self.engine.step()

    def rate(self, ids: Sequence[int]) -> float:
        """Return the tokens a second of some requests, from the first of all tokens to the last."""
        times = [self.link.times[each] for each in ids]
        began, ended = min(each[0] for each in times), max(each[-1] for each in times)
        return sum(at > began for each in times for at in each) / (ended - began)

    def latest(self, ids: Sequence[int]) -> float:
        """Return the time of the latest token of some requests."""
        return max(self.link.times[each][-1] for each in ids)

    def gaps(self, ids: Sequence[int], began: float, ended: float) -> list[float]:
        """Return the seconds between arrivals of tokens of each request, of those that a span of time overlaps."""
        times = [sorted(set(self.link.times[each])) for each in ids]
        pairs = [pair for each in times for pair in pairwise(each)]
        return [after - before for before, after in pairs if after > began and before < ended]

    def drafts(self) -> tuple[int, int, int]:
        """Return rows with drafts, drafts, and those that were accepted, since the engine began."""
        return self.engine.meter.totals().drafts[:3]


@dataclass(slots=True)
class Pair:
    """The two engines."""

    plain: Rig
    ngram: Rig
    tokenizer: Tokenizer

    def in_turns(self, number: int) -> list[Rig]:
        return [self.plain, self.ngram] if number % 2 == 0 else [self.ngram, self.plain]

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)


def measure_rates(pair: Pair, kind: Kind, batch: int, tokens: int, rounds: int, seed: int) -> dict[str, Any]:
    """Measure tokens a second of both engines in rounds of new prompts."""
    rates: dict[str, list[float]] = {"plain": [], "ngram": []}
    before = pair.ngram.drafts()
    for number in range(rounds):
        draw = random.Random(f"{seed}, {number}, {batch}, {kind.temperature}")
        prompts = [pair.encode(kind.prompt(draw)) for _ in range(batch)]
        seeds = [draw.getrandbits(32) for _ in prompts]  # no answer is one that was given before
        answers = []
        for rig in pair.in_turns(number):
            ids = [rig.submit(*each, tokens, kind.temperature) for each in zip(prompts, seeds, strict=True)]
            rig.finish(ids)
            answers.append([rig.link.tokens[each] for each in ids])
            rates["plain" if rig is pair.plain else "ngram"].append(rig.rate(ids))
        if answers[0] != answers[1]:
            print(f"round {number}: answers differ in {sum(a != b for a, b in zip(*answers, strict=True))} requests")
    rows, drafted, accepted = (after - each for after, each in zip(pair.ngram.drafts(), before, strict=True))
    ratios = ratios_of(rates)
    return {
        "plain_tokens_per_s": round(statistics.median(rates["plain"]), 1),
        "ngram_tokens_per_s": round(statistics.median(rates["ngram"]), 1),
        **ratios_seen(ratios),
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_length": round(1 + accepted / rows, 2) if rows else None,
    }


def measure_beside(pair: Pair, tokens: int, rounds: int, seed: int) -> dict[str, Any]:
    """Measure the gaps of streams that quote while long prompts are computed, which arrive one after the other."""
    gaps: dict[str, list[float]] = {"plain": [], "ngram": []}
    highest: dict[str, list[float]] = {"plain": [], "ngram": []}
    for number in range(rounds):
        draw = random.Random(seed + number)
        prompts = [pair.encode(quotes(draw)) for _ in range(STREAMS)]
        long = [pair.encode(chat(" ".join(quotes(draw) for _ in range(12))))[:LONG_PROMPT] for _ in range(8)]
        for rig in pair.in_turns(number):
            ids = [rig.submit(each, seed, tokens, 0.0) for each in prompts]
            while not all(rig.link.times.get(each) for each in ids):
                rig.engine.step()
            began = rig.latest(ids)
            others: list[int] = []
            for prompt in long:
                others.append(rig.submit(prompt, seed, 1, 0.0))
                rig.finish(others)
            rig.finish(ids)
            found, name = rig.gaps(ids, began, rig.latest(others)), "plain" if rig is pair.plain else "ngram"
            gaps[name] += found
            highest[name].append(float(np.quantile(found, 0.99)))
    return {name: quantiles(each) for name, each in gaps.items()} | {"p99": ratios_seen(ratios_of(highest))}


def ratios_of(found: dict[str, list[float]]) -> list[float]:
    """Return what was found with guesses over what was found without, by round, the smallest first."""
    return sorted(after / each for each, after in zip(found["plain"], found["ngram"], strict=True))


def ratios_seen(ratios: Sequence[float]) -> dict[str, Any]:
    """Return the median of sorted ratios with its interval, and all of them."""
    rank = rank_below_median(len(ratios))
    return {
        "ratio": round(statistics.median(ratios), 3),
        "interval": [round(ratios[rank], 3), round(ratios[-1 - rank], 3)],
        "ratios": [round(each, 3) for each in ratios],
    }


def rank_below_median(size: int) -> int:
    """Return the rank from 0 of the sorted value that the true median is below once in 40 times at most, or 0."""
    rank, below = 0, 1
    while (below + math.comb(size, rank + 1)) / 2**size <= 1 / 40:
        rank += 1
        below += math.comb(size, rank)
    return rank


def quantiles(gaps: Sequence[float]) -> dict[str, float]:
    """Return figures in milliseconds."""
    found = {f"p{share}_ms": round(1000 * float(np.quantile(gaps, share / 100)), 2) for share in (50, 90, 99)}
    return found | {"max_ms": round(1000 * max(gaps), 2), "gaps": len(gaps)}


def measure(pair: Pair, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure everything that was asked for. Every figure is printed when it is there."""
    found: dict[str, Any] = {}
    for batch in arguments.batches:
        for name in arguments.kinds:
            rounds, tokens = arguments.rounds, arguments.tokens
            if batch > 1:
                rounds, tokens = 2 * rounds, tokens // 2
            key = f"{name}, {batch} at a time"
            measure_rates(pair, KINDS[name], batch, arguments.tokens // 4, 2, 1000)
            found[key] = measure_rates(pair, KINDS[name], batch, tokens, rounds, 0)
            print(key, json.dumps(found[key]), flush=True)
    if arguments.beside:
        found["beside"] = measure_beside(pair, 4 * arguments.tokens, arguments.rounds, 0)
        print("beside", json.dumps(found["beside"]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="default: that of `sluice serve`")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=8, help="of batches of 1; twice as many of others")
    parser.add_argument("--tokens", type=int, default=160, help="of an answer")
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES)
    parser.add_argument("--kinds", nargs="*", default=[*KINDS], choices=[*KINDS])
    parser.add_argument("--beside", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--threads", type=int, help="of the kernels")
    parser.add_argument("--cpu-time", action="store_true", help="measure processor time, on a machine that is busy")
    arguments = parser.parse_args()
    options = {} if arguments.threads is None else {"threads": arguments.threads}
    began, load = time.perf_counter(), os.getloadavg()[0]
    new_link = CpuLink if arguments.cpu_time else TimedLink
    plain = Rig.of(arguments.model, options, new_link())
    ngram = Rig.of(arguments.model, options | NGRAM, new_link())
    freeze_gc()
    with closing(plain.engine), closing(ngram.engine):
        found = measure(Pair(plain, ngram, load_tokenizer(plain.folder)), arguments)
    report = {
        "model": arguments.model or default_model.NAME,
        "tokens": arguments.tokens,
        "rounds": arguments.rounds,
        "threads": arguments.threads,
        "cpu_time": arguments.cpu_time,
        "machine": machine(),
        "versions": versions(IN_PROCESS_PACKAGES),
        "load_before": round(load, 2),
        "seconds": round(time.perf_counter() - began, 1),
        "measured": found,
    }
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
