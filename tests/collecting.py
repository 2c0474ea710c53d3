"""A collector of OpenTelemetry: an HTTP server that keeps what is posted to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

Posted = list[tuple[str, bytes]]
"""Path and body of each call."""


@contextmanager
def collector() -> Iterator[tuple[str, Posted]]:
    """Its URL, and what has come."""
    posted: Posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", posted
        finally:
            server.shutdown()
            thread.join()
