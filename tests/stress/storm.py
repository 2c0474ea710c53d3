"""Damage a server in many ways while clients use all of its API, and compare each answer with an undisturbed one.

    python tests/stress/storm.py --minutes 20 --seed 1 --json storm.json

A server of a random model, with a page file, offloaded contexts and a trace, first answers every request in calm.
Then clients send the same requests while blows are struck: the engine is killed, stopped, or short of memory,
descriptors or disk; the page file is damaged; the temporary folder is removed; the server itself is killed; clients
leave, read slowly or are too many. Every answer is compared with its calm twin, token by token and log-probability by
log-probability. The model computes in float64, where the order of sums changes no token.

    same              the calm twin
    refused           status 503 with Retry-After, or no descriptor to connect to: the client tries again
    cut               the server itself was ended: what came is the beginning of the twin, and the client tries again
    left              the client left: what came is the beginning of the twin
    failed by name    the page file was damaged, and an offloaded request ended with `tier_unavailable`
    lost, repeated, changed    what must not be

A round strikes each blow once, in an order of its own, and ends with a pause, in which no request may run, wait or hold
a page, and no descriptor, process or socket folder may be more than before. Blows that replace the server are struck in
the first half of the time only.

Memory (resident, in MiB) is measured in each pause, of the server and of an engine that was started in this pause and
has served the same few requests as those measured before. A server must be within 3% of its own first pause after a
round, and the median of the engines in the second half of the pauses within 3% of that in the first half.

Options after `--` are passed to `sluice serve`. The exit status is 1 if anything was lost, repeated or changed, or did
not come back. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[1:3])  # tests, and the repository

from stress.storms.blows import BLOWS
from stress.storms.report import summary
from stress.storms.requests import StormRequest, request_of
from stress.storms.rounds import Plan, storm
from stress.written import show


def named(name: str) -> StormRequest:
    """Return the request of this name, for argparse."""
    seed, _, number = name.partition(":")
    if not (seed.isdecimal() and number.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be the name of a request, like 1:29, got {name!r}")
    return request_of(int(seed), int(number))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="time in which blows are struck")
    parser.add_argument("--seed", type=int, default=0, help="seed of requests, blows and clients")
    parser.add_argument("--requests", type=int, default=Plan.requests, help="different requests")
    parser.add_argument("--clients", type=int, default=Plan.clients, help="clients at a time, but for overload")
    parser.add_argument(
        "--request", type=named, metavar="SEED:NUMBER", help="print the path and the body of a request, and end"
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT", help="blows whose name contains one of these")
    parser.add_argument("--json", type=Path, help="write the record here")
    parser.add_argument("--log", type=Path, help="append what the servers log to this file")
    parser.add_argument("options", nargs="*", help="options of sluice serve, after --")
    args = parser.parse_args()
    if args.request is not None:
        print(args.request.path, args.request.content().decode(), sep="\n")
        return 0
    blows = tuple(blow for blow in BLOWS if not args.only or any(text in blow.name for text in args.only))
    if not blows:
        parser.error(f"--only {' '.join(args.only)} names no blow; there are: {', '.join(each.name for each in BLOWS)}")
    plan = Plan(args.minutes, args.seed, args.requests, args.clients, tuple(args.options), blows, log=args.log)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the servers end with the storm
    record = asyncio.run(storm(plan, lambda line: print(line, file=sys.stderr, flush=True)))
    print(summary(record), file=sys.stderr)
    show({"seed": plan.seed, "minutes": plan.minutes, "options": plan.options} | record.as_json(), args.json)
    return int(bool(record.tally.problems))


if __name__ == "__main__":
    sys.exit(main())
