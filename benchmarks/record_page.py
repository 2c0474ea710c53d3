"""Record a run that is shown beside others: a long prompt, read while streams run.

    python benchmarks/record_page.py --machine "2 cores of a virtual machine"
    python benchmarks/record_page.py --machine "2 cores of a virtual machine" --chunked --out FILE

Streams of the bundled model run; a long prompt is sent beside them. The first command turns chunks off, so that it is
read in one piece, and writes the run that the page at `/` shows beside its experiment; the second leaves them as they
are by default. The events of `/v1/trace` are written as the page reads them. `streams_picture.py` draws both.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

STREAMS = 3
TOKENS = 4000
VOCAB = range(300, 1500)
OUT = Path(__file__).parent.parent / "src" / "sluice" / "http" / "web" / "recorded.json"


def post(url: str, body: dict[str, Any]) -> None:
    """Send a completion, and read its stream to the end."""
    data = json.dumps({**body, "stream": True, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        answer.read()


def subscribe(url: str, events: list[dict[str, Any]], seconds: float) -> None:
    until = time.monotonic() + seconds
    with urllib.request.urlopen(f"{url}/v1/trace") as lines:
        for line in lines:
            if line.startswith(b"data: "):
                events.append(json.loads(line[6:]))
            if time.monotonic() > until:
                return


def record(url: str, before: float, after: float) -> list[dict[str, Any]]:
    """Return the events from `before` seconds before the long prompt to `after` seconds behind it."""
    events: list[dict[str, Any]] = []
    prompts = [[random.choice(VOCAB) for _ in range(20)] for _ in range(STREAMS)]
    threads = [threading.Thread(target=post, args=(url, {"prompt": each, "max_tokens": 3000})) for each in prompts]
    for thread in threads:
        thread.daemon = True
        thread.start()
    time.sleep(1.0)
    watching = threading.Thread(target=subscribe, args=(url, events, before + after + 2.0))
    watching.start()
    time.sleep(before)
    post(url, {"prompt": [random.choice(VOCAB) for _ in range(TOKENS)], "max_tokens": 16})
    watching.join()
    (sent,) = (each["arrived"] for event in events if event["kind"] == "requests" for each in event["arrived"])
    low, high = sent - before * 1e6, sent + after * 1e6
    return [events[0], *(event for event in events[1:] if low <= event["now"] <= high)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", required=True, help="in words, as the page names it")
    parser.add_argument("--before", type=float, default=1.2, help="seconds before the long prompt")
    parser.add_argument("--after", type=float, default=8.0, help="seconds behind it")
    parser.add_argument("--chunked", action="store_true", help="read the prompt in chunks, as by default")
    parser.add_argument("--out", type=Path, help=f"default: {OUT.name} of the page; needed with --chunked")
    args = parser.parse_args()
    if args.chunked and args.out is None:
        parser.error("--chunked needs --out FILE")
    out = args.out or OUT
    options = [] if args.chunked else ["--chunked-prefill-size", "-1"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "sluice", "serve", "--port", str(port), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            while "curl" not in (line := server.stdout.readline()):
                assert line or server.poll() is None, "the server ended"
            url = f"http://127.0.0.1:{port}"
            post(url, {"prompt": [1] * 600, "max_tokens": 8})  # warm
            events = record(url, args.before, args.after)
        finally:
            server.terminate()
    content = {"machine": args.machine, "model": events[0]["model"], "tokens": TOKENS, "events": events}
    out.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    print(f"{len(events)} events, {out.stat().st_size} bytes in {out}")


if __name__ == "__main__":
    main()
