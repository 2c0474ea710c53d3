"""Measure `GET /health` while clients send requests of awkward shapes, beside the same question to a trivial server.

    python tests/stress/shapes.py --seconds 10 --burners 8 --json shapes.json

Each shape is sent again and again, to a server with the default model in processes of its own. Two probes ask every 20
ms, on a new connection each time: one the server, and one a server of `asyncio` that does nothing else. What the second
one waits is the machine's part.

    quiet            nothing but the probes
    logit_bias       biases of 100,000 tokens, eight calls at a time
    model_names      names of models of 30 MB, two calls at a time, on the paths of four APIs
    long_fields      30 MB in other fields that a message may repeat: stop, priority, salt, user, tools, schema, an id
    many_calls       2,000 calls at once, of all kinds, each on its own connection
    wide_calls       lists of 2,000 short texts to embed, to complete and to tokenize
    spread           normal calls with a few of each of these

With `--burners N`, N processes that compute without end and with low priority share the machine. The exit status is 1
if the slowest answer of the server took longer than that of the trivial one by more than `LIMIT_MS`. Linux
only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[1:3])  # tests, and the repository

from benchmarks.shadow_server import resident_mb
from stress.health_under_load import LIMIT_MS, Load, ask, probing, serving
from stress.written import show

MANY, BIASES, LARGE = 2000, 100_000, 30 << 20
BURN = "while True: pass"
CHAT = {"messages": [{"role": "user", "content": "The water rises."}], "max_tokens": 2}
TEXT: dict[str, Any] = {"prompt": "The water rises.", "max_tokens": 2}
TRIVIAL = """
import asyncio, sys
async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
    await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


async def again(load: Load, at_once: int, bodies: list[tuple[str, bytes]]) -> None:
    """Send bodies one after the other, so many at a time, for ever."""

    async def client(number: int) -> None:
        turn = number
        while True:
            await ask(load, *bodies[turn % len(bodies)])
            turn += 1

    async with asyncio.TaskGroup() as group:
        for number in range(at_once):
            group.create_task(client(number))


def encoded(path: str, body: dict[str, Any]) -> tuple[str, bytes]:
    return path, json.dumps(body).encode()


async def quiet(load: Load) -> None:
    await asyncio.Event().wait()


async def logit_bias(load: Load) -> None:
    bias = {str(number): 1 for number in range(BIASES)}
    known = {str(number): 1 for number in range(40_000)}
    bodies = [encoded("/v1/completions", TEXT | {"logit_bias": each, "n": n}) for each in (bias, known) for n in (1, 8)]
    await again(load, 8, bodies)


async def model_names(load: Load) -> None:
    name = "x" * LARGE
    bodies = [
        encoded("/v1/completions", TEXT | {"model": name}),
        encoded("/v1/chat/completions", CHAT | {"model": name}),
        encoded("/v1/embeddings", {"input": "a", "model": name}),
        encoded("/v1/responses", {"input": "a", "model": name}),
        encoded("/v1/messages", CHAT | {"model": name}),
        encoded("/api/chat", CHAT | {"model": name}),
        encoded("/api/show", {"model": name}),
    ]
    await again(load, 2, bodies)


def long_bodies() -> list[tuple[str, bytes]]:
    """Return bodies each with one field whose value is long, and which a message may repeat."""
    long = "y" * LARGE
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": long}}}
    of_chat: list[dict[str, Any]] = [
        {"response_format": schema},
        {"response_format": {"type": long}},
        {"tools": [{"type": "function", "function": {"name": long}}]},
        {"tool_choice": long},
        {"service_tier": long},
        {"reasoning_effort": long},
        {"chat_template_kwargs": {long: 1}},
        {long: 1},
    ]
    of_text: list[dict[str, Any]] = [
        {"stop": [long]},
        {"stop": long},
        {"priority": long},
        {"cache_salt": long},
        {"user": long},
        {"seed": long},
        {"logit_bias": {long: 1}},
        {"guided_regex": long},
        {"stream_options": {long: 1}},
    ]
    return [
        *(encoded("/v1/chat/completions", CHAT | fields) for fields in of_chat),
        *(encoded("/v1/completions", TEXT | fields) for fields in of_text),
        encoded("/v1/responses", {"input": "a", "previous_response_id": long}),
        encoded("/v1/messages", CHAT | {"system": long, "max_tokens": 1}),
        encoded("/api/chat", CHAT | {"keep_alive": long}),
        encoded("/api/generate", {"prompt": "a", "format": long}),
        encoded("/api/show", {"name": long}),
        encoded("/generate", {"text": "a", "rid": long, "sampling_params": {"max_new_tokens": 1}}),
    ]


async def long_fields(load: Load) -> None:
    await again(load, 2, long_bodies())


def mixed(number: int) -> tuple[str, bytes]:
    """Return a small request of some kind."""
    kinds = [
        ("/v1/completions", TEXT | {"n": 1 + number % 4}),
        ("/v1/chat/completions", CHAT | {"stream": True}),
        ("/v1/embeddings", {"input": ["The water rises."] * 4}),
        ("/tokenize", {"prompt": "The water rises."}),
        ("/v1/responses", {"input": "The water rises.", "max_output_tokens": 2}),
    ]
    return encoded(*kinds[number % len(kinds)])


async def many_calls(load: Load) -> None:
    while True:
        await asyncio.gather(*(ask(load, *mixed(number)) for number in range(MANY)))


async def wide_calls(load: Load) -> None:
    texts = [f"The water rises {number}." for number in range(MANY)]
    bodies = [
        encoded("/v1/embeddings", {"input": texts}),
        encoded("/v1/completions", TEXT | {"prompt": texts, "max_tokens": 1}),
        encoded("/v1/completions", TEXT | {"n": 128, "stop": ["q", "z"]}),
        encoded("/v1/chat/completions", {"messages": CHAT["messages"] * MANY, "max_tokens": 1}),  # type: ignore[operator]
        encoded("/v1/score", {"text_1": "a", "text_2": texts}),
    ]
    await again(load, 4, bodies)


async def spread(load: Load) -> None:
    bias = {str(number): 1 for number in range(BIASES)}
    name = "x" * LARGE
    few = [encoded("/v1/completions", TEXT | {"logit_bias": bias}), encoded("/api/show", {"model": name})]
    async with asyncio.TaskGroup() as group:
        group.create_task(again(load, 16, [mixed(number) for number in range(20)]))
        group.create_task(again(load, 1, few))


SHAPES: dict[str, Callable[[Load], Awaitable[None]]] = {
    "quiet": quiet,
    "logit_bias": logit_bias,
    "model_names": model_names,
    "long_fields": long_fields,
    "many_calls": many_calls,
    "wide_calls": wide_calls,
    "spread": spread,
}


async def measure(name: str, port: int, beside: int, seconds: float) -> dict[str, Any]:
    """Return the figures of one shape: of the server, and of the trivial one."""
    load = Load(port)
    found: list[float] = []
    other: list[float] = []
    async with probing(port, found), probing(beside, other):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await SHAPES[name](load)
        await asyncio.sleep(1.0)  # what is left of the calls that were cut off
    return {"server": summary(found), "trivial": summary(other), "counts": dict(sorted(load.counts.items()))}


def summary(found: list[float]) -> dict[str, float]:
    times = sorted(value for value in found if value) or [0.0]
    count = len(times)
    return {"probes": count, "failed": found.count(0.0), "p99": times[count * 99 // 100], "max": times[-1]}


@contextlib.contextmanager
def trivial() -> Iterator[int]:
    """Run a server that does nothing else, and yield its port."""
    with subprocess.Popen([sys.executable, "-c", TRIVIAL], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


@contextlib.asynccontextmanager
async def burning(count: int) -> AsyncIterator[None]:
    """Run processes that compute without end, with low priority."""
    command = ["nice", "-n", "10", sys.executable, "-c", BURN]
    processes = [await asyncio.create_subprocess_exec(*command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            await process.wait()


async def run(port: int, pid: int, names: list[str], seconds: float, burners: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"burners": burners, "shapes": {}}
    print(f"{'shape':14}{'probes':>8}{'failed':>8}{'p99 ms':>9}{'max ms':>9}{'trivial p99':>13}{'max':>9}{'MiB':>7}")
    with trivial() as beside:
        async with burning(burners):
            for name in names:
                start = time.perf_counter()
                found = await measure(name, port, beside, seconds)
                found["seconds"] = time.perf_counter() - start
                found["resident_mb"] = resident_mb(pid)
                figures["shapes"][name] = found
                server, other = found["server"], found["trivial"]
                print(
                    f"{name:14}{server['probes']:8}{server['failed']:8}{server['p99']:9.1f}{server['max']:9.1f}"
                    f"{other['p99']:13.1f}{other['max']:9.1f}{found['resident_mb']:7.0f}",
                    flush=True,
                )
    return figures


def is_late(found: dict[str, Any]) -> bool:
    """Return whether a health check failed, or was late by more than the machine's part."""
    server, other = found["server"], found["trivial"]
    return bool(server["failed"]) or server["max"] > LIMIT_MS + other["max"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each shape")
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES), help="the shapes to send")
    parser.add_argument("--burners", type=int, default=0, help="processes that compute beside it")
    parser.add_argument("--option", action="append", default=[], help="a further option of the server, as --option=--x")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with serving(log, args.option) as (port, pid):
            figures = asyncio.run(run(port, pid, args.only, args.seconds, args.burners))
        figures["log"] = log.read_text().splitlines()[:40]
    figures["load"] = os.getloadavg()
    show(figures, args.json)
    return int(any(map(is_late, figures["shapes"].values())))


if __name__ == "__main__":
    sys.exit(main())
