"""The engine's process and the connection to it: start, work, the end of either process."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import zmq

import processes
from serving import expected_text, run
from sluice.config import ConfigError, EngineConfig, MemoryShortage
from sluice.engine.heartbeat import Phase
from sluice.engine.messages import Abort, Shutdown, Submit
from sluice.process import launch
from sluice.process.client import EngineClient, EngineGone
from sluice.process.engine_process import importing, is_shortage
from sluice.process.heartbeat import SharedHeartbeat
from sluice.process.launch import EngineProcess, EngineStartError, EngineTimeouts
from sluice.process.socket_folder import SocketFolder
from sluice.process.wire import Outputs, Ready, Start, WireError
from sluice.process.zmq_link import ZmqChannel, ZmqLink
from sluice.testing import resolved
from sluice.types import FinishReason, Output

TESTS = Path(__file__).parents[1]
CONFIG = EngineConfig.from_options({"model": "a folder"})


@pytest.fixture(autouse=True)
def _factories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the child import the factories of `shadow_engine`."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


async def test_an_engine_works_and_ends() -> None:
    engine = await EngineProcess.spawn(Start(CONFIG, "shadow_engine:build"))
    ready = await engine.ready()
    assert (ready.model, ready.tokenizer_folder) == ("shadow", "a folder")
    client = EngineClient(engine.send)
    running = asyncio.create_task(engine.run(client.deliver))
    inbox = client.submit([Submit(client.next_id(), tuple(b"ab"), resolved(9))])
    tokens: list[int] = []
    while client.num_open:
        tokens += [token for output in await inbox.get() for token in output.token_ids]
    assert bytes(tokens).decode() == expected_text("ab", 9)
    await engine.close()
    assert await running == "ended with status 0"
    assert processes.ends(engine.pid, 0)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("shadow_engine:refuse", "^the checkpoint a folder is bad$"),
        ("shadow_engine:crash", "^the engine ended with status 7 before it was ready$"),
        ("shadow_engine:missing", "AttributeError"),
        (
            "shadow_engine:sends_an_invalid_message",
            "^the engine sent an invalid message before it was ready: bad 'ready'",
        ),
    ],
)
async def test_an_engine_that_does_not_start_says_why(factory: str, said: str) -> None:
    """Otherwise a server waits forever for a model that will never load."""
    engine = await EngineProcess.spawn(Start(CONFIG, factory))
    try:
        with pytest.raises(EngineStartError, match=said):
            await engine.ready()
    finally:
        await engine.close()


def test_a_shortage_is_told_from_other_errors() -> None:
    """After a shortage the engine is started again without being counted; a bad checkpoint stays bad."""

    def raised_from(error: OSError) -> ValueError:
        raised = ValueError("the weights cannot be read")
        raised.__cause__ = error
        return raised

    assert is_shortage(MemoryError())
    assert is_shortage(MemoryShortage("--max-total-tokens 4096 does not fit"))
    assert is_shortage(OSError(errno.ENOSPC, "No space left on device"))
    assert is_shortage(raised_from(OSError(errno.EMFILE, "Too many open files")))
    assert not is_shortage(raised_from(FileNotFoundError(errno.ENOENT, "No such file or directory")))
    assert not is_shortage(ConfigError("the config is bad"))


def test_garbage_is_collected_again_after_imports() -> None:
    """Also if one fails, or the process would grow."""
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()
    with suppress(ImportError), importing():
        raise ImportError
    assert gc.isenabled()


async def test_an_engine_that_is_loading_is_ended_at_once() -> None:
    engine = await EngineProcess.spawn(Start(CONFIG, "shadow_engine:build"))
    await engine.close()
    assert processes.ends(engine.pid, 0)


async def test_the_death_of_the_engine_ends_every_open_request() -> None:
    """Otherwise a stream waits forever for a process that was killed."""
    engine = await EngineProcess.spawn(Start(CONFIG, "shadow_engine:build"))
    await engine.ready()
    client = EngineClient(engine.send)
    inbox = client.submit([Submit(client.next_id(), tuple(b"ab"), resolved(200))])
    os.kill(engine.pid, signal.SIGKILL)
    how = await engine.run(lambda frame, epoch: None)
    assert how == "was killed by signal 9"
    client.fail(how)
    with pytest.raises(EngineGone, match="signal 9"):
        await inbox.get()
    with pytest.raises(EngineGone, match="signal 9"):
        client.submit([Submit(client.next_id(), tuple(b"ab"), resolved(1))])
    await engine.close()


class Unkillable:
    """A process that SIGKILL does not end, such as one in a system call on a disk that hangs."""

    pid, returncode = 12345, None
    kills = 0

    def kill(self) -> None:
        self.kills += 1

    async def wait(self) -> int:
        await asyncio.Event().wait()
        raise AssertionError

    def close_stdin(self) -> None:
        """Return: it has none."""


def unkillable() -> tuple[EngineProcess, Unkillable, SocketFolder]:
    folder, process = SocketFolder.fresh(), Unkillable()
    timeouts = EngineTimeouts(start=30.0, heartbeat=0.1, step=0.1)
    return EngineProcess(process, folder, ZmqChannel(folder), 0, timeouts), process, folder  # type: ignore[arg-type]


def test_a_killed_process_that_does_not_end_is_abandoned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise every stream waits for it, and so does the shutdown of the server."""
    monkeypatch.setattr(launch, "KILL_SECONDS", 0.05)

    async def test() -> None:
        engine, process, folder = unkillable()
        heartbeat = SharedHeartbeat.open(folder.heartbeat)
        heartbeat.tick(Phase.BUSY)  # it was at work
        heartbeat.close()
        how = await engine.run(lambda frame, epoch: None)
        assert "sent no heartbeat" in how
        await engine.close()
        assert process.kills == 1
        assert not folder.path.exists()

    run(test)
    assert caplog.text.count("process 12345 was killed but has not ended after 0.05 s") == 1


async def test_garbage_collection_skips_what_was_loaded() -> None:
    """A full collection over all imported modules stops the engine for a tenth of a second and more."""
    engine = await EngineProcess.spawn(Start(CONFIG, "shadow_engine:counts_its_objects"))
    await engine.ready()
    engine.send(Submit(0, (1,), resolved(1)))
    said = re.search("RuntimeError: (\\d+) objects", await engine.run(lambda frame, epoch: None))
    assert said is not None
    assert int(said[1]) > 10_000
    await engine.close()


async def test_an_interrupted_close_leaves_no_folder_behind() -> None:
    """A second signal while the server waits for its engine would leave sockets in the temporary folder."""
    engine, process, folder = unkillable()
    closing = asyncio.create_task(engine.close())
    while not process.kills:
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled()
    assert not folder.path.exists()


ORPHAN = """
import asyncio
from sluice.config import ConfigError, EngineConfig, MemoryShortage
from sluice.process.launch import EngineProcess
from sluice.process.wire import Start

async def main():
    engine = await EngineProcess.spawn(Start(EngineConfig(), "shadow_engine:build"))
    await engine.ready()
    print(engine.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_an_engine_never_outlives_its_server() -> None:
    """A server that is killed must not leave a process that holds the GPU."""
    with (
        tempfile.TemporaryDirectory() as folder,  # a killed server cannot remove its sockets
        subprocess.Popen(
            [sys.executable, "-c", ORPHAN],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": folder},
        ) as server,
    ):
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
        assert processes.ends(pid, 10)


async def test_messages_arrive_in_order_and_outputs_come_back() -> None:
    folder = SocketFolder.fresh()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    channel = ZmqChannel(folder)
    sent = [Start(CONFIG, "a:b"), *(Submit(i, (i,), resolved()) for i in range(3000)), Abort(7), Shutdown()]
    for frame in sent:  # before the other end exists
        channel.send(frame)
    link = ZmqLink(folder)
    got: list[object] = [await asyncio.to_thread(link.receive_start)]
    while len(got) < len(sent):
        got += await asyncio.to_thread(link.receive, block=True)
    assert got == sent
    assert link.receive(block=False) == []
    output = Output(1, 0, (5,), 0, FinishReason.LENGTH)
    link.send_frame(Ready("m", "f", limits=None, eos_token_ids=()))  # type: ignore[arg-type]
    link.send([output])
    with pytest.raises(WireError, match="bad 'ready' message"):
        await channel.receive()
    assert await channel.receive() == Outputs((output,))
    link.close()
    channel.close()
    folder.remove()
    assert not folder.path.exists()


def test_a_message_that_no_server_sends_is_refused() -> None:
    folder = SocketFolder.fresh()
    link = ZmqLink(folder)
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(folder.requests)
        socket.send(b"hello")
        with pytest.raises(WireError, match=r"not a \[tag, value\] frame \(5 bytes\)"):
            link.receive(block=True)
    link.close()
    folder.remove()


def test_a_long_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a Unix socket has at most 107 bytes; TMPDIR on a cluster is often longer."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = SocketFolder.fresh()
    assert len(folder.requests.removeprefix("ipc://")) <= 107
    assert list(long.iterdir()) == []
    ZmqLink(folder).close()
    folder.remove()


def test_the_log_level_reaches_the_engine(capfd: pytest.CaptureFixture[str]) -> None:
    """At level info, the engine logs each chunk of a prompt with its id, number, extend_len and cached prefix. At the
    default level it logs none."""

    async def read(log_level: str) -> None:
        engine = await EngineProcess.spawn(Start(CONFIG, "shadow_engine:build", log_level))
        await engine.ready()
        client = EngineClient(engine.send)
        running = asyncio.create_task(engine.run(client.deliver))
        inbox = client.submit([Submit(client.next_id(), tuple(range(70)), resolved(1))])
        while client.num_open:
            await inbox.get()
        await engine.close()
        await running

    run(lambda: read("warning"))
    assert "chunk" not in capfd.readouterr().err
    run(lambda: read("info"))
    lines = [line.partition("INFO sluice.engine: ")[2] for line in capfd.readouterr().err.splitlines()]
    assert [line for line in lines if line] == [
        "request 1: chunk 1 of its prompt in step 0: extend_len 32, from 0, cached prefix 0",
        "request 1: chunk 2 of its prompt in step 1: extend_len 32, from 32, cached prefix 0",
        "request 1: chunk 3 of its prompt in step 2: extend_len 6, from 64, cached prefix 0, the last",
    ]
