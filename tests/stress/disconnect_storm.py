"""Let clients leave at random moments, and time how soon after the last one no request runs, waits or holds a page.

    python tests/stress/disconnect_storm.py --clients 500 --json storm.json

The real server runs in processes of its own, over the ShadowRunner with steps of a fixed length. Each client requests
an answer that would take minutes, and leaves within a few seconds: in the middle of its own body, while it waits,
during its prefill or while it streams, by closing its connection or by a reset. The script polls `/server_info` until
nothing is left. The exit status is 1 if that takes more than a second, or if the server does not serve as before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[1:3])  # tests, and the repository

from benchmarks.shadow_server import server
from stress.written import show

RUNNING, STEP_MS = 64, 5.0
"""Running requests, and milliseconds of a step."""
LIMIT = 1.0
"""Seconds that the last request may outlive the last client."""
GIVE_UP = 30.0
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends RST."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions of one client. Times are seconds from the beginning of the storm."""

    comes: float
    leaves: float
    path: str
    body: dict[str, Any]
    cut: bool
    """The client leaves before all of its body is sent."""
    resets: bool
    stays: bool
    """The client leaves no earlier than its answer begins, however busy the machine is."""


def plans_of(count: int, seed: int, spread: float) -> list[Plan]:
    """Plan clients of three APIs, half of them streaming, every tenth with a prompt that takes many steps.

    Args:
        spread: seconds over which they come and go.
    """
    draw = random.Random(seed)
    plans = []
    for number in range(count):
        ids = [number % 499 + 1, number // 499 + 1, *range(1, draw.choice([8, 40, 3000 if number % 10 == 0 else 100]))]
        prompt = [token % 500 for token in ids]
        path, body = draw.choice(
            [
                (
                    "/v1/completions",
                    {"prompt": prompt, "max_tokens": 900, "ignore_eos": True, "n": draw.randint(1, 2)},
                ),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": f"{number} tell me more"}]}),
                ("/generate", {"input_ids": prompt, "sampling_params": {"max_new_tokens": 900, "ignore_eos": True}}),
            ]
        )
        comes = draw.uniform(0, spread * 0.75)
        leaves = draw.uniform(comes, spread)
        content = body | {"stream": draw.random() < 0.5}
        cut, resets = draw.random() < 0.1, draw.random() < 0.5
        stays = content["stream"] and not cut and draw.random() < 0.2
        plans.append(Plan(comes, leaves, path, content, cut, resets, stays))
    return plans


async def visit(port: int, start: float, plan: Plan) -> str:
    """Connect and leave. Returns what the client was doing by then."""
    await asyncio.sleep(max(0.0, start + plan.comes - time.perf_counter()))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(plan.body).encode()
    head = f"POST {plan.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content[: len(content) // 2 if plan.cut else None])
    reading = asyncio.create_task(reader.read(1))
    await asyncio.wait({reading}, timeout=max(0.0, start + plan.leaves - time.perf_counter()))
    if plan.stays:
        await asyncio.wait({reading}, timeout=GIVE_UP)
    seen = "cut its request" if plan.cut else "was being answered" if reading.done() else "was waiting"
    if plan.resets:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()
    else:
        writer.close()
    reading.cancel()
    await asyncio.wait({reading})
    return seen


async def get(port: int, request: str) -> dict[str, Any]:
    """Return a JSON answer, over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    data = await reader.read()
    writer.close()
    answer: dict[str, Any] = json.loads(data.partition(b"\r\n\r\n")[2])
    return answer


async def standing(port: int) -> dict[str, Any]:
    return await get(port, "GET /server_info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")


def is_empty(info: dict[str, Any]) -> bool:
    """Return whether no request runs or waits, and every page is available."""
    pages = info["free_pages"] + info["cached_pages"]
    return (info["running"], info["waiting"], pages) == (0, 0, info["total_pages"])


def is_good(figures: dict[str, Any]) -> bool:
    soon = figures["seconds_until_nothing_is_left"] <= LIMIT
    return bool(soon and figures["stays_empty"] and figures["serves_afterwards"])


async def storm(port: int, plans: list[Plan]) -> dict[str, Any]:
    """Let the clients come and go, and time how long their requests outlive them."""
    start, most = time.perf_counter(), 0
    visits = asyncio.gather(*(visit(port, start, plan) for plan in plans))
    while not visits.done():
        info = await standing(port)
        most = max(most, info["running"] + info["waiting"])
        await asyncio.wait({visits}, timeout=0.1)
    seen = Counter(visits.result())
    left = time.perf_counter()
    while not is_empty(info := await standing(port)) and time.perf_counter() - left < GIVE_UP:
        pass
    seconds = time.perf_counter() - left
    await asyncio.sleep(LIMIT / 2)
    later = await standing(port)  # no client that left while the server was busy may come in after that
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}"
    answer = await get(port, f"{head}\r\n\r\n{body}")
    return {
        "clients": len(plans),
        "left": dict(seen),
        "most_requests_at_once": most,
        "seconds_until_nothing_is_left": seconds,
        "stays_empty": is_empty(info) and is_empty(later),
        "serves_afterwards": answer.get("usage", {}).get("completion_tokens") == 5,
    }


def weather(clients: int, seed: int, spread: float) -> dict[str, Any]:
    """Run a storm on a server of its own."""
    with server(STEP_MS, max_running_requests=RUNNING) as (port, _):
        return asyncio.run(storm(port, plans_of(clients, seed, spread)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--spread", type=float, default=4.0, help="seconds over which they come and go")
    parser.add_argument("--seed", type=int, default=0, help="seed of the clients' moments")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    figures = weather(args.clients, args.seed, args.spread)
    show(figures, args.json)
    return 0 if is_good(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
