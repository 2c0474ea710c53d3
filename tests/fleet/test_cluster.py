"""What is said of a cluster that cannot be used, over modules in the place of Ray's."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from sluice.config import ConfigError
from sluice.fleet.cluster import FleetCluster

AUTH_MODE = "RAY_AUTH_MODE"


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address at which something listens that does not let Ray in."""

    def init(**options: object) -> None:
        raise ConnectionError(f"Failed to connect to {options['address']}")

    ray = ModuleType("ray")
    ray.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.serve", ModuleType("ray.serve"))
    monkeypatch.delenv(AUTH_MODE, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_cluster_that_does_not_let_one_in_may_want_a_token(closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray start` asks for the token where a fleet has run before, and Ray said only that it could not connect."""
    with pytest.raises(ConfigError) as caught:
        FleetCluster(closed)
    assert str(caught.value) == (
        f"Ray cannot be reached at --address {closed}: Failed to connect to {closed}; if that cluster asks for Ray's"
        " token, set RAY_AUTH_MODE=token"
    )
    monkeypatch.setenv(AUTH_MODE, "token")
    with pytest.raises(ConfigError) as caught:
        FleetCluster(closed)
    assert AUTH_MODE not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:1", "[Errno 111] Connection refused"),
        ("nonsense", "it must be auto or HOST:PORT, as 10.0.0.1:6379"),
        ("ray://127.0.0.1:6379", "it must be auto or HOST:PORT, as 10.0.0.1:6379"),
    ],
)
@pytest.mark.usefixtures("closed")
def test_an_address_without_a_cluster_is_named(address: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FleetCluster(address)
    assert str(caught.value) == f"Ray cannot be reached at --address {address}: {reason}"
