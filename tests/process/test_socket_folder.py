"""The folder of an engine's sockets: where it is made, and that none stays behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.process import socket_folder
from sluice.process.socket_folder import PREFIX, SocketFolder, remove_abandoned

HOLDER = """
import sys
from sluice.process.socket_folder import SocketFolder
folder = SocketFolder.fresh()
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parents(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Two folders in the place of the machine's temporary folders, with paths that are short enough for sockets."""
    with tempfile.TemporaryDirectory() as outer:
        found = [Path(outer, name) for name in ("a", "b")]
        for path in found:
            path.mkdir()
        monkeypatch.setattr(socket_folder, "temporary_folders", lambda: [str(path) for path in found])
        yield found


def test_it_is_made_elsewhere_if_the_temporary_folder_is_gone(parents: list[Path]) -> None:
    """A cleaned-up TMPDIR must not end a server whose engine died."""
    parents[0].rmdir()
    folder = SocketFolder.fresh()
    assert folder.path.parent == parents[1]
    folder.remove()
    assert list(parents[1].iterdir()) == []


def test_it_is_made_elsewhere_if_the_disk_is_full(parents: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat with a hole in it would kill the engine with SIGBUS."""
    create = socket_folder.SharedHeartbeat.create

    def full(path: Path) -> None:
        if path.is_relative_to(parents[0]):
            raise OSError(28, "No space left on device")
        create(path)

    monkeypatch.setattr(socket_folder.SharedHeartbeat, "create", full)
    folder = SocketFolder.fresh()
    assert folder.path.parent == parents[1]
    assert list(parents[0].iterdir()) == []
    folder.remove()


def test_every_byte_of_the_heartbeat_has_space(parents: list[Path]) -> None:
    folder = SocketFolder.fresh()
    status = folder.heartbeat.stat()
    assert status.st_blocks * 512 >= status.st_size
    folder.remove()


def test_without_any_folder_the_error_names_all(parents: list[Path]) -> None:
    for path in parents:
        path.rmdir()
    with pytest.raises(OSError, match=r"a: No such file or directory; .*b: No such file or directory\); set TMPDIR"):
        SocketFolder.fresh()


def test_a_limit_on_files_is_named(parents: list[Path]) -> None:
    """It was told as the fault of four temporary folders, with the advice to name another one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OSError, match=r"at most 65536 bytes \(RLIMIT_FSIZE\), and the engine's heartbeat has \d+"):
            SocketFolder.fresh()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_folder_that_others_can_enter_is_refused(parents: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without modes, other users could send messages to the engine."""
    mkdtemp = tempfile.mkdtemp

    def open_to_all(**where: str) -> str:
        path = mkdtemp(**where)
        os.chmod(path, 0o755)
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", open_to_all)
    with pytest.raises(OSError, match="other users can enter"):
        SocketFolder.fresh()
    assert [list(path.iterdir()) for path in parents] == [[], []]


def test_only_folders_of_dead_servers_are_removed(parents: list[Path]) -> None:
    """A new server must remove neither the sockets of one that runs nor anything that is not a socket folder."""
    environment = os.environ | {"TMPDIR": str(parents[0])}
    holder = [sys.executable, "-c", HOLDER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen(holder, **pipes) as killed, subprocess.Popen(holder, **pipes) as running:
        left, used = (Path(process.stdout.readline().strip()) for process in (killed, running))
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        own = SocketFolder.fresh()
        (parents[1] / f"{PREFIX}link").symlink_to(left)
        foreign = parents[1] / f"{PREFIX}foreign"
        foreign.mkdir(mode=0o700)
        (foreign / "data").touch()
        remove_abandoned()
        assert sorted(parents[0].iterdir()) == sorted([used, own.path])
        assert (foreign / "data").exists()
        assert (parents[1] / f"{PREFIX}link").is_symlink()
        own.remove()
        running.communicate("")
    remove_abandoned()
    assert list(parents[0].iterdir()) == []
