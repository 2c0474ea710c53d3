"""Ranks that Ray places: over a cluster of the tests, and, where Ray is installed, over Ray itself."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

import processes
from any_checkpoint import any_checkpoint
from sluice import LLM, AsyncLLM, SamplingParams
from sluice.config import ConfigError, EngineConfig
from sluice.process.ranks.ray_ranks import LOCAL, Resources, place_ranks, resources_of_rank, start_local_ray
from sluice.process.ranks.spawn import RankSetup
from sluice.process.wire import Start

LEADER = Path("/run/sluice/ranks")
EXACT = {"dtype": "float64", "max_total_tokens": 2048, "chunked_prefill_size": 32, "page_size": 8, "threads": 1}
CPU = EngineConfig.from_options({"tp_size": 2, "pp_size": 2, "device": "cpu", "threads": 3})

LISTENING = """
import os
from pathlib import Path
from tests.stress.fleets.process import descendants
from sluice.process.ranks.ray_ranks import start_local_ray

start_local_ray(80 << 20, logging_level="ERROR", num_cpus=1)
inodes = set()
for pid in (os.getpid(), *descendants(os.getpid())):
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(each).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
for name in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
        _, address, _, state, _, _, _, _, _, inode, *_ = line.split()
        if state == "0A" and inode in inodes:
            print(address.split(":")[0])
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same as an address of IPv6, and ::1, as Linux prints them."""


@dataclass
class Machines:
    """A cluster whose ranks are only noted."""

    has: Mapping[str, float]
    here: Sequence[bool] | None
    """For each rank, whether it is on this machine; None: something else takes the resources."""
    setups: list[RankSetup] = field(default_factory=list)
    status: int | None = None
    taken: float = 0.0
    has_own_gpu: bool = False

    def total(self) -> Mapping[str, float]:
        return self.has

    def free(self) -> Mapping[str, float]:
        return {name: count - self.taken for name, count in self.has.items()}

    def place(self, each: Resources, size: int, tick: Callable[[], None]) -> Sequence[bool] | None:
        tick()
        return self.here

    def address(self) -> str:
        return "127.0.0.1"

    def use_own_gpu(self) -> None:
        self.has_own_gpu = True

    def run(self, rank: int, setup: bytes, folder: str) -> None:
        assert folder == os.getcwd()
        self.setups.append(msgspec.msgpack.decode(setup, type=RankSetup))
        assert self.setups[-1].rank == rank

    def ended(self) -> int | None:
        return self.status

    def close(self) -> None:
        self.status = -9


def place(machines: Machines, config: EngineConfig = CPU) -> tuple[str, ...]:
    """Place ranks, and return the leader's address for each."""
    placed = place_ranks(Start(config), LEADER, lambda: None, lambda _: machines)
    if placed.entrance is not None:
        placed.entrance.listener.close()
    assert placed.ended() is None
    machines.status = 3
    assert placed.ended() == 3
    return tuple(setup.leader for setup in machines.setups)


def test_ranks_of_one_machine_open_no_port() -> None:
    machines = Machines({"CPU": 12}, [True] * 4)
    assert place(machines) == (str(LEADER),) * 3
    assert [setup.rank for setup in machines.setups] == [1, 2, 3]
    assert {setup.token for setup in machines.setups} == {b""}


def test_ranks_of_other_machines_have_a_token() -> None:
    machines = Machines({"CPU": 12}, [True, True, False, False])
    beside, *others = place(machines)
    assert beside == str(LEADER)
    (address,) = set(others)
    assert address.startswith("127.0.0.1:")
    assert [len(setup.token) for setup in machines.setups] == [0, 32, 32]
    assert machines.setups[1].token == machines.setups[2].token


def test_each_rank_takes_a_gpu_of_its_own() -> None:
    config = EngineConfig.from_options({"tp_size": 2, "device": "cuda"})
    machines = Machines({"CPU": 4, "GPU": 2}, [True, True])
    place(machines, config)
    assert machines.has_own_gpu
    assert machines.setups[0].local_rank == 0, "a rank sees one device"
    with pytest.raises(ConfigError, match="of 2 ranks takes 1 CPU and 1 GPU, and Ray's cluster has 4 CPU and 1 GPU"):
        place(Machines({"CPU": 4, "GPU": 1}, [True, True]), config)


def test_what_a_rank_takes() -> None:
    auto = EngineConfig.from_options({"tp_size": 2, "threads": 2})
    assert resources_of_rank(auto, has_gpus=True) == {"CPU": 1, "GPU": 1}
    assert resources_of_rank(auto, has_gpus=False) == {"CPU": 2}
    on_cpu = replace(auto, model=replace(auto.model, device="cpu"))
    assert resources_of_rank(on_cpu, has_gpus=True) == {"CPU": 2}


def test_a_cluster_that_is_too_small_or_too_busy() -> None:
    with pytest.raises(ConfigError, match="each of 4 ranks takes 3 CPU, and Ray's cluster has 11 CPU: lower"):
        place(Machines({"CPU": 11}, [True] * 4))
    with pytest.raises(ConfigError, match="cluster has free 11 CPU"):
        place(Machines({"CPU": 12}, None, taken=1))
    with pytest.raises(ConfigError, match=r"takes 3 CPU of one machine, .* free in the whole cluster: 12 CPU"):
        place(Machines({"CPU": 12}, None))


@pytest.mark.skipif(find_spec("ray") is None, reason="the extra `ray` is not installed")
@pytest.mark.filterwarnings("default")
async def test_streams_go_on_when_a_rank_that_ray_placed_is_killed() -> None:
    """Over a Ray of this machine, which each engine starts and ends."""
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    with closing(LLM(any_checkpoint(), **EXACT)) as llm:
        (expected,) = llm.generate(["Once upon a time"], params)
    async with AsyncLLM(any_checkpoint(), **EXACT, tp_size=2, distributed_executor_backend="ray") as llm:
        assert llm.pid is not None
        (rank,) = ranks_below(llm.pid)
        stream = llm.generate("Once upon a time", params)
        pieces = [await anext(stream)]
        os.kill(rank, signal.SIGKILL)
        pieces += [piece async for piece in stream]
        assert "".join(piece.text for piece in pieces) == expected.text
        assert llm.num_restarts == 1
        (follower,) = ranks_below(llm.pid)
    assert await asyncio.to_thread(processes.ends, follower, 20), "it ends with its engine"


def ranks_below(pid: int) -> list[int]:
    """Return the processes of ranks among a process' children, and theirs."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            found += [int(child)] if b"rank_process" in command else ranks_below(int(child))
    return found


class FakeRay(ModuleType):
    """Ray, as far as it starts: it takes the loopback address only where it starts no clusters of several machines."""

    def __init__(self, constants: ModuleType, *, obeys: bool) -> None:
        super().__init__("ray")
        self._constants = constants
        self._obeys = obeys
        self.options: dict[str, Any] = {}
        self.util = SimpleNamespace(get_node_ip_address=lambda: self._address)

    def init(self, **options: Any) -> None:
        self.options = options
        self._address = "10.0.0.7" if self._constants.ENABLE_RAY_CLUSTER or not self._obeys else LOCAL


def fake_ray(monkeypatch: pytest.MonkeyPatch, *, obeys: bool) -> FakeRay:
    constants, usage = ModuleType("ray._private.ray_constants"), ModuleType("ray._common.usage.usage_lib")
    constants.ENABLE_RAY_CLUSTER = True  # type: ignore[attr-defined]
    usage.set_usage_stats_enabled_via_env_var = lambda value: setattr(usage, "is_on", value)  # type: ignore[attr-defined]
    ray = FakeRay(constants, obeys=obeys)
    for module in (ray, constants, usage):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return ray


def test_it_has_the_loopback_address_and_sends_no_statistics(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ray made the machine's own address of 127.0.0.1, and listened on all interfaces."""
    ray = fake_ray(monkeypatch, obeys=True)
    with caplog.at_level(logging.WARNING):
        start_local_ray(1 << 20, num_cpus=2)
    assert ray.util.get_node_ip_address() == LOCAL
    assert ray.options["address"] == "local"
    assert ray.options["num_cpus"] == 2
    assert not sys.modules["ray._common.usage.usage_lib"].is_on
    assert not caplog.records


def test_a_ray_that_takes_another_address_all_the_same_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_ray(monkeypatch, obeys=False)
    with caplog.at_level(logging.WARNING):
        start_local_ray(1 << 20)
    (record,) = caplog.records
    assert "Ray has the address 10.0.0.7, and not 127.0.0.1" in record.getMessage()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'")
def test_its_ports_are_open_to_this_machine_alone() -> None:
    ended = subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True, timeout=60, check=True)
    listening = set(ended.stdout.split())
    assert listening
    assert listening <= LOOPBACK
