"""Measure what streams notice while an adapter is loaded: the longest waits for a token, with and without a load.

    python benchmarks/adapter_load.py --checkpoint MODEL

A server serves a Hugging Face folder. Streams run without a pause; every few seconds a request loads an adapter of
about 50 MB over HTTP, a request uses it, and it is unloaded. Printed are the waits of all streams between two tokens:
those that begin or end while an adapter is loaded and used first, and the others.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.adapters import write_adapter

KEY = "boss"
SETTLE_SECONDS = 8.0
"""Before the first load, and between two."""


async def stream(client: httpx.AsyncClient, number: int, arrivals: list[float], stop: asyncio.Event) -> None:
    """Read tokens until it is time to stop, in one answer after the other."""
    while not stop.is_set():
        body = {"prompt": f"{number}:", "max_tokens": 400, "stream": True, "ignore_eos": True, "seed": number}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            arrivals.append(-1.0)  # no wait reaches over two answers
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    arrivals.append(time.perf_counter())
                if stop.is_set():
                    return


async def load_once(client: httpx.AsyncClient, name: str, folder: str) -> tuple[float, float, float]:
    """Load an adapter, use it once, and unload it. Returns when that began, when it was loaded, and when used."""
    admin = {"Authorization": f"Bearer {KEY}"}
    began = time.perf_counter()
    body = {"lora_name": name, "lora_path": folder}
    (await client.post("/v1/load_lora_adapter", json=body, headers=admin)).raise_for_status()
    loaded = time.perf_counter()
    (await client.post("/v1/completions", json={"model": name, "prompt": "1", "max_tokens": 2})).raise_for_status()
    used = time.perf_counter()
    (await client.post("/v1/unload_lora_adapter", json={"lora_name": name}, headers=admin)).raise_for_status()
    return began, loaded, used


async def measure(url: str, streams: int, folders: list[str]) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        arrivals: list[list[float]] = [[] for _ in range(streams)]
        stop = asyncio.Event()
        tasks = [asyncio.create_task(stream(client, number, each, stop)) for number, each in enumerate(arrivals)]
        await asyncio.sleep(2 * SETTLE_SECONDS)
        start, spans = time.perf_counter(), []
        await asyncio.sleep(SETTLE_SECONDS)
        for number, folder in enumerate(folders):
            spans.append(await load_once(client, f"adapter-{number}", folder))
            await asyncio.sleep(SETTLE_SECONDS)
        stop.set()
        await asyncio.gather(*tasks)
    loading, calm = [], []
    for each in arrivals:
        for before, after in itertools.pairwise(each):
            if before < start or after < 0:
                continue
            is_loading = any(before < used and after > began for began, _, used in spans)
            (loading if is_loading else calm).append(after - before)
    p99 = statistics.quantiles(calm, n=100)[98]
    for name, waits in (("calm", calm), ("loading", loading)):
        cuts = statistics.quantiles(waits, n=100)
        print(
            f"{name:8}{len(waits):7} waits  p50 {1e3 * cuts[49]:6.1f} ms  p99 {1e3 * cuts[98]:6.1f} ms"
            f"  max {1e3 * max(waits):6.1f} ms  max / calm p99 {max(waits) / p99:.2f}"
        )
    took = [f"{loaded - began:.2f} + {used - loaded:.2f}" for began, loaded, used in spans]
    print("seconds to load and to use first:", ", ".join(took))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a Hugging Face folder with one file of weights")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rank", type=int, default=80, help="of the adapters (80: 50 MB for SmolLM2-135M)")
    parser.add_argument("--loads", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        for number in range(args.loads):
            write_adapter(args.checkpoint, Path(folder, f"a{number}"), args.rank, number)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        options = ["--enable-lora", "--lora-dir", folder, "--admin-key", KEY, "--max-lora-rank", str(args.rank)]
        options += ["--port", str(port), "--max-running-requests", str(args.streams + 8), "--max-loras", "2"]
        command = [sys.executable, "-m", "sluice", "serve", str(args.checkpoint), *options]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ))
        try:
            url = f"http://127.0.0.1:{port}"
            while server.poll() is None:
                try:
                    if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                        break
                except httpx.HTTPError:
                    time.sleep(0.2)
            print(json.dumps({"streams": args.streams, "rank": args.rank}))
            asyncio.run(measure(url, args.streams, [f"a{number}" for number in range(args.loads)]))
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    main()
