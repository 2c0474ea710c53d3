"""Send thousands of requests generated from the server's own schema: none may fail by the server's fault.

    python scripts/fuzz_api.py --requests 5000                    # starts a server with the default model
    python scripts/fuzz_api.py --url http://127.0.0.1:8000        # or uses a running one

Every answer must be as the schema describes it: 2xx, 4xx in OpenAI's error shape, or 503 with a `Retry-After`.
Afterwards the server must answer a plain request, and hold no request and no page. The exit status is 1 if one of these
fails.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from api_cases import MODEL, OPERATIONS, WITH_BODY, Described, Sent, case_of, complaint

DESCRIBED = Described()
PATIENCE = 60.0
"""Seconds after which a request counts as hung."""


@contextmanager
def served() -> Iterator[str]:
    """Start a server of the default model. Returns its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "sluice", "serve", "--port", str(port), "--served-model-name", MODEL]
    with subprocess.Popen([*command, "--max-queued-requests", "16"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            while "curl" not in (line := process.stdout.readline()):
                assert line or process.poll() is None, "the server ended"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def send(url: str, sent: Sent) -> tuple[int, dict[str, str], bytes]:
    """Send one request on a connection of its own."""
    address = urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=PATIENCE)
    try:
        connection.request(sent.method, sent.path, sent.body, dict(sent.headers))
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, answer.read()
    finally:
        connection.close()


def fuzz(url: str, operation: tuple[str, str], count: int, seed_: int, statuses: Counter[int]) -> list[str]:
    """Send `count` requests to one operation. Returns the first few problems."""
    found: list[str] = []

    def answered_well(sent: Sent) -> str | None:
        try:
            status, headers, body = send(url, sent)
        except (OSError, http.client.HTTPException) as error:
            return f"no answer: {error!r}"
        statuses[status] += 1
        return complaint(operation, status, headers, body, DESCRIBED)

    @seed(seed_)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(st.data())
    def one(data: st.DataObject) -> None:
        sent = data.draw(case_of(*operation))
        problem = answered_well(sent)
        if problem is not None and len(found) < 5:
            found.append(f"{sent.method} {sent.path} {sent.body[:1000]!r}: {problem}")

    one()
    return found


def at_rest(url: str) -> list[str]:
    """Return the problems of a server after all requests."""
    plain = Sent("POST", "/v1/completions", {}, json.dumps({"prompt": "The water", "max_tokens": 4}).encode())
    status, _, body = send(url, plain)
    problems = [] if status == 200 else [f"a plain request is answered {status}: {body[:300]!r}"]
    until = time.monotonic() + 5
    while True:
        info = json.loads(send(url, Sent("GET", "/server_info", {}, b""))[2])
        held = info["total_pages"] - info["free_pages"] - info["cached_pages"]
        if info["running"] == info["waiting"] == held == 0:
            return problems
        if time.monotonic() > until:
            return [*problems, f"{info['running']} still run, {info['waiting']} wait, {held} pages are held"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000, help="approximate number of requests")
    parser.add_argument("--url", help="a running server (default: start one)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the requests")
    args = parser.parse_args()
    statuses: Counter[int] = Counter()
    with nullcontext(args.url) if args.url else served() as url:
        problems: list[str] = []
        for operation in OPERATIONS:
            # Other operations take no argument, so their requests are all alike.
            count = max(1, args.requests // len(WITH_BODY)) if operation in WITH_BODY else 20
            problems += fuzz(url, operation, count, args.seed, statuses)
        problems += at_rest(url)
    counts = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    print(f"{statuses.total()} requests: {counts}")
    print("\n".join(problems) or "nothing was the server's fault")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
