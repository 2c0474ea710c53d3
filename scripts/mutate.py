"""Plant bugs in the core one at a time, and list those that no test notices.

Each mutant (`mutants.py`, `mutants_by_hand.py`) is written to a copy of the package, and the fast core tests run
against that copy in a forked process that has pytest loaded already; the working tree is only read. Mutants outside
the core run against other tests (`SUITES`), and those written by hand without the tests that are marked slow. The tests
nearest to the mutated file run first, quick ones before slow ones, and the first failure ends the run. A test that
takes much longer than without a mutant counts as failed.

Verdicts are kept under build/mutation, by the fingerprint of code and tests, so an interrupted run continues. A
survivor shows a missing test, or is explained in tests/mutation_survivors.toml. Exit status: 0 if every survivor
is explained, 1 if one is not, 2 if the tests fail without any mutant or the command line is wrong.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import importlib.util
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType

import pytest

from mutants import FILES, PACKAGE, Mutant, all_mutants
from mutants_by_hand import BY_HAND

ROOT = PACKAGE.parent.parent
SUITE = ("tests/kv", "tests/scheduler", "tests/prior_art", "tests/engine", "tests/laws", "tests/tracing")
SUITES = MappingProxyType({"runner": ("tests/parity/test_offloaded_rows.py",)})
"""Package -> the tests that its mutants run against, where these are not the core's: mutants written by hand alone."""
NOT_SLOW = ("-m", "not slow")
EXPLAINED = ROOT / "tests" / "mutation_survivors.toml"
RESULTS = ROOT / "build" / "mutation"
PRELOADED = ("hypothesis.stateful", "hypothesis.strategies")
PYTEST_ARGS = (
    *("-x", "-q", "-o", "addopts=", "--import-mode=importlib", "--hypothesis-profile=ci"),
    *("-p", "no:cacheprovider", "-p", "no:xdist"),
    "-Wignore::pytest.PytestAssertRewriteWarning",  # for modules loaded before the fork
)
MEMORY_LIMIT = 4 << 30
TORCH_MEMORY_LIMIT = 32 << 30
"""Address space of tests that import torch."""
SLOWEST = 5.0
"""A test may take this many times its time without a mutant, and GRACE seconds more."""
GRACE = 5.0
FAR_FUTURE = 2_000_000_000
"""First modification time of mutated files. Each has its own, so that no compiled file is taken for another's."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one mutant: the test that noticed it, if any, and after how many seconds."""

    key: str
    killed_by: str
    seconds: float

    @property
    def survived(self) -> bool:
        return not self.killed_by


class Watch:
    """A pytest plugin that orders the tests, limits the time of each, and records the results.

    The limit is the default action of SIGALRM, which ends the process: Python code stuck in a loop cannot ignore it.
    """

    def __init__(self, events: Path, first: str, times: Mapping[str, float]) -> None:
        self.events = events
        self.first = first
        self.times = times

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if len({item.path for item in items}) == 1:
            return  # the first test of a file pays for what they share
        items.sort(key=lambda item: (not item.nodeid.startswith(self.first), self.times.get(item.nodeid, 0.0)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write("start", nodeid, 0.0)
        if self.times:
            signal.setitimer(signal.ITIMER_REAL, GRACE + SLOWEST * self.times.get(nodeid, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.write("failed" if report.failed else "passed", report.nodeid, report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write("failed", f"collecting {report.nodeid}", 0.0)

    def write(self, event: str, nodeid: str, seconds: float) -> None:
        with self.events.open("a") as file:
            file.write(json.dumps([event, nodeid, seconds]) + "\n")


@dataclass(slots=True)
class Job:
    """A run of the tests, in its own process."""

    mutant: Mutant | None
    process: BaseProcess
    events: Path
    log: Path
    began: float

    def finish(self) -> tuple[str, dict[str, float]]:
        """Return the test that failed, empty if none did, and the seconds of each test.

        Raises:
            RuntimeError: the tests could not be run.
        """
        self.process.join()
        times: dict[str, float] = {}
        running = failed = ""
        for line in self.events.read_text().splitlines() if self.events.exists() else []:
            event, nodeid, seconds = json.loads(line)
            times[nodeid] = times.get(nodeid, 0.0) + seconds
            running = nodeid if event == "start" else running
            failed = failed or (nodeid if event == "failed" else "")
        code = self.process.exitcode
        if code == 0 and times:
            return "", times
        if failed and code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
            return failed, times
        if running and code is not None and code < 0:
            cause = "takes too long" if code == -signal.SIGALRM else f"signal {-code}"
            return f"{running} ({cause})", times
        raise RuntimeError(f"the tests could not be run (exit status {code}):\n{self.log.read_text()[-4000:]}")


class Slot:
    """A copy of the package, with at most one mutant at a time, against which tests run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / PACKAGE.name
        self.log = folder / "log.txt"
        self.events = folder / "events.jsonl"
        self.planted: Mutant | None = None
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__"))

    def start(self, mutant: Mutant | None, suite: Sequence[str], times: Mapping[str, float], stamp: int) -> Job:
        self._restore(stamp)
        if mutant is not None:
            self._write(mutant.file, mutant.apply((PACKAGE / mutant.file).read_bytes()), stamp)
            self.planted = mutant
        near = f"tests/{mutant.file.split('/')[0]}/" if mutant is not None else ""
        self.events.unlink(missing_ok=True)
        watch = Watch(self.events, near, times)
        args = (self.folder, self.log, watch, suite)
        process = multiprocessing.get_context("fork").Process(target=run_suite, args=args)
        process.start()
        return Job(mutant, process, self.events, self.log, time.monotonic())

    def _restore(self, stamp: int) -> None:
        if self.planted is not None:
            self._write(self.planted.file, (PACKAGE / self.planted.file).read_bytes(), stamp + 1)
            self.planted = None

    def _write(self, file: str, text: bytes, stamp: int) -> None:
        path = self.package / file
        path.write_bytes(text)
        os.utime(path, (FAR_FUTURE + stamp, FAR_FUTURE + stamp))


def suite_of(mutant: Mutant) -> tuple[str, ...]:
    """Return the tests that a mutant runs against: of one written by hand, those of `make test`."""
    tests = SUITES.get(mutant.file.split("/")[0], SUITE)
    return (*tests, *NOT_SLOW) if mutant.why else tests


def run_suite(overlay: Path, log: Path, watch: Watch, suite: Sequence[str]) -> None:
    """Run tests against the package in `overlay`, in the child, and exit with pytest's status."""
    os.setpgid(0, 0)
    limit = MEMORY_LIMIT if suite[: len(SUITE)] == SUITE else TORCH_MEMORY_LIMIT
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    sys.path.insert(0, str(overlay))
    os.environ["PYTHONPATH"] = str(overlay)
    os.environ["OMP_NUM_THREADS"] = "1"  # every core has a worker
    spec = importlib.util.find_spec("sluice")
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).is_relative_to(overlay), f"{spec.origin} would be tested, not the copy in {overlay}"
    status = pytest.main([*PYTEST_ARGS, *suite], plugins=[watch])
    sys.stdout.flush()
    os._exit(status)


def run_mutants(mutants: Sequence[Mutant], times: Mapping[str, float], workers: int, folder: Path) -> Iterator[Verdict]:
    """Judge every mutant, `workers` at a time. Yields verdicts as they arrive."""
    slots = [Slot(folder / f"slot{index}") for index in range(workers)]
    todo = list(enumerate(mutants))
    running: dict[int, tuple[Slot, Job]] = {}
    try:
        while todo or running:
            while todo and slots:
                stamp, mutant = todo.pop(0)
                slot = slots.pop()
                job = slot.start(mutant, suite_of(mutant), times, 2 * stamp)
                running[job.process.sentinel] = slot, job
            for sentinel in wait(list(running)):
                assert isinstance(sentinel, int)
                slot, job = running.pop(sentinel)
                killed_by, _ = job.finish()
                slots.append(slot)
                assert job.mutant is not None
                yield Verdict(job.mutant.key, killed_by, time.monotonic() - job.began)
    finally:
        for _, job in running.values():
            with suppress(ProcessLookupError):
                os.killpg(job.process.pid or 0, signal.SIGKILL)
            job.process.join()


def measure_suites(suites: Iterable[Sequence[str]], folder: Path) -> dict[str, float]:
    """Return the seconds of each test without a mutant.

    Raises:
        RuntimeError: a test fails without a mutant.
    """
    untouched = Slot(folder / "untouched")
    times: dict[str, float] = {}
    for suite in suites:
        job = untouched.start(None, suite, {}, 0)
        killed_by, seconds = job.finish()
        if killed_by:
            raise RuntimeError(f"the tests fail without any mutant, at {killed_by}:\n{job.log.read_text()[-4000:]}")
        times |= seconds
    return times


class Record:
    """The verdicts on disk, one line each, in a file named by the fingerprint of code and tests."""

    def __init__(self, folder: Path, *, fresh: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{fingerprint()}.jsonl"
        if fresh:
            self.path.unlink(missing_ok=True)

    def load(self) -> dict[str, Verdict]:
        if not self.path.exists():
            return {}
        verdicts = [Verdict(**json.loads(line)) for line in self.path.read_text().splitlines()]
        return {verdict.key: verdict for verdict in verdicts}

    def add(self, verdict: Verdict) -> None:
        line = {"key": verdict.key, "killed_by": verdict.killed_by, "seconds": round(verdict.seconds, 2)}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def fingerprint() -> str:
    """Return a digest of everything that a verdict depends on."""
    digest = hashlib.sha256(repr((PYTEST_ARGS, NOT_SLOW)).encode())
    packages = ("types", "config", "kv", "scheduler", "engine", "testing")
    code = {path for name in packages for path in (PACKAGE / name).rglob("*.py")}
    code |= {PACKAGE / file for file, *_ in BY_HAND}
    for path in [*sorted(code), *sorted(suite_files())]:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def suite_files() -> set[Path]:
    """Return the test files that run, and the modules beside them that they import."""
    found: set[Path] = set()
    todo = [path for folder in SUITE for path in (ROOT / folder).rglob("*.py")] + [ROOT / "tests" / "conftest.py"]
    todo += [ROOT / file for suite in SUITES.values() for file in suite]
    while todo:
        path = todo.pop()
        found.add(path)
        names = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
        helpers = {ROOT / "tests" / f"{name}.py" for name in names}
        todo += [helper for helper in helpers if helper.exists() and helper not in found]
    return found


def read_explained(path: Path) -> dict[str, str]:
    """Return the explanations of known survivors, by key.

    Raises:
        ValueError: an entry lacks a field, or its explanation is empty.
    """
    entries = tomllib.loads(path.read_text()).get("survivor", []) if path.exists() else []
    explained = {}
    for entry in entries:
        if not {"file", "function", "mutation", "why"} == set(entry) or not entry["why"].strip():
            raise ValueError(f"{path.name}: an entry needs file, function, mutation and why, got {entry}")
        explained[f"{entry['file']}:{entry['function']}: {entry['mutation']}"] = entry["why"]
    return explained


def report(mutants: Sequence[Mutant], verdicts: Mapping[str, Verdict], explained: Mapping[str, str]) -> list[str]:
    """Return the lines of the report: a table by file, then the survivors, unexplained ones first."""
    lines = [f"{'file':<26}{'mutants':>8}{'killed':>8}{'explained':>11}{'unexplained':>13}"]
    survivors = [mutant for mutant in mutants if verdicts[mutant.key].survived]
    for file in [*dict.fromkeys((*FILES, *(mutant.file for mutant in mutants))), "total"]:
        rows = [mutant for mutant in mutants if file in (mutant.file, "total")]
        alive = [mutant for mutant in survivors if file in (mutant.file, "total")]
        known = sum(mutant.key in explained for mutant in alive)
        if rows:
            lines.append(f"{file:<26}{len(rows):>8}{len(rows) - len(alive):>8}{known:>11}{len(alive) - known:>13}")
    for mutant in sorted(survivors, key=lambda mutant: mutant.key in explained):
        reason = explained.get(mutant.key)
        lines += [
            "",
            f"{'explained' if reason else 'UNEXPLAINED'}  {mutant.file}:{mutant.line} in {mutant.function}",
            f"  - {mutant.before}",
            f"  + {mutant.after}",
            *([f"  plants: {mutant.why}"] if mutant.why else []),
            *([f"  why it lives: {reason}"] if reason else []),
        ]
    return lines


def stale(mutants: Sequence[Mutant], verdicts: Mapping[str, Verdict], explained: Mapping[str, str]) -> list[str]:
    """Return the explanations of mutants that do not exist or do not survive."""
    alive = {mutant.key for mutant in mutants if verdicts[mutant.key].survived}
    return [key for key in explained if key not in alive]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Mutation testing of kv, scheduler and engine.")
    parser.add_argument("--only", metavar="TEXT", help="mutants whose file:function holds TEXT (scheduler/passes.py)")
    parser.add_argument("--by-hand", action="store_true", help="only the mutants written by hand")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutants drawn at random")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the draw (default: 0)")
    parser.add_argument("--list", action="store_true", help="list the mutants and run nothing")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes at once")
    parser.add_argument("--skip-explained", action="store_true", help="skip known survivors that are explained")
    parser.add_argument("--fresh", action="store_true", help="ignore the verdicts of earlier runs")
    parser.add_argument("--verbose", action="store_true", help="show every verdict")
    options = parser.parse_args(argv)
    for name in ("workers", "sample"):
        value = vars(options)[name]
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    return options


def choose(options: argparse.Namespace, explained: Mapping[str, str]) -> list[Mutant]:
    mutants = all_mutants()
    if options.skip_explained:
        mutants = [mutant for mutant in mutants if mutant.key not in explained]
    if options.only:
        mutants = [mutant for mutant in mutants if options.only in f"{mutant.file}:{mutant.function}"]
    if options.by_hand:
        mutants = [mutant for mutant in mutants if mutant.why]
    if options.sample is not None and options.sample < len(mutants):
        mutants = random.Random(options.seed).sample(mutants, options.sample)
    return mutants


def judge(mutants: Sequence[Mutant], record: Record, options: argparse.Namespace) -> dict[str, Verdict]:
    """Return the verdicts of all mutants, from the record where it has them."""
    verdicts = record.load()
    todo = [mutant for mutant in mutants if mutant.key not in verdicts]
    print(f"{len(mutants)} mutants, {len(mutants) - len(todo)} judged before", flush=True)
    if not todo:
        return verdicts
    for module in PRELOADED:
        importlib.import_module(module)
    assert "sluice" not in sys.modules, "the package must be imported in the children only"
    with tempfile.TemporaryDirectory(prefix="run-", dir=RESULTS) as folder:
        times = measure_suites({suite_of(mutant) for mutant in todo}, Path(folder))
        print(f"{len(times)} tests pass in {sum(times.values()):.0f} s without a mutant", flush=True)
        began = time.monotonic()
        for count, verdict in enumerate(run_mutants(todo, times, options.workers, Path(folder)), start=1):
            record.add(verdict)
            verdicts[verdict.key] = verdict
            if verdict.survived or options.verbose:
                what = f"killed by {verdict.killed_by}" if verdict.killed_by else "SURVIVES"
                print(f"{verdict.key}\n    {what} ({verdict.seconds:.1f} s)", flush=True)
            if count % 25 == 0 or count == len(todo):
                pace = 60 * count / (time.monotonic() - began)
                print(f"... {count} of {len(todo)}, {pace:.0f} mutants a minute", flush=True)
    return verdicts


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    explained = read_explained(EXPLAINED)
    mutants = choose(options, explained)
    if options.list:
        print("\n".join(f"{mutant.line:>4}  {mutant.key}" for mutant in mutants))
        return 0
    try:
        verdicts = judge(mutants, Record(RESULTS, fresh=options.fresh), options)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command continues from here", file=sys.stderr)
        return 130
    lines = report(mutants, verdicts, explained)
    if not (options.only or options.by_hand or options.sample or options.skip_explained):
        lines += ["", *(f"STALE explanation: {key}" for key in stale(mutants, verdicts, explained))]
        (RESULTS / "report.txt").write_text("\n".join(lines) + "\n")
    print("\n" + "\n".join(lines))
    return int(any(verdicts[mutant.key].survived and mutant.key not in explained for mutant in mutants))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
