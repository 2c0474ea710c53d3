"""Measure how long `GET /health` takes while the server is loaded in the ways that hurt it most.

    python tests/stress/health_under_load.py --seconds 20 --json health.json

A server with the default model runs in processes of its own. A process of its own, too, asks for `/health` every 20 ms,
on a new connection each time as load balancers do, so what it measures is not delayed by the clients. The loads run one
after the other, and then all of them together:

    none               nothing but the probes
    slow_readers       200 streams, a quarter of them with 20 log-probabilities a token, read 512 bytes at a time
    idle               1,000 connections on which nothing is sent
    prompt_logprobs    16 prompts of 8,000 tokens at once, with the 20 most likely tokens at each, by three APIs
    overload           five times the requests that the server can serve
    large_bodies       bodies of 2 to 30 MB: token ids, nested lists, texts, biases

The exit status is 1 if the 99th percentile of any of them reaches 100 ms. Linux only. Clients, probes and server share
the machine, so run it on an idle one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[1:3])  # tests, and the repository

from benchmarks.shadow_server import resident_mb
from stress.written import show

LIMIT_MS = 100.0
PROBE_SECONDS = 0.02
READERS, IDLE, PROMPTS, PROMPT_TOKENS, TOP, TIMES = 200, 1000, 16, 8000, 20, 5.0
PATIENCE = 300.0
"""Seconds after which a request counts as failed."""
NEEDED = {"prompt_logprobs": PROMPTS, "together": PROMPTS}
"""Load -> answers that are waited for, for `LONGEST` times the length of a load at most."""
LONGEST = 6
SERVER = (
    *("--max-running-requests", str(READERS + 3 * PROMPTS), "--max-queued-requests", "256"),
    *("--max-total-tokens", str(4 * PROMPTS * PROMPT_TOKENS)),
)


@dataclass
class Load:
    """What the clients of a load have done so far."""

    port: int
    rate: float = 0.0
    """Requests that the server can serve in a second."""
    counts: Counter[str] = field(default_factory=Counter)

    def has_answers(self, count: int) -> bool:
        """Return whether so many long prompts were answered."""
        return self.counts["long answers"] >= count


async def exchange(port: int, path: str, content: bytes) -> tuple[int, int]:
    """Return the status and the length of an answer, which is read as fast as it comes and not kept."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request(path, content))
        await writer.drain()
        status = (await reader.readline()).split()
        length = 0
        while data := await reader.read(1 << 18):
            length += len(data)
        return int(status[1]) if len(status) > 1 else 0, length
    finally:
        writer.close()


def request(path: str, content: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def ask(load: Load, path: str, body: dict[str, Any] | bytes) -> None:
    """Send a request and count its status."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        async with asyncio.timeout(PATIENCE):
            status, length = await exchange(load.port, path, content)
        load.counts[f"{path} {status}"] += 1
        load.counts["bytes"] += length
        load.counts["long answers"] += status == 200 and length > 1 << 20
    except (TimeoutError, OSError):
        load.counts[f"{path} failed"] += 1


async def nothing(load: Load) -> None:
    await asyncio.Event().wait()


async def slow_readers(load: Load) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(READERS):
            group.create_task(_slow_reader(load, number))


async def _slow_reader(load: Load, number: int) -> None:
    sampling = {"max_new_tokens": 1500, "ignore_eos": True}
    plain = {"prompt": [number % 500 + 1, 7, 8], "max_tokens": 1500, "ignore_eos": True, "stream": True}
    native = {"input_ids": [number % 500 + 1, 7], "sampling_params": sampling, "stream": True}
    path, body = [
        ("/v1/completions", plain),
        ("/v1/completions", plain | {"logprobs": TOP}),
        ("/generate", native),
        ("/generate", native | {"return_logprob": True, "top_logprobs_num": TOP}),
    ][number % 4]
    while True:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        with connection, contextlib.suppress(OSError):
            await loop.sock_connect(connection, ("127.0.0.1", load.port))
            await loop.sock_sendall(connection, request(path, json.dumps(body).encode()))
            while data := await loop.sock_recv(connection, 512):
                load.counts["slow bytes"] += len(data)
                await asyncio.sleep(0.25)
        load.counts["slow streams ended"] += 1
        await asyncio.sleep(1.0)


async def idle(load: Load) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(IDLE):
            group.create_task(_idle(load, number / IDLE))


async def _idle(load: Load, delay: float) -> None:
    """Open a connection, and another one whenever the server closes it."""
    await asyncio.sleep(delay)
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", load.port)
        except OSError:
            load.counts["idle connections refused"] += 1
            await asyncio.sleep(1.0)
            continue
        load.counts["idle connections"] += 1
        try:
            await reader.read()
        except OSError:
            load.counts["idle connections reset"] += 1
        finally:
            writer.close()


async def prompt_logprobs(load: Load) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(PROMPTS):
            group.create_task(_prompts(load, number))


async def _prompts(load: Load, number: int) -> None:
    draw = random.Random(number)
    for turn in range(1000):
        ids = [draw.randrange(1, 500) for _ in range(PROMPT_TOKENS)]
        common = {"prompt": ids, "max_tokens": 4, "prompt_logprobs": TOP}
        native = {"input_ids": ids, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": TOP}
        path, body = [
            ("/v1/completions", common),
            ("/v1/completions", common | {"echo": True, "logprobs": TOP}),
            ("/generate", native | {"sampling_params": {"max_new_tokens": 32}, "stream": True}),
            ("/generate", native | {"sampling_params": {"max_new_tokens": 4}}),
        ][(number + turn) % 4]
        await ask(load, path, body)


async def overload(load: Load) -> None:
    draw, number = random.Random(0), 0
    due = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        while True:
            due += draw.expovariate(load.rate * TIMES)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            number += 1
            group.create_task(ask(load, "/v1/completions", small(number)))


def small(number: int) -> dict[str, Any]:
    prompt = [number % 499 + 1, number // 499 % 499 + 1, *range(1, 95)]
    return {"prompt": prompt, "max_tokens": 40, "ignore_eos": True}


async def large_bodies(load: Load) -> None:
    """Send one after the other: sent at once they would measure the memory of the machine."""
    bodies = [
        b'{"prompt": [' + b"1," * (15 << 20) + b"1]}",
        b'{"prompt": [' + b"[1]," * (7 << 20) + b"[1]]}",
        b'{"prompt": [' + b'"a",' * (7 << 20) + b'"a"]}',
        b'{"prompt": "' + b"a" * (30 << 20) + b'"}',
        json.dumps({"prompt": "a", "logit_bias": {str(number): 1 for number in range(1 << 20)}}).encode(),
        json.dumps({"prompt": "a", "n": 128, "logit_bias": {str(number): 1 for number in range(2500)}}).encode(),
        json.dumps({"prompt": [[1, 2, 3]] * 4096, "max_tokens": 2}).encode(),
        json.dumps({"messages": [{"role": "user", "content": "a"}] * (1 << 19)}).encode(),
    ]
    while True:
        for body in bodies:
            await ask(load, "/v1/chat/completions" if b"messages" in body[:20] else "/v1/completions", body)


async def together(load: Load) -> None:
    async with asyncio.TaskGroup() as group:
        for part in (slow_readers, idle, prompt_logprobs):
            group.create_task(part(load))
        await asyncio.sleep(3.0)
        group.create_task(overload(load))


LOADS: dict[str, Callable[[Load], Awaitable[None]]] = {
    "none": nothing,
    "slow_readers": slow_readers,
    "idle": idle,
    "prompt_logprobs": prompt_logprobs,
    "overload": overload,
    "together": together,
    "large_bodies": large_bodies,
}


def probe(port: int) -> None:
    """Ask for /health until standard input ends, and print the milliseconds of each answer; 0 is a failure."""
    found: list[float] = []
    print("ready", flush=True)
    due = time.perf_counter()
    while not select.select([sys.stdin], [], [], max(0.0, due - time.perf_counter()))[0]:
        due = max(due + PROBE_SECONDS, time.perf_counter())
        start = time.perf_counter()
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=30.0) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                is_good = connection.recv(1 << 12).startswith(b"HTTP/1.1 200")
        except OSError:
            is_good = False
        found.append((time.perf_counter() - start) * 1000 if is_good else 0.0)
    print(json.dumps(found))


@contextlib.asynccontextmanager
async def probing(port: int, found: list[float]) -> AsyncIterator[None]:
    """Measure in a process of its own, and append its figures."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--probe", str(port)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdout.readline()  # it has begun
    try:
        yield
    finally:
        process.stdin.close()  # ends it
        output, _ = await process.communicate()
        found += json.loads(output)


async def measure(name: str, load: Load, seconds: float) -> dict[str, Any]:
    """Return the figures of one load."""
    before = await metrics(load.port)
    found: list[float] = []
    loading = asyncio.ensure_future(LOADS[name](load))
    try:
        await asyncio.sleep(min(2.0, seconds / 4))
        async with probing(load.port, found):
            await asyncio.wait({loading}, timeout=seconds)
            until = time.perf_counter() + LONGEST * seconds
            while not load.has_answers(NEEDED.get(name, 0)) and time.perf_counter() < until:
                await asyncio.wait({loading}, timeout=1.0)
        if loading.done():
            loading.result()
    finally:
        loading.cancel()
        await asyncio.wait({loading})
    after = await metrics(load.port)
    times = sorted(value for value in found if value) or [0.0]
    pauses, paused = ("sluice:event_loop_pauses_total", "sluice:event_loop_pause_seconds_total")
    return {
        "probes": len(found),
        "failed": found.count(0.0),
        "p50_ms": times[len(times) // 2],
        "p99_ms": times[len(times) * 99 // 100],
        "max_ms": times[-1],
        "pauses": after.get(pauses, 0) - before.get(pauses, 0),
        "pause_seconds": after.get(paused, 0) - before.get(paused, 0),
        "counts": dict(sorted(load.counts.items())),
    }


async def metrics(port: int) -> dict[str, float]:
    """Return the values of /metrics, without labels."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    _, _, page = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    lines = [line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#")]
    return {name.partition("{")[0]: float(value) for name, _, value in lines}


async def capacity(port: int, seconds: float) -> float:
    """Measure the requests that are served in a second when there are always some waiting."""
    load, until = Load(port), time.perf_counter() + seconds

    async def client(number: int) -> None:
        while time.perf_counter() < until:
            await ask(load, "/v1/completions", small(number))

    start = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(48)))
    return load.counts["/v1/completions 200"] / (time.perf_counter() - start)


@contextlib.contextmanager
def serving(log: Path, options: list[str]) -> Iterator[tuple[int, int]]:
    """Run a server. Yields its port and its process id; its log is printed if it does not start."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "sluice", "serve", "--port", str(port), *SERVER, *options]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            while "curl" not in (line := process.stdout.readline()):
                assert line or process.poll() is None, log.read_text()
            yield port, process.pid
        finally:
            process.terminate()


async def run(port: int, pid: int, names: list[str], seconds: float) -> dict[str, Any]:
    rate = await capacity(port, 6.0) if {"overload", "together"} & set(names) else 0.0
    figures: dict[str, Any] = {"capacity_per_s": rate, "loads": {}}
    print(f"{'load':16}{'probes':>8}{'failed':>8}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}{'pauses':>8}{'MiB':>7}")
    for name in names:
        found = await measure(name, Load(port, rate), seconds)
        found["resident_mb"] = resident_mb(pid)
        figures["loads"][name] = found
        print(
            f"{name:16}{found['probes']:8}{found['failed']:8}{found['p50_ms']:9.1f}{found['p99_ms']:9.1f}"
            f"{found['max_ms']:9.1f}{found['pauses']:8.0f}{found['resident_mb']:7.0f}",
            flush=True,
        )
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each load")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS), help="the loads to run")
    parser.add_argument("--option", action="append", default=[], help="a further option of the server, as --option=--x")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--probe", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe is not None:
        probe(args.probe)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with serving(log, args.option) as (port, pid):
            figures = asyncio.run(run(port, pid, args.loads, args.seconds))
        figures["log"] = log.read_text().splitlines()[:40]
    show(figures, args.json)
    worst = max(load["p99_ms"] for load in figures["loads"].values())
    failed = sum(load["failed"] for load in figures["loads"].values())
    return 0 if worst < LIMIT_MS and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
