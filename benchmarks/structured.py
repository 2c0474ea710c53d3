"""Measure what grammars cost the steps, the neighbours and the requests that have them.

    python benchmarks/structured.py --out build/structured.json

One engine runs in this process, over a small model with random weights and a vocabulary of 151,936 tokens: a mask costs
what it costs a large model, and the forward next to nothing, so the share of grammars is the largest there can be.

    itl           64 streams of which none, half and all have a grammar, in turns: time between tokens
    pathological  8 streams without a grammar beside one whose grammar is hostile: their longest gap
    cache         64 requests with 4 grammars: what was compiled
    jump          5 schemas, with and without computing forced tokens in one chunk: steps and seconds
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from llguidance import LLMatcher

from benchmarks.checkpoint.shapes import SHAPES
from benchmarks.long_context.link import TimedLink
from benchmarks.make_checkpoint import write_checkpoint
from sluice.assembly.engine import build_engine
from sluice.bench.results import IN_PROCESS_PACKAGES, machine, versions
from sluice.config import EngineConfig
from sluice.engine.engine import Engine
from sluice.engine.messages import Abort
from sluice.process.engine_process import freeze_gc
from sluice.runner.constrained_row import ConstrainedRow
from sluice.types import SamplingParams, Submit

STREAMS = 64
NEIGHBOURS = 8
TOKENS = 40
ROUNDS = 3
OBJECT = {"type": "object", "additionalProperties": False}
WORDS = {"type": "array", "items": {"type": "string"}, "minItems": 1000}


def closed(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties, all required."""
    return {**OBJECT, "properties": properties, "required": list(properties)}


TEXT = {"type": "string", "maxLength": 12}
NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
JUMPS = {
    "person": closed(name=TEXT, age=NUMBER, is_member={"type": "boolean"}),
    "address": closed(street=TEXT, house_number=NUMBER, postal_code=TEXT, city=TEXT),
    "order": closed(order_id=NUMBER, customer=closed(customer_name=TEXT, email_address=TEXT), total_price=NUMBER),
    "weather call": closed(
        name={"const": "get_current_weather"},
        arguments=closed(location=TEXT, temperature_unit={"enum": ["celsius", "fahrenheit"]}),
    ),
    "measurements": closed(**{f"measurement_{letter}": NUMBER for letter in "abcdefgh"}),
}
HOSTILE = {
    "deep anyOf": {"$defs": {"n": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/n"}}]}}}
    | {"anyOf": [closed(**{f"k{i}": {"$ref": "#/$defs/n"}, "end": TEXT}) for i in range(200)]},
    "enum of 20,000": {"enum": [f"value {i * 7919 % 20000:05d} of the list" for i in range(20_000)]},
    "regex {0,10000}": None,
    "nested repeats": None,
}
REGEXES = {"regex {0,10000}": r"(a|b|ab|[a-z]{2}){0,10000}", "nested repeats": r"((a?){0,100}b?){0,100}c"}


def grammar_of(schema: dict[str, Any] | None, name: str = "") -> str:
    """Return the grammar of a schema, or of the regular expression of that name."""
    if schema is None:
        return LLMatcher.grammar_from_regex(REGEXES[name])
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})


@dataclass
class Rig:
    """An engine and its requests."""

    engine: Engine
    link: TimedLink
    ids: Iterator[int]

    def submit(self, grammar: str, max_tokens: int, seed: int = 0, temperature: float = 0.0) -> int:
        """Send a request and return its id."""
        request_id = next(self.ids)
        sampling = SamplingParams(
            max_tokens=max_tokens, temperature=temperature, seed=seed + request_id, ignore_eos=True
        )
        self.link.put(Submit(request_id, tuple(range(20, 36)), sampling, grammar=grammar, extra_key=str(request_id)))
        return request_id

    def finish(self, ids: Sequence[int]) -> None:
        while not all(request_id in self.link.ended for request_id in ids):
            self.engine.step()

    def gaps(self, ids: Sequence[int], since: float = 0.0) -> list[float]:
        """Return the seconds between the arrivals of tokens of each of these requests."""
        return [
            after - before
            for request_id in ids
            for before, after in pairwise(sorted(set(self.link.times.get(request_id, ()))))
            if before >= since
        ]


def quantiles(gaps: Sequence[float]) -> dict[str, float]:
    """Return figures in milliseconds."""
    p50, p99 = (1000 * float(np.quantile(gaps, q)) for q in (0.5, 0.99))
    return {"p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "max_ms": round(1000 * max(gaps), 2)}


def measure_itl(rig: Rig, streams: int, tokens: int) -> dict[str, Any]:
    """Measure the time between tokens, with masks for none, half and all of the streams, in turns."""
    grammar = grammar_of(WORDS)
    rig.finish([rig.submit(grammar, 4)])
    seen: dict[str, list[float]] = {"none": [], "half": [], "all": []}
    for _ in range(ROUNDS):
        for name, every in (("none", 0), ("half", 2), ("all", 1)):
            ids = [rig.submit(grammar if every and index % every == 0 else "", tokens) for index in range(streams)]
            rig.finish(ids)
            begun = max(min(rig.link.times[each]) for each in ids)
            seen[name] += rig.gaps(ids, since=begun)
    return {name: quantiles(gaps) for name, gaps in seen.items()}


def measure_hostile(rig: Rig, tokens: int) -> dict[str, Any]:
    """Measure the gaps of streams beside one request with a hostile grammar."""
    found: dict[str, Any] = {}
    for name, schema in HOSTILE.items():
        ids = [rig.submit("", 20 * tokens) for _ in range(NEIGHBOURS)]
        while not all(len(rig.link.tokens.get(each, ())) > 20 for each in ids):
            rig.engine.step()
        alone = rig.gaps(ids)
        began, steps = time.perf_counter(), rig.engine.meter.totals().steps
        hostile = rig.submit(grammar_of(schema, name), tokens)
        while hostile not in rig.link.ended and ids[0] not in rig.link.ended:
            rig.engine.step()
        beside = rig.gaps(ids, since=began)
        taken = rig.engine.meter.totals().steps - steps
        got = max(len([at for at in rig.link.times[each] if at >= began]) for each in ids)
        for request_id in (*ids, hostile):
            rig.link.put(Abort(request_id))
        while rig.engine.scheduler.has_work:
            rig.engine.step()
        found[name] = {
            "alone": quantiles(alone),
            "beside": quantiles(beside),
            "longest_gap_in_steps": round(max(beside) / float(np.median(alone)), 2),
            "steps": taken,
            "tokens_of_each_neighbour": got,
            "tokens": len(rig.link.tokens.get(hostile, ())),
            "error": rig.link.ended.get(hostile),
        }
        print(name, json.dumps(found[name]), flush=True)
    return found


def measure_cache(rig: Rig) -> dict[str, int]:
    """Send 64 requests with 4 grammars that are new."""
    before = rig.engine.grammars.totals()
    schemas = [closed(**{f"field_{index}": NUMBER}) for index in range(4)]
    rig.finish([rig.submit(grammar_of(schemas[index % 4]), 8) for index in range(64)])
    after = rig.engine.grammars.totals()
    return {"hits": after.hits - before.hits, "misses": after.misses - before.misses}


def measure_jumps(rig: Rig) -> dict[str, Any]:
    """Answer each schema with and without computing forced tokens in one chunk."""
    found: dict[str, Any] = {}
    for name, schema in JUMPS.items():
        figures: dict[str, Any] = {}
        for kind in ("jumps", "steps"):
            with_jumps(may_jump=kind == "jumps")
            rig.finish([rig.submit(grammar_of(schema), 200, 7, 1.0)])
            before, began = rig.engine.meter.totals().steps, time.perf_counter()
            ids = [rig.submit(grammar_of(schema), 200, each, 1.0) for each in range(8)]
            rig.finish(ids)
            seconds = time.perf_counter() - began
            figures[kind] = {
                "tokens": sum(len(rig.link.tokens[each]) for each in ids),
                "steps": rig.engine.meter.totals().steps - before,
                "seconds": round(seconds, 3),
            }
        found[name] = figures
        print(name, json.dumps(figures), flush=True)
    with_jumps(may_jump=True)
    return found


MAKE = ConstrainedRow.__init__


def with_jumps(*, may_jump: bool) -> None:
    """Let rows from now on compute forced tokens in one chunk, or one in each step."""

    def init(self: ConstrainedRow, *given: Any) -> None:
        MAKE(self, *given)
        self._may_jump = may_jump and self._may_jump

    ConstrainedRow.__init__ = init  # type: ignore[method-assign]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="file of the results")
    parser.add_argument("--model", type=Path, default=Path("build/structured"), help="folder of the random model")
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    given = parser.parse_args()
    if not given.model.is_dir():
        shape = SHAPES["qwen3-0.6b"]
        write_checkpoint(given.model, replace(shape.tiny(), vocab_size=shape.vocab_size))
    options = {
        "model": str(given.model),
        "max_running_requests": given.streams + 8,
        "max_total_tokens": 1 << 16,
        "chunked_prefill_size": 256,
    }
    link = TimedLink()
    engine, info = build_engine(EngineConfig.from_options(options), link, progress=False, prepares_grammars=True)
    freeze_gc()
    rig = Rig(engine, link, count())
    results: dict[str, Any] = {
        "format": "sluice-structured-1",
        "command": sys.argv,
        "machine": machine(),
        "versions": versions((*IN_PROCESS_PACKAGES, "llguidance")),
        "vocabulary": info.limits.vocab_size,
        "streams": given.streams,
    }
    with closing(engine):
        for name, measure in (
            ("itl", lambda: measure_itl(rig, given.streams, given.tokens)),
            ("cache", lambda: measure_cache(rig)),
            ("jump", lambda: measure_jumps(rig)),
            ("pathological", lambda: measure_hostile(rig, given.tokens)),
        ):
            results[name] = measure()
            print(name, json.dumps(results[name]), flush=True)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
