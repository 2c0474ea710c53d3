"""Compare `sluice bench` with an independent client: both measure one server with the same requests, in turns.

    python benchmarks/make_checkpoint.py --shape gpt2-124m --out build/checkpoints/gpt2-124m
    python benchmarks/agreement.py --checkpoint build/checkpoints/gpt2-124m --json benchmarks/results/agreement.json
    python benchmarks/agreement.py --step-ms 100 --json benchmarks/results/agreement-paced.json

A server that computes needs a quiet machine. With --step-ms the same server runs a model that takes no processor time:
every step has this length and every token is a word, so differences come from the clients.

The other client is AIPerf (`aiperf_client.py`). In every round first `sluice bench`, then AIPerf sends the same bodies
in the same order, one every --interval-ms, to a server without a prefix cache. A client's number is the median over its
rounds. Means, medians and throughput must be within 3% of each other, 99th percentiles within 10%; the exit status is 1
if one is not. Requests have a schedule, not a fixed concurrency: in a closed loop one client's next request reaches the
step that is being planned and the other's does not, and both are right about different things.

AIPerf counts latencies from when it sends, so ours are those "after send".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import aiperf_client
from benchmarks.aiperf_client import Figures, Sending
from benchmarks.checkpoint.words import write_word_tokenizer
from benchmarks.peers.environment import HOME, SetupError
from benchmarks.peers.peer import Settings
from benchmarks.peers.server_process import free_port, serving
from benchmarks.peers.sluice_server import Sluice
from benchmarks.shadow_server import VOCAB
from benchmarks.shadow_server import server as shadow_server
from sluice.bench import BenchError
from sluice.bench.command import checked_path
from sluice.bench.driver import Timer
from sluice.bench.measure import measure_once, server_target, warm_up, workload_of
from sluice.bench.metrics import Spread, Summary, summarize
from sluice.bench.openai import ServerTarget
from sluice.bench.options import BenchOptions, options_from
from sluice.bench.records import Run
from sluice.bench.report import milliseconds
from sluice.bench.results import machine, versions
from sluice.bench.workload import Workload, warmup_turns
from sluice.config import ConfigError

LIMIT, TAIL_LIMIT = 0.03, 0.10
NAMES = (
    *(f"{latency} {statistic}" for latency in aiperf_client.LATENCIES for statistic in aiperf_client.STATISTICS),
    *aiperf_client.RATES,
)


@dataclass(frozen=True, slots=True)
class Row:
    """A number of both clients, over the rounds. Latencies are in seconds."""

    name: str
    ours: float
    theirs: float
    limit: float
    rounds: tuple[tuple[float, float], ...]
    """Ours and theirs in each round."""

    @property
    def ratio(self) -> float:
        """Ours / theirs."""
        return self.ours / self.theirs

    @property
    def agrees(self) -> bool:
        return abs(self.ratio - 1) <= self.limit


def figures_of(run: Run) -> Figures:
    """Return the figures of a run, under the names and definitions that both clients share.

    Raises:
        BenchError: events held several tokens: then our ITLs are of tokens, the other client's of events.
    """
    summary = summarize(run.requests)
    if summary.bundled_events:
        raise BenchError(f"{summary.bundled_events} events held several tokens; ITLs cannot be compared")
    spreads = {
        "TTFT": summary.all.ttft_after_send,
        "TPOT": summary.all.tpot,
        "ITL": summary.all.itl,
        "end to end": summary.all.e2e_after_send,
    }
    numbers = {name: value for latency, spread in spreads.items() for name, value in _named(latency, spread)}
    return Figures(
        requests=summary.requests - summary.failed,
        failed=summary.failed,
        prompt_tokens=summary.prompt_tokens,
        output_tokens=summary.output_tokens,
        numbers=numbers | _rates(summary),
    )


def _named(latency: str, spread: Spread) -> Iterator[tuple[str, float]]:
    for statistic, value in (("mean", spread.mean), ("p50", spread.p50), ("p99", spread.p99)):
        if value is not None:
            yield f"{latency} {statistic}", value


def _rates(summary: Summary) -> dict[str, float]:
    return {"requests/s": summary.requests_per_second, "output tokens/s": summary.output_per_second}


def rows(rounds: Sequence[tuple[Figures, Figures]]) -> list[Row]:
    """Put the figures of both clients side by side.

    Raises:
        BenchError: requests failed, or the clients did not do the same work.
    """
    for ours, theirs in rounds:
        if ours.failed or theirs.failed:
            raise BenchError(f"requests failed: {ours.failed} of ours, {theirs.failed} of the other client's")
        for name in ("requests", "prompt_tokens", "output_tokens"):
            mine, other = getattr(ours, name), getattr(theirs, name)
            if mine != other:
                raise BenchError(f"the clients did not do the same work: {name} {mine} and {other}")
    return [_row(name, [(ours.numbers[name], theirs.numbers[name]) for ours, theirs in rounds]) for name in NAMES]


def _row(name: str, pairs: Sequence[tuple[float, float]]) -> Row:
    ours, theirs = (statistics.median(values) for values in zip(*pairs, strict=True))
    return Row(name, ours, theirs, TAIL_LIMIT if name.endswith("p99") else LIMIT, tuple(pairs))


def bodies(target: ServerTarget, workload: Workload, options: BenchOptions) -> list[bytes]:
    """Return the bodies that `sluice bench` sends, the warm-up first."""
    vocab_size = options.target.vocab_size
    turns = warmup_turns(workload, options.workload, options.run.warmup, vocab_size=vocab_size)
    turns += [session.turns[0] for session in workload.sessions]
    return [target.prepare(turn, ()).partition(b"\r\n\r\n")[2] for turn in turns]


async def ours(target: ServerTarget, options: BenchOptions, repeat: int) -> Figures:
    await warm_up(target, options)
    return figures_of(await measure_once(target, options, repeat))


def measure(url: str, tokenizer: Path, options: BenchOptions, rounds: int) -> list[tuple[Figures, Figures]]:
    """Measure with both clients in turns.

    Raises:
        BenchError: a client fails, or its figures cannot be compared.
    """
    target = asyncio.run(server_target(url, options, Timer()))
    found = []
    for repeat in range(rounds):
        print(f"round {repeat + 1} of {rounds}", file=sys.stderr, flush=True)
        own = asyncio.run(ours(target, options, repeat))
        sending = Sending(
            bodies(target, workload_of(options, repeat), options),
            options.run.warmup,
            options.workload.submit_interval_ms or 0.0,
        )
        folder = HOME / "logs" / f"agreement-{repeat}"
        found.append((own, aiperf_client.measure(url, target.model, tokenizer, sending, folder)))
    return found


def table(shown: Sequence[Row]) -> Iterator[str]:
    yield f"{'':<24}{'sluice bench':>14}{'aiperf':>12}{'ratio':>10}{'limit':>8}"
    for row in shown:
        is_rate = row.name in aiperf_client.RATES
        values = [f"{value:.2f}" if is_rate else milliseconds(value) for value in (row.ours, row.theirs)]
        unit = "" if is_rate else ", ms"
        verdict = "agrees" if row.agrees else "DIFFERS"
        yield f"{row.name + unit:<24}{values[0]:>14}{values[1]:>12}{row.ratio:>10.3f}{row.limit:>8.0%}  {verdict}"


def workload_options(args: argparse.Namespace) -> BenchOptions:
    """Return the workload of the command line.

    Raises:
        ConfigError: an option has a value that is not accepted.
    """
    if not args.interval_ms > 0:
        raise ConfigError(f"--interval-ms must be more than 0, got {args.interval_ms:g}")
    return options_from(
        {
            "num_requests": args.requests,
            "submit_interval_ms": args.interval_ms,
            "prompt_tokens": str(args.prompt_tokens),
            "output_tokens": str(args.output_tokens),
            "ignore_eos": True,
            "warmup": 3,
        }
    )


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        options, path = workload_options(args), checked_path("--json", args.json)
        if args.rounds < 1:
            raise ConfigError(f"--rounds must be at least 1, got {args.rounds}")
        if args.step_ms is not None and not 1 <= args.step_ms < math.inf:
            raise ConfigError(f"--step-ms must be at least 1, got {args.step_ms}")
        aiperf_client.ENVIRONMENT.set_up()
        with _served(args) as (url, tokenizer):
            found = rows(measure(url, tokenizer, options, args.rounds))
    except (ConfigError, SetupError, BenchError) as error:
        print(f"agreement: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    print("\n".join(table(found)))
    agree = all(row.agrees for row in found)
    print("all agree" if agree else "not all agree")
    if path is not None:
        path.write_text(json.dumps(_record(args, options, found, agree), indent=2) + "\n", encoding="utf-8")
    return 0 if agree else 1


@contextmanager
def _served(args: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Start the server, with the clients on the last core and the server on the others.

    A client of several processes would else take time from the server, and rightly find it slower.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:-1] or cores)  # the server inherits it
    try:
        with _started(args) as served:
            os.sched_setaffinity(0, cores[-1:])
            yield served
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def _started(args: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Start a server without a prefix cache. Returns its address, and a folder with its tokenizer."""
    if args.step_ms is not None:
        with tempfile.TemporaryDirectory() as folder:
            write_word_tokenizer(Path(folder), VOCAB)
            with shadow_server(args.step_ms, model=folder, enable_prefix_caching=False) as (port, _):
                yield f"http://127.0.0.1:{port}", Path(folder)
        return
    settings = Settings(args.checkpoint, threads=args.threads, more=("--no-enable-prefix-caching",))
    port = free_port()
    with serving(Sluice().serve(settings, port), port, HOME / "logs" / "agreement-server.log"):
        yield f"http://127.0.0.1:{port}", args.checkpoint


def _record(args: argparse.Namespace, options: BenchOptions, found: Sequence[Row], agree: bool) -> dict[str, Any]:
    return {
        "benchmark": "agreement",
        "served": f"steps of {args.step_ms:g} ms" if args.checkpoint is None else args.checkpoint.resolve().name,
        "rounds": args.rounds,
        "threads": args.threads,
        "all_agree": agree,
        "workload": asdict(options.workload),
        "numbers": [asdict(row) | {"ratio": row.ratio, "agrees": row.agrees} for row in found],
        "versions": versions(("torch",)) | aiperf_client.ENVIRONMENT.versions(("aiperf", "aiohttp")),
        "machine": machine(),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    served = parser.add_mutually_exclusive_group(required=True)
    served.add_argument("--checkpoint", type=Path, help="a Hugging Face folder to serve")
    served.add_argument("--step-ms", type=float, help="instead: serve steps of this length")
    parser.add_argument("--json", metavar="FILE", help="write the numbers of every round")
    parser.add_argument("--rounds", type=int, default=4, help="number of rounds (default: 4)")
    parser.add_argument("--requests", type=int, default=100, help="requests of a client in a round (default: 100)")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="tokens of a prompt (default: 128)")
    parser.add_argument("--output-tokens", type=int, default=24, help="tokens of an answer (default: 24)")
    parser.add_argument("--interval-ms", type=float, default=417.0, help="time between requests (default: 417)")
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of the engine; one core is left to the clients (default: 1)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
