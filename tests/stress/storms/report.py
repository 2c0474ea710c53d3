"""Prints a storm's record as tables: what was tried, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator

from stress.storms.load import BAD, CUT, FAILED, LEFT, REFUSED, SAME
from stress.storms.rounds import Record

OUTCOMES = (SAME, REFUSED, CUT, LEFT, FAILED, *BAD)


def summary(record: Record) -> str:
    """Return the tables of a record."""
    return "\n".join([*_blows(record), "", *_requests(record), "", *_problems(record)])


def _blows(record: Record) -> Iterator[str]:
    yield f"{record.rounds} rounds, {record.seconds:.0f} s, {record.fronts} servers, {record.engines} engines"
    yield f"{'blow':44}{'struck':>8}{'engines':>9}{'longest, s':>12}"
    for name, counts in record.struck.items():
        yield f"{name:44}{counts['struck']:8}{counts['engines replaced']:9}{counts['longest recovery, s']:12}"


def _requests(record: Record) -> Iterator[str]:
    yield f"{'requests':24}" + "".join(f"{name:>16}" for name in OUTCOMES)
    for label, counts in sorted(record.tally.outcomes.items()):
        yield f"{label:24}" + "".join(f"{counts[name]:16}" for name in OUTCOMES)


def _problems(record: Record) -> Iterator[str]:
    for message, count in record.tally.errors.most_common():
        yield f"failed by name, {count} times: {message}"
    if not record.tally.problems:
        yield "nothing was lost, repeated or changed, and everything is back"
    for problem in record.tally.problems:
        yield "; ".join(f"{name}: {value}" for name, value in problem.items())
