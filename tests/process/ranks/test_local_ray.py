"""A cluster of Ray that Sluice starts on this machine: over a fake, and, where it is installed, over Ray itself."""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sluice.process.ranks.local_ray import LOCAL, start_local_ray

LISTENING = """
import os
from pathlib import Path
from tests.stress.fleets.process import descendants
from sluice.process.ranks.local_ray import start_local_ray

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
