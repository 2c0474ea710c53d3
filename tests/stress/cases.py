"""Hit a server once in a way that needs files of its own, and compare its streams with calm twins.

    python tests/stress/cases.py swap
    python tests/stress/cases.py trace-full
    python tests/stress/cases.py file-limit

swap         the weights are replaced on the disk while streams run, and the engine is killed: each stream ends with an
             error that says why, behind a beginning of its twin, and the server serves no other weights
trace-full   the disk of --trace is full, and the engine is killed: every stream is its twin
file-limit   the server may write no file of 1 MiB, with a --kv-disk of more, and the engine is killed: every stream is
             its twin

The exit status is 1 if anything is wrong. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[1:3])  # tests, and the repository

import httpx

from any_checkpoint import any_checkpoint
from benchmarks.shadow_server import children_of
from processes import free_port
from serve_process import announced
from serve_process import server as served

STREAMS, TOKENS, SEEN, PATIENCE = 3, 200, 10, 40.0
PAGE_BYTES, SMALL_FILE = 16 << 20, 1 << 20
ONCE = ("--max-engine-restarts", "1")
"""The server gives up soon, and ends its streams, where the next engine cannot start."""


@dataclass
class Streamed:
    """What came of a stream."""

    text: str = ""
    events: int = 0
    error: str = ""
    is_done: bool = False


@dataclass
class Case:
    """A server that serves, and its files."""

    url: str
    process: Popen[str]
    model: Path
    trace: Path

    @property
    def engine(self) -> int:
        return max(children_of(self.process.pid))


def stream(url: str, number: int, found: Streamed) -> None:
    body: dict[str, Any] = {"prompt": [number + 1, 2, 3], "max_tokens": TOKENS, "temperature": 0.8, "seed": number}
    body |= {"ignore_eos": True, "stream": True}
    try:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE) as answer:
            for line in answer.iter_lines():
                found.is_done |= line == "data: [DONE]"
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    found.error = found.error or str(event.get("error", ""))
                    found.text += "".join(choice["text"] for choice in event.get("choices", ()))
                    found.events += 1
    except httpx.HTTPError as error:
        found.error = found.error or repr(error)


def streams(url: str, blow: Callable[[], None] | None = None) -> list[Streamed]:
    """Run all streams at once, and strike when each of them has sent some tokens."""
    found = [Streamed() for _ in range(STREAMS)]
    threads = [threading.Thread(target=stream, args=(url, *each)) for each in enumerate(found)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + PATIENCE
    while blow is not None and min(each.events for each in found) < SEEN and time.monotonic() < until:
        time.sleep(0.01)
    if blow is not None:
        blow()
    for thread in threads:
        thread.join()
    return found


@contextlib.contextmanager
def case() -> Iterator[Case]:
    """Run a server of a copy of a random model, in float64, with a page file."""
    with tempfile.TemporaryDirectory() as place:
        model, trace, port = Path(place) / "model", Path(place) / "trace.jsonl", free_port()
        shutil.copytree(any_checkpoint(), model)
        options = ("--max-total-tokens", "4096", "--dtype", "float64", "--threads", "1", "--trace", str(trace), *ONCE)
        options += ("--kv-disk", str(Path(place) / "pages.kv"), "--kv-disk-bytes", str(PAGE_BYTES))
        with served("-m", "sluice", "serve", str(model), "--port", str(port), *options) as process:
            announced(process)
            yield Case(f"http://127.0.0.1:{port}", process, model, trace)


def swap(each: Case) -> list[str]:
    """Put other weights of the same shape into the place of those that were loaded. Returns what is wrong."""
    twins = streams(each.url)

    def blow() -> None:
        weights = each.model / "model.safetensors"
        content = bytearray(weights.read_bytes())
        half = len(content) // 2
        content[half:-2] = content[half + 2 :]
        weights.unlink()
        weights.write_bytes(content)
        os.kill(each.engine, signal.SIGKILL)

    found = streams(each.url, blow)
    problems = []
    for number, (one, twin) in enumerate(zip(found, twins, strict=True)):
        if one.is_done or not one.error:
            problems.append(f"stream {number} went on with other weights")
        elif "have changed since this server loaded them" not in one.error:
            problems.append(f"stream {number} ended with {one.error!r}")
        if not twin.text.startswith(one.text):
            problems.append(f"stream {number} has text of other weights")
    with contextlib.suppress(httpx.HTTPError):  # the server may have ended
        status = httpx.get(f"{each.url}/ready").status_code
        problems += [f"/ready answers {status}"] if status == 200 else []
    return problems


def trace_full(each: Case) -> list[str]:
    """Let the next engine find a full disk at the place of its trace, and kill this one. Returns what is wrong."""
    twins = streams(each.url)

    def blow() -> None:
        each.trace.unlink()
        each.trace.symlink_to("/dev/full")
        os.kill(each.engine, signal.SIGKILL)

    return differences(each.url, streams(each.url, blow), twins)


def file_limit(each: Case) -> list[str]:
    """Let the server and its next engine write small files only, and kill this engine. Returns what is wrong."""
    twins = streams(each.url)

    def blow() -> None:
        resource.prlimit(each.process.pid, resource.RLIMIT_FSIZE, (SMALL_FILE, resource.RLIM_INFINITY))
        os.kill(each.engine, signal.SIGKILL)

    return differences(each.url, streams(each.url, blow), twins)


def differences(url: str, found: list[Streamed], twins: list[Streamed]) -> list[str]:
    """Return where streams are not their twins, and whether the server answers health checks."""
    problems = [
        f"stream {number} is not its twin: {one.error or len(one.text)}"
        for number, (one, twin) in enumerate(zip(found, twins, strict=True))
        if one != twin
    ]
    status = httpx.get(f"{url}/health").status_code
    return problems + ([] if status == 200 else [f"/health answers {status}"])


CASES: dict[str, Callable[[Case], list[str]]] = {"swap": swap, "trace-full": trace_full, "file-limit": file_limit}


def problems_of(name: str) -> list[str]:
    """Run a case."""
    with case() as each:
        return CASES[name](each)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=CASES)
    given = parser.parse_args()
    problems = problems_of(given.what)
    print(json.dumps({"case": given.what, "problems": problems}, indent=1))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
