"""Measure the HTTP server process: streamed tokens per second of its processor time, and the delay of each token.

    python benchmarks/front.py --json front.json

The real server runs in processes of its own. Its engine runs the real scheduler over the ShadowRunner, so that only the
HTTP server process takes time. Clients are plain sockets in this process.

`tokens_per_cpu_s`: tokens streamed, by the processor seconds (user and system) that the server's process spent on them:
what one core carries. With steps of a fixed length each token is an event and a write of its own (`paced`); when the
engine goes as fast as it can, tokens of several steps leave together (`flat_out`). `added_ms`: with steps of a fixed
length, the time from the end of a step, as the engine's trace has it, to the arrival of its event in the client. Linux
only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.shadow_server import VOCAB, cpu_seconds, server
from benchmarks.written import show
from sluice.tracing.file import TraceReader
from sluice.tracing.format import Add, Step
from sluice.tracing.run import read_run


@dataclass
class Stream:
    """A client, and when each of its events came, by the engine's clock."""

    prompt: tuple[int, ...]
    arrivals: list[float] = field(default_factory=list)


async def read_stream(port: int, stream: Stream, max_tokens: int) -> None:
    body = {"prompt": stream.prompt, "max_tokens": max_tokens, "stream": True, "ignore_eos": True, "seed": 0}
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}"
    writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode() + content)
    while data := await reader.read(1 << 16):
        stream.arrivals += [time.perf_counter()] * data.count(b'data: {"id"')
    writer.close()


async def run_streams(port: int, streams: Sequence[Stream], max_tokens: int) -> None:
    await asyncio.gather(*(read_stream(port, stream, max_tokens) for stream in streams))


def streams_of(count: int) -> list[Stream]:
    """Return clients whose prompts share no prefix."""
    return [Stream((number % VOCAB, number // VOCAB, 1, 2)) for number in range(3, count + 3)]


def throughput(count: int, max_tokens: int) -> dict[str, float]:
    """Measure with an engine as fast as it can be."""
    with server(0.0, max_running_requests=count) as (port, pid):
        asyncio.run(run_streams(port, streams_of(min(count, 8)), 50))  # warm
        streams = streams_of(count)
        before, start = cpu_seconds(pid), time.perf_counter()
        asyncio.run(run_streams(port, streams, max_tokens))
        seconds, cpu = time.perf_counter() - start, cpu_seconds(pid) - before
    tokens = sum(len(stream.arrivals) for stream in streams)
    assert tokens == count * max_tokens, f"{tokens} events of {count} x {max_tokens}"
    return {"flat_out_tokens_per_s": tokens / seconds, "flat_out_tokens_per_cpu_s": tokens / cpu}


def added(count: int, max_tokens: int, step_ms: float) -> dict[str, float]:
    """Measure with steps of a fixed length."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        with server(step_ms, max_running_requests=count, trace=str(trace)) as (port, pid):
            asyncio.run(run_streams(port, [Stream((number, 1, 1, 1)) for number in range(8)], 20))  # warm
            streams = streams_of(count)
            before = cpu_seconds(pid)
            asyncio.run(run_streams(port, streams, max_tokens))
            cpu = cpu_seconds(pid) - before
        with TraceReader(trace) as reader:
            records = list(reader)
        run = read_run(records)
        prompts = {line.record.prompt: line.record.request_id for line in records if isinstance(line.record, Add)}
        steps = [line.record for line in records if isinstance(line.record, Step)]
    delays = [
        (arrival - made) * 1000
        for stream in streams
        for arrival, made in zip(stream.arrivals, run.requests[prompts[stream.prompt]].token_times, strict=True)
    ]
    delays.sort()
    ends = [step.ended_at for step in steps if step.ended_at is not None]
    lengths = sorted(after - before for before, after in pairwise(ends))
    return {
        "paced_tokens_per_cpu_s": len(delays) / cpu,
        "step_ms": lengths[len(lengths) // 2] * 1000,
        "added_ms_p50": delays[len(delays) // 2],
        "added_ms_p99": delays[len(delays) * 99 // 100],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--tokens", type=int, default=40_000, help="tokens of a measurement, all streams together")
    parser.add_argument("--step-ms", type=float, default=20.0, help="length of a step where the delay is measured")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    figures: dict[str, Any] = {"step_ms": args.step_ms, "streams": {}}
    for count in args.streams:
        each = min(max(20, args.tokens // count), 1000)
        delayed = min(each, round(5000 / args.step_ms))
        figures["streams"][str(count)] = throughput(count, each) | added(count, delayed, args.step_ms)
    show(figures, args.json)


if __name__ == "__main__":
    main()
