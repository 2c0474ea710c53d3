"""The command line of a simulated engine makes an engine that plans as it does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from sluice.assembly.resolve import resolve
from sluice.config import ConfigError, EngineConfig
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.candidates import Candidate
from sluice.sim.machine import Machine
from sluice.sim.serving_flags import serving_options
from sluice.sim.settings import changed
from sluice.sim.slo import parse_slo
from sluice.sim.tune import CandidateOutcome
from sluice.sim.tune_command import command
from sluice.sim.world import World
from sluice.types import Regime

WORLD = World(dict.fromkeys(Regime, (1000.0, 0.0, 0.0, 0.0, 0.0, 0.0)))


def served(options: dict[str, Any]) -> Machine:
    """The machine of a server with these options, and a pool of 512 pages."""
    config = resolve(EngineConfig.from_options(options), "cpu").config
    page_size, depth = config.cache.page_size, config.scheduler.depth
    assert page_size is not None
    assert depth is not None
    setup = SchedulerSetup(config.scheduler.limits(), 512, page_size, config.cache.enable_prefix_caching)
    return Machine(model="a-name", name="here", is_measured=True, setup=setup, depth=depth, world=WORLD)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"schedule": "prefill-first", "max_running_requests": 8},
        {"itl_target": "200ms", "chunked_prefill_size": 128},
        {"itl_target": "auto", "itl_quantile": 0.9},
        {"itl_target": "1.0005s", "schedule_policy": "deadline"},
        {"priority_classes": "interactive:ttft=500ms"},
        {"chunked_prefill_size": -1, "page_size": 16},
        {"dynamic_chunking": 0},
        {"max_batch_tokens": 72},
        {"reserve": "full", "max_queued_requests": 5, "enable_prefix_caching": False},
        {"depth": 2},
    ],
)
def test_options_of_an_engine_make_its_equal(options: dict[str, Any]) -> None:
    """The line that is to be used would start another engine than the one that met the objectives."""
    machine = served(options)
    found = serving_options(machine)
    assert found.pop("max_total_tokens") == machine.setup.num_pages * machine.setup.page_size
    again = served(found)
    assert (again.setup, again.depth) == (machine.setup, machine.depth)
    # A server divides chunks among steps where its model allows it, and the measured one did not.
    assert found.keys() - {"itl_target", "sliced_chunk_size"} == options.keys() - {"itl_target"}, (
        "what follows from others is left out"
    )
    assert found.get("sliced_chunk_size", 0) == 0


def with_layers(machine: Machine) -> Machine:
    """The machine of a server whose chunks are divided among steps, which its model decides."""
    limits = replace(machine.setup.limits, sliced_chunk_size=2048, num_layers=28)
    return with_fields(machine, setup=replace(machine.setup, limits=limits))


@pytest.mark.parametrize(
    "settings", [{"itl_target": "off"}, {"max_prefill_tokens": 512}, {"long_prefill_token_threshold": 512}]
)
def test_settings_without_sliced_chunks_make_an_engine_without_them(settings: dict[str, Any]) -> None:
    """A server refuses the size of such chunks where it has no effect."""
    machine = with_layers(served({"itl_target": "200ms"}))
    assert serving_options(machine)["sliced_chunk_size"] == 2048
    other = changed(machine, settings)
    assert other.setup.limits.sliced_chunk_size == 0
    assert served(serving_options(other)).setup.limits.itl_target == other.setup.limits.itl_target


def test_sliced_chunks_of_an_engine_without_layers_are_not_simulated() -> None:
    with pytest.raises(ConfigError, match="measured without such chunks"):
        changed(served({}), {"itl_target": "200ms", "sliced_chunk_size": 2048})


def test_the_line_to_use_has_what_the_measured_engine_ran_with() -> None:
    """A trace does not know the folder of its model, and the name that it was served by is none."""
    machine = served({"schedule": "prefill-first", "max_running_requests": 8})
    outcome = CandidateOutcome(Candidate({}, machine), 2, (), parse_slo("ttft_p95<1s"))
    line = command(outcome)
    assert line.startswith("sluice serve MODEL ")
    assert "--schedule prefill-first --max-running-requests 8" in line
    assert line.endswith(f"--max-total-tokens {512 * machine.setup.page_size}   # on each of 2 replicas")


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, {"itl_target": "off"}),
        ({"itl_target": "200ms"}, {"sliced_chunk_size": 0}),
        ({"itl_target": "200ms", "chunked_prefill_size": 128}, {}),
        ({"schedule": "prefill-first"}, {}),
        ({"itl_target": "200ms", "sliced_chunk_size": 1024}, {}),
    ],
)
def test_a_server_divides_no_chunks_that_the_measured_engine_did_not(
    options: dict[str, Any], more: dict[str, Any]
) -> None:
    """It does by default, and no simulation showed how it would serve."""
    found = serving_options(served(options))
    del found["max_total_tokens"]
    assert found == {**options, **more}
