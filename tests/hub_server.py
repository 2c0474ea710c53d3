"""A hub of a few files: the parts of Hugging Face's HTTP interface that downloads need."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Files = Mapping[str, bytes]


class Hub(ThreadingHTTPServer):
    """A hub with some repositories, by id; `owner/broken` is one that it cannot find its way to."""

    def __init__(self, repositories: Mapping[str, Files]) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.repositories = repositories


class HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        for name, files in self.server.repositories.items():
            if path.startswith(f"/{name}/resolve/"):
                return self.send_file(files, path.removeprefix(f"/{name}/resolve/").partition("/")[2])
            if path in {f"/api/models/{name}/revision/{revision}" for revision in ("main", "v2")}:
                siblings = [{"rfilename": file} for file in files]
                return self.answer(200, {"id": name, "sha": COMMIT, "siblings": siblings})
            if path.startswith(f"/api/models/{name}/revision/"):
                return self.answer(404, {"error": "Revision not found"}, {"X-Error-Code": "RevisionNotFound"})
            if path.startswith(f"/api/models/{name}/tree/"):
                return self.answer(200, [_entry(file, content) for file, content in files.items()])
        if path.startswith("/api/models/owner/broken/"):
            return self.answer(500, {"error": "out of order"})
        return self.answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def send_file(self, files: Files, name: str) -> None:
        content = files[name]
        self.send_response(200)
        for header, value in (
            ("ETag", f'"{name}"'),
            ("X-Repo-Commit", COMMIT),
            ("Content-Length", str(len(content))),
        ):
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for header, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _entry(file: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": file, "size": len(content), "oid": f"{len(content):040x}"}


@contextmanager
def running_hub(repositories: Mapping[str, Files]) -> Iterator[str]:
    """Run a hub, and yield its address."""
    server = Hub(repositories)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
