"""Measure how long a day of traffic takes to simulate, and how far windows are from a full run of a part of it.

    python benchmarks/simulation_scale.py --replicas 100 --rate 4 --windows 48 --processes 2

Traffic rises and falls over the day around a rate for each replica, with prompts and answers of log-normal lengths. It
is made a second at a time from a seed, so that any part of the day can be had without the rest. The machine is one of
round figures: a step of 20 ms, 3,000 tokens/s of prefill. First a part of the day is simulated as a whole, and by
windows: the intervals of these should hold the figures of the former. Then windows of the whole day. Times are those of
the processor, of all processes together: others that use the machine do not lengthen them.

    python benchmarks/simulation_scale.py --write FOLDER

writes such a day as a file instead, with the machine, for `sluice simulate`: day.csv (35 million requests, 0.8 GB), and
hour.csv, every 25th request from noon to one, which is what 4 of the 100 replicas get.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.fleet import LocalFleet
from sluice.sim.machine import Machine, write_machine
from sluice.sim.routers import in_turn
from sluice.sim.simulate import replicas_of, run
from sluice.sim.windows import WindowEstimate, WindowOptions, WindowResult, estimates, simulate_windows, table
from sluice.sim.workload import Arrival, Prompt, Segment
from sluice.sim.world import Residual, World
from sluice.types import Regime, SchedulerLimits

DAY = 86400.0
LIMITS = SchedulerLimits(schedule="mixed", chunked_prefill_size=512, max_batch_tokens=1024, max_running_requests=128)
SETUP = SchedulerSetup(LIMITS, num_pages=8192, page_size=32)
COSTS = (20_000.0, 330.0, 50.0, 0.05, 0.02, 0.0005)
RESIDUALS = 5000
SHAPES = ((4.6, 0.8), (3.7, 0.7))
"""Of the log-normal lengths of prompts and answers."""
PART = 25
"""One of so many requests is in the file of an hour."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests from one second of the day on and before another."""

    rate: float
    """Requests a second on average."""
    start: float = 0.0
    end: float = DAY

    def __call__(self, start: float, end: float) -> Traffic:
        return Traffic(self.rate, start, min(end, DAY))

    def __iter__(self) -> Iterator[Arrival]:
        for second in range(math.floor(self.start), math.ceil(self.end)):
            draw = random.Random(second)
            now = second + draw.expovariate(self.rate_at(second))
            while now < second + 1:
                prompt, output = (max(1, round(draw.lognormvariate(*shape))) for shape in SHAPES)
                if self.start <= now < self.end:
                    seed = round(now * 1e6)
                    yield Arrival(
                        time=now, prompt=Prompt((Segment(seed, prompt),)), output_tokens=output, max_tokens=2 * output
                    )
                now += draw.expovariate(self.rate_at(second))

    def rate_at(self, second: float) -> float:
        """Return the rate, which is lowest at midnight and highest at noon."""
        return self.rate * (1 - 0.5 * math.cos(2 * math.pi * second / DAY))


def machine() -> Machine:
    """Return a machine whose slow steps come together."""
    draw, level, residuals = random.Random(1), 0.0, []
    for _ in range(RESIDUALS):
        level = 0.9 * level + draw.gauss(0, 0.05)
        residuals.append(Residual(Regime.DECODE, math.exp(level), 0.001))
    world = World(dict.fromkeys(Regime, COSTS), tuple(residuals))
    return Machine(model="round figures", name="nowhere", is_measured=False, setup=SETUP, depth=1, world=world)


def main() -> int:
    given = parse()
    if given.write is not None:
        write_day(Path(given.write), given.rate * given.replicas)
        return 0
    traffic, simulated = Traffic(given.rate * given.replicas), machine()
    few = min(given.replicas, 4)
    part, half_hour = Traffic(given.rate * few), 1800.0
    begun = processor_seconds()
    whole = WindowResult(0.0)
    engines = replicas_of(simulated.setup, simulated.world, few)
    for record in run(part(0.0, half_hour), LocalFleet(engines), in_turn(few), epoch=given.epoch):
        whole.simulated += 1
        whole.add(record)
    seconds, steps = processor_seconds() - begun, sum(engine.num_steps for engine in engines)
    leapt = sum(engine.num_leapt for engine in engines)
    print(
        f"half an hour of {few} replicas as a whole: {whole.requests} requests, {steps} steps ({leapt} of them leapt"
        f" over) in {seconds:.1f} s: {whole.requests / seconds:.0f} requests/s, {steps / seconds:.0f} steps/s"
    )
    options = WindowOptions(windows=10, seconds=30, warm_up=20, processes=given.processes, epoch=given.epoch)
    begun = processor_seconds()
    results = simulate_windows(part, half_hour, simulated, options, replicas=few)
    print(f"the same by 10 windows of 30 s: {processor_seconds() - begun:.1f} s")
    print("\n".join(compared(estimates(results, 30), estimates([whole, whole], half_hour))))
    options = WindowOptions(
        windows=given.windows, seconds=given.seconds, warm_up=20, processes=given.processes, epoch=given.epoch
    )
    begun = processor_seconds()
    results = simulate_windows(
        traffic, DAY, simulated, options, replicas=given.replicas, on_end=lambda: print(".", end="", flush=True)
    )
    print(f"\na day of {given.replicas} replicas: {processor_seconds() - begun:.0f} s")
    print(table(estimates(results, given.seconds), results))
    return 0


def write_day(folder: Path, rate: float) -> None:
    """Write a day of requests as Vidur's traces, an hour of a part of them, and the machine."""
    folder.mkdir(parents=True, exist_ok=True)
    write_machine(machine(), folder / "machine.json")
    draw, traffic, count = np.random.default_rng(0), Traffic(rate), 0
    with (folder / "day.csv").open("w") as day, (folder / "hour.csv").open("w") as hour:
        for file in (day, hour):
            file.write("arrived_at,num_prefill_tokens,num_decode_tokens\n")
        for second in range(int(DAY)):
            number = draw.poisson(traffic.rate_at(second))
            times = (second + np.sort(draw.random(number))).tolist()
            lengths = [np.maximum(1, np.rint(draw.lognormal(*shape, number))).astype(int).tolist() for shape in SHAPES]
            rows = [f"{time:.4f},{prompt},{output}\n" for time, prompt, output in zip(times, *lengths, strict=True)]
            day.writelines(rows)
            if DAY / 2 <= second < DAY / 2 + 3600:
                hour.writelines(rows[-count % PART :: PART])
            count += number


def processor_seconds() -> float:
    """Return the processor's time of this process and of those that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def compared(found: Sequence[WindowEstimate], whole: Sequence[WindowEstimate]) -> Iterator[str]:
    """Yield a line for each figure: of the whole, and the interval of the windows."""
    for one, other in zip(found, whole, strict=True):
        inside = "inside" if one.low <= other.value <= one.high else "OUTSIDE"
        interval = f"{one.low:.4f} to {one.high:.4f}"
        yield f"  {one.name:<18} whole {other.value:.4f}, windows {one.value:.4f} ({interval}): {inside}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how long a day of traffic takes to simulate.")
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second and replica")
    parser.add_argument("--windows", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a window")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", metavar="FOLDER", help="write the day and its machine for sluice simulate instead")
    parser.add_argument("--epoch", type=float, default=1.0, help="seconds after which a router sees the replicas again")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
