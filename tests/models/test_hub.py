"""Finding a checkpoint: folders, hub ids, and errors of the hub, over HTTP to a hub of a few files."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from sluice.models.checkpoint import CheckpointError
from sluice.models.hub import resolve_checkpoint

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"pickle",
    "original/consolidated.00.safetensors": b"twice",
    "README.md": b"words",
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubHandler(BaseHTTPRequestHandler):
    """The parts of the hub's HTTP interface that a download of `owner/tiny` needs."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        entries = [
            {"type": "file", "path": name, "size": len(content), "oid": f"{len(content):040x}"}
            for name, content in FILES.items()
        ]
        if path.startswith("/owner/tiny/resolve/"):
            self.send_file(path.split("/", 5)[5])
        elif path in {f"/api/models/owner/tiny/revision/{name}" for name in ("main", "v2")}:
            self.answer(200, {"id": "owner/tiny", "sha": COMMIT, "siblings": [{"rfilename": n} for n in FILES]})
        elif path.startswith("/api/models/owner/tiny/revision/"):
            self.answer(404, {"error": "Revision not found"}, {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith("/api/models/owner/tiny/tree/"):
            self.answer(200, entries)
        elif path.startswith("/api/models/owner/broken/"):
            self.answer(500, {"error": "out of order"})
        else:
            self.answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def send_file(self, name: str) -> None:
        content = FILES[name]
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


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow requests even under HF_HUB_OFFLINE=1: the hub is in this process."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    """Run a hub, and return its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_revision(hub: str, tmp_path: Path) -> None:
    folder = resolve_checkpoint("owner/tiny", revision="v2", endpoint=hub, cache=tmp_path, weights=False)
    assert {path.name for path in folder.iterdir()} == {"config.json", "tokenizer.json"}
    with pytest.raises(CheckpointError, match="'owner/tiny' has no revision 'v3' on the hub"):
        resolve_checkpoint("owner/tiny", revision="v3", endpoint=hub, cache=tmp_path)


def test_a_revision_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--revision v2 needs a model on the hub"):
        resolve_checkpoint(str(tmp_path), revision="v2")


def test_existing_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_checkpoint(str(tmp_path)) == tmp_path


def test_downloads_json_safetensors_and_tokenizer_only(hub: str, tmp_path: Path) -> None:
    """Pickled weights are never downloaded, and duplicates only once."""
    folder = resolve_checkpoint("owner/tiny", endpoint=hub, cache=tmp_path)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_folder_goes_before_the_hub(hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_checkpoint("owner/tiny", endpoint=hub) == Path("owner/tiny")


@pytest.mark.parametrize("model", ["./nowhere", "/no/where", "a/b/c", "~/nowhere-at-all"])
def test_missing_folder(model: str) -> None:
    """A path with a typo must not become a request to the hub."""
    with pytest.raises(CheckpointError, match=f"no folder '{model}'"):
        resolve_checkpoint(model)


def test_file_instead_of_folder(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(CheckpointError, match="is another file"):
        resolve_checkpoint(str(tmp_path / "model.bin"))


@pytest.mark.parametrize("model", ["not a name", "x--y", "", "-x"])
def test_impossible_name(model: str, hub: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        resolve_checkpoint(model, endpoint=hub, cache=tmp_path)


def test_unknown_model(hub: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'owner/unknown' is neither .* nor a model on the hub"):
        resolve_checkpoint("owner/unknown", endpoint=hub, cache=tmp_path)


def test_hub_in_trouble(hub: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'owner/broken' is not a local folder and could not be downloaded"):
        resolve_checkpoint("owner/broken", endpoint=hub, cache=tmp_path)


def test_no_connection(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(
        CheckpointError, match="'owner/tiny' is not a local folder and could not be downloaded"
    ) as caught:
        resolve_checkpoint("owner/tiny", endpoint=f"http://127.0.0.1:{port}", cache=tmp_path)
    assert "\n" not in str(caught.value)
