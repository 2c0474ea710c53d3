"""What Ray Serve is given, by a stand-in that writes it down."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sluice.cli import main
from sluice.config import ConfigError, ServerConfig
from sluice.fleet.app import application
from sluice.fleet.arguments import given_of
from sluice.fleet.command import open_warning
from sluice.fleet.options import FleetPlan


class Deployment:
    """A deployment with its options, and what it is bound to."""

    def __init__(self, cls: type, **options: Any) -> None:
        self.options = options
        self.args: tuple[Any, ...] = ()

    def bind(self, *args: Any) -> Deployment:
        self.args = args
        return self


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ray Serve be installed."""
    modules = {name: ModuleType(name) for name in ("ray", "ray.serve", "ray.serve.config")}
    vars(modules["ray.serve"]).update(deployment=Deployment, ingress=lambda: lambda cls: cls)
    vars(modules["ray.serve.config"]).update(RequestRouterConfig=dict)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("ray")
def test_api_keys_stay_in_the_ingress(tmp_path: Path) -> None:
    """Replicas check none, and Ray keeps what they are given."""
    keys = tmp_path / "keys"
    keys.write_text("another\n")
    plan = FleetPlan.of(given_of({"api_key": "geheim", "api_key_file": str(keys)}), "any:factory")
    ingress = application(plan, has_gpus=False)
    own, version, replica = ingress.args
    assert own.server.api_key == "geheim"
    theirs, of_replica = replica.args
    assert version == of_replica
    assert b"geheim" not in pickle.dumps(theirs)
    assert theirs.server.api_key_file is None
    assert theirs.engine == own.engine


@pytest.mark.usefixtures("ray")
def test_a_replica_whose_engine_gave_up_is_replaced_within_seconds() -> None:
    """Ray asks three times before it believes it, by default every ten seconds."""
    ingress = application(FleetPlan.of({}, "any:factory"), has_gpus=False)
    assert 3 * ingress.args[2].options["health_check_period_s"] <= 10


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("ingresses", [1, 2])
def test_there_are_as_many_ingresses_as_asked_for(ingresses: int) -> None:
    """Of the streams of one that dies, all are cut."""
    plan = FleetPlan.of(given_of({"ingresses": ingresses}), "any:factory")
    assert application(plan, has_gpus=False).options["num_replicas"] == ingresses


@pytest.mark.parametrize(
    ("host", "key", "warns"), [("0.0.0.0", None, True), ("0.0.0.0", "k", False), ("::1", None, False)]
)
def test_a_fleet_that_is_open_to_all_is_warned_of(host: str, key: str | None, warns: bool) -> None:
    warning = open_warning(ServerConfig(host=host, api_key=key))
    assert (warning is not None and "listening on 0.0.0.0 without an API key" in warning) == warns


@pytest.mark.usefixtures("ray")
def test_a_fleet_of_another_cluster_is_warned_of_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "--address", "127.0.0.1:1", "--host", "0.0.0.0"]) == 2
    assert "warning: listening on 0.0.0.0 without an API key" in capsys.readouterr().err


def test_a_host_without_an_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="--host a b has no address"):
        open_warning(ServerConfig(host="a b"))
