"""Simulate a run on a virtual clock, write its trace, and read from it why a stream stood still.

    .venv/bin/python examples/simulated_trace.py [FOLDER]

The scheduler, the engine and the trace are the ones that serve. Only the runner is a fake: it returns tokens of
`ShadowRunner`, and time passes on a virtual clock: 5 ms for each step, and 0.1 ms for each prompt token. Three streams
run when a prompt of 2,000 tokens arrives, once in one chunk and once in chunks of 128 tokens. Afterwards try

    .venv/bin/sluice trace FOLDER/whole.jsonl --requests
    .venv/bin/sluice trace FOLDER/chunked.jsonl --perfetto timeline.json     # open it in https://ui.perfetto.dev
    .venv/bin/sluice replay FOLDER/chunked.jsonl
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.protocols import Pending, Runner
from sluice.engine.trace import NullTrace
from sluice.scheduler.setup import SchedulerSetup
from sluice.testing import ManualLink, ShadowRunner, resolved
from sluice.tracing.file import TraceFile, TraceReader, create
from sluice.tracing.format import VERSION, Header
from sluice.tracing.recorder import Recorder
from sluice.tracing.run import read_run
from sluice.tracing.summary import summarize
from sluice.types import BatchPlan, SchedulerLimits, Submit


class TimedRunner:
    """A runner that lets time pass on a virtual clock before each step."""

    def __init__(self, inner: Runner, clock: VirtualClock) -> None:
        self._inner = inner
        self._clock = clock

    def launch(self, plan: BatchPlan) -> Pending:
        self._clock.advance(0.005 + 0.0001 * (plan.num_tokens - plan.num_decodes))
        return self._inner.launch(plan)

    def close(self) -> None:
        self._inner.close()


def simulate(path: Path, chunked_prefill_size: int) -> None:
    """Run three streams, and a long prompt that arrives after ten steps, and write the trace to `path`."""
    limits = SchedulerLimits(
        schedule="mixed", chunked_prefill_size=chunked_prefill_size, max_batch_tokens=4096, max_running_requests=8
    )
    setup = SchedulerSetup(limits=limits, num_pages=256, page_size=16)
    header = Header(
        version=VERSION, sluice="simulated", model="shadow", token_ids=True, setup=setup, depth=1, unix_time=0.0
    )
    create(path)
    clock, link = VirtualClock(), ManualLink()
    recorder = Recorder(setup.build(), NullTrace(), TraceFile(path, header, key=b"key"), clock)
    engine = Engine(recorder, TimedRunner(ShadowRunner(page_size=16), clock), link, clock=clock, trace=recorder)
    link.put(*(Submit(number, (number, 1, 2), resolved(max_tokens=60)) for number in range(3)))
    for _ in range(10):
        engine.step()
    link.put(Submit(3, tuple(token % 251 for token in range(2000)), resolved(max_tokens=4)))
    engine.step()
    while not engine.is_idle:
        engine.step()
    engine.close()


def main(folder: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        for name, chunk in (("whole", 0), ("chunked", 128)):
            path = Path(folder or temporary) / f"{name}.jsonl"
            simulate(path, chunk)
            with TraceReader(path) as trace:
                summary = summarize(trace.header, read_run(trace), gap_ms=0.0)
            streams, prompt = summary.table[:3], summary.table[3]
            longest = max(row.itl_max_ms or 0.0 for row in streams)
            print(f"{name:>8}: longest gap of a stream {longest:.0f} ms, TTFT of the prompt {prompt.ttft_ms:.0f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])
