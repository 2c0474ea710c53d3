"""What replicas take, and what a cluster that is too small is told."""

from __future__ import annotations

import pytest

from sluice.config import ConfigError, EngineConfig
from sluice.fleet.resources import cores_of_rank, num_fitting, refuse_shortage, resources_of_replica, with_threads


@pytest.mark.parametrize(
    ("options", "cores", "replicas", "each", "threads"),
    [
        ({}, 8, 3, 2.0, 2),
        ({}, 2, 3, 0.66, 1),
        ({"tp_size": 2}, 8, 2, 2.0, 2),
        ({"threads": 5}, 8, 3, 5.0, 5),
    ],
)
def test_replicas_share_the_cores_unless_they_are_told_how_many(
    options: dict[str, int], cores: int, replicas: int, each: float, threads: int
) -> None:
    engine = EngineConfig.from_options(options)
    assert cores_of_rank(engine, cores, replicas) == each
    assert with_threads(engine, each).model.threads == threads


def test_a_replica_takes_what_all_its_ranks_take() -> None:
    cpu = EngineConfig.from_options({"tp_size": 2, "threads": 3})
    assert resources_of_replica(cpu, 3.0, has_gpus=False) == {"CPU": 6}
    assert resources_of_replica(cpu, 3.0, has_gpus=True) == {"CPU": 2, "GPU": 2}
    own = EngineConfig.from_options({"device": "cpu", "threads": 3})
    assert resources_of_replica(own, 3.0, has_gpus=True) == {"CPU": 3}


def test_a_replica_needs_one_machine() -> None:
    machines = [{"CPU": 3.0, "GPU": 1.0}, {"CPU": 3.0, "GPU": 1.0}, {"CPU": 16.0}]
    assert num_fitting({"CPU": 2, "GPU": 2}, machines) == 0
    assert num_fitting({"CPU": 1, "GPU": 1}, machines) == 2
    assert num_fitting({"CPU": 2}, machines) == 10


@pytest.mark.parametrize(("count", "cores"), [(0.8, 4.0), (0.1, 1.0), (0.7, 2.1), (0.01, 1.0), (1.6, 8.0), (3.0, 9.0)])
def test_shares_of_cores_that_fit_exactly_are_not_refused(count: float, cores: float) -> None:
    """4.0 // 0.8 is 4.0."""
    fitting = round(cores / count)
    assert num_fitting({"CPU": count}, [{"CPU": cores}]) == fitting
    assert num_fitting({"CPU": count}, [{"CPU": cores - 0.001}]) == fitting - 1


def test_a_shortage_says_what_is_free_and_what_each_takes() -> None:
    refuse_shortage({"CPU": 2}, 2, [{"CPU": 4.0}])
    with pytest.raises(ConfigError) as caught:
        refuse_shortage({"CPU": 1, "GPU": 2}, 3, [{"CPU": 4.0, "GPU": 3.0}, {"CPU": 4.0}])
    assert str(caught.value) == (
        "--replicas 3 is more than fit: each takes 1 CPU and 2 GPU of one machine, and free are 4 CPU and 3 GPU; 4 CPU"
        " and 0 GPU, which is enough for 1; lower --replicas, --threads or --tp-size, or add machines"
    )
