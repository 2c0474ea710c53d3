"""The options of a fleet: of the command line, and of an application of Ray Serve."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sluice.cli import main
from sluice.config import CacheConfig, ConfigError
from sluice.fleet import build_app
from sluice.fleet.app import numbers, placed
from sluice.fleet.arguments import given_of
from sluice.fleet.cluster import check_reachable
from sluice.fleet.options import REFUSED, FleetPlan, limits_of
from sluice.fleet.transfer_file import decode_engine, prefill_engine
from sluice.routing.split import SplitLimits

FACTORY = "any:factory"
APART = {"prefill_replicas": 1, "transfer_folder": "."}


def test_an_application_takes_the_options_of_the_command() -> None:
    given = given_of({"model": "some/model", "replicas": "3", "max_total_tokens": 4096, "strict_fields": "true"})
    plan = FleetPlan.of(given, FACTORY)
    assert (plan.fleet.replicas, plan.engine.model.model, plan.engine.cache.max_total_tokens) == (3, "some/model", 4096)
    assert plan.server.strict_fields
    assert not plan.server.page
    assert {"replicas", "model", "max_total_tokens", "strict_fields"} <= plan.given


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ({"replicas": "x"}, "invalid int value: 'x'"),
        ({"replicas": 0}, "--replicas must be at least 1, got 0"),
        ({"replica": 2}, "unrecognized arguments: --replica=2"),
        ({"router": "best"}, "--router must be one of round-robin"),
        ({"dtype": "int4"}, "--dtype must be one of"),
        ({"max_replicas": 1}, "--max-replicas must be more than --replicas 1, got 1"),
        ({"scale_down_seconds": 5}, "--scale-down-seconds 5 needs --max-replicas"),
        ({"port": 0}, "--port 0 is not supported by a fleet"),
        ({"prefill_replicas": 1}, "--prefill-replicas 1 needs --transfer-folder FOLDER"),
        ({"split_tokens": 0}, "--split-tokens 0 needs --prefill-replicas"),
        ({"kv_disk_bytes": 9 << 20}, "--kv-disk-bytes 9437184 needs --prefill-replicas"),
        (APART | {"split_patience": 0}, "--split-patience above 0, got None and 0"),
        (APART | {"kv_host_bytes": 9 << 20}, "--kv-host-bytes 9437184 is not supported beside --prefill-replicas"),
        (APART | {"kv_write_policy": "write-back"}, "--kv-write-policy write-back is not supported beside --prefill-r"),
        (APART | {"offload_above": 4096}, "--offload-above 4096 is not supported beside --prefill-replicas"),
        (APART | {"ring_blocks": 4}, "--ring-blocks 4 is not supported beside --prefill-replicas"),
        (APART | {"ring_block_tokens": 64}, "--ring-block-tokens 64 is not supported beside --prefill-replicas"),
        (
            APART | {"sparse_policy": "quest:512"},
            "--sparse-policy quest:512 is not supported beside --prefill-replicas",
        ),
        (APART | {"tp_size": 2}, "a replica of 2 ranks"),
        (APART | {"enable_prefix_caching": "false"}, "--no-enable-prefix-caching is not supported beside"),
        (APART | {"router": "ray-prefix-affinity"}, "--router ray-prefix-affinity is not supported beside"),
    ],
)
def test_bad_options_are_refused(args: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        FleetPlan.of(given_of(args), FACTORY)


@pytest.mark.parametrize("name", REFUSED)
def test_options_of_one_server_are_refused_by_name(name: str) -> None:
    values: dict[str, Any] = {"page": True, "enable_admin": True, "idle_unload": 5.0, "max_connections": 5}
    values |= {"nnodes": 2, "node_rank": 1}
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} is not supported by a fleet"):
        FleetPlan.of({name: values.get(name, "x")}, FACTORY)


def test_events_of_one_engine_are_refused_by_any_name() -> None:
    """Replicas of one machine would listen at one port, and all but one of them could not start."""
    with pytest.raises(ConfigError, match="--kv-events is not supported by a fleet: replicas of one machine"):
        FleetPlan.of(given_of({"kv_events_config": '{"enable_kv_cache_events": true}'}), FACTORY)
    assert FleetPlan.of(given_of({"kv_events_config": '{"enable_kv_cache_events": false}'}), FACTORY).given
    assert FleetPlan.of(given_of({"kv_events": False}), FACTORY).given == {"kv_events"}


def test_the_number_of_replicas_follows_the_load_if_there_may_be_more() -> None:
    plan = FleetPlan.of(given_of({"replicas": 2}), FACTORY)
    assert numbers(plan.fleet) == {"num_replicas": 2}
    plan = FleetPlan.of(given_of({"max_replicas": 3, "scale_down_seconds": 0}), FACTORY)
    scaling = numbers(plan.fleet)["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"], scaling["downscale_delay_s"]) == (1, 3, 0)
    assert scaling["policy"]["policy_kwargs"] == {"least": 1, "most": 3, "queued_tokens": 8192}
    assert placed(plan, {"CPU": 12}).engine.model.threads == 4


def test_prefill_replicas_have_a_share_of_the_machine_and_a_file(tmp_path: Path) -> None:
    given = APART | {"replicas": 2, "kv_disk_bytes": 9 << 20, "split_tokens": 100}
    plan = placed(FleetPlan.of(given_of(given), FACTORY), {"CPU": 12})
    assert plan.engine.model.threads == 4
    assert limits_of(plan.fleet) == SplitLimits(100)
    cache = prefill_engine(plan.engine, tmp_path / "a.kv").cache
    assert (cache.kv_disk, cache.kv_disk_bytes) == (f"{tmp_path}/a.kv", 9 << 20)
    assert decode_engine(plan.engine).cache == CacheConfig()


@pytest.mark.parametrize(
    ("address", "part"),
    [
        ("127.0.0.1:1", "refused"),
        ("somewhere", "must be auto or HOST:PORT"),
        ("ray://a:1", "must be auto or HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster_is_refused_at_once(address: str, part: str) -> None:
    with pytest.raises((OSError, ValueError), match=part):
        check_reachable(address)


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_extra_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "--replicas", "2"]) == 2
    assert "pip install 'sluice-llm[ray]'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="needs Ray Serve, which is not installed"):
        build_app({"replicas": 2})
