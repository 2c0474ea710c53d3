"""What the options of several ranks resolve to, and what is refused. `cli/test_migration.py` has more refusals."""

from __future__ import annotations

import sys

import pytest
import torch

from sluice.assembly.devices import resolve_here
from sluice.assembly.ranks import MAX_HERE, address_of, layout_of, ranks_of_node, refuse_ranks
from sluice.assembly.resolve import resolve
from sluice.cli import main
from sluice.config import ConfigError, EngineConfig, ParallelConfig
from sluice.device.machine import usable_cores
from sluice.llm.llm import LLM


def test_ranks_of_a_machine_divide_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with all cores, they would wait for each other's threads."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    resolution, device = resolve_here(EngineConfig.from_options({"tp_size": 2, "device": "cpu"}))
    assert device == torch.device("cpu")
    assert resolution.config.model.threads == max(1, usable_cores() // 2)
    assert resolution.reasons["threads"].endswith("divided between 2 ranks")
    asked, _ = resolve_here(EngineConfig.from_options({"tp_size": 2, "device": "cpu", "threads": 1}))
    assert asked.config.model.threads == 1


def test_each_stage_has_a_step_and_one_more_is_planned() -> None:
    resolved = resolve(EngineConfig.from_options({"pp_size": 3}), "cpu").config.scheduler
    assert (resolved.depth, resolved.lookahead) == (4, 0)
    assert resolve(EngineConfig.from_options({"pp_size": 3, "depth": 2}), "cpu").config.scheduler.depth == 2
    assert resolve(EngineConfig.from_options({"tp_size": 3}), "cpu").config.scheduler.depth == 1


def test_a_pipeline_on_cuda_plans_no_token_ahead() -> None:
    """Its tokens would pass its hidden states on one stream, in the other direction."""
    overlap = EngineConfig.from_options({"pp_size": 2, "enable_overlap": True})
    resolved = resolve(overlap, "cpu").config.scheduler
    assert (resolved.depth, resolved.lookahead) == (3, 1)
    with pytest.raises(ConfigError, match="--enable-overlap is not supported beside --pp-size 2 on cuda"):
        resolve(overlap, "cuda")
    with pytest.raises(ConfigError, match="--lookahead 1 is not supported beside --pp-size 2 on cuda"):
        resolve(EngineConfig.from_options({"pp_size": 2, "lookahead": 1}), "cuda")


def test_host_memory_of_several_ranks_holds_no_contexts_longer_than_the_device() -> None:
    """On one rank it does, and a ring on the device is made for them."""
    rings = [
        resolve(EngineConfig.from_options({"kv_host_bytes": 1 << 30, **sizes}), "cuda").config.offload.ring_blocks
        for sizes in ({}, {"tp_size": 2}, {"pp_size": 2})
    ]
    assert rings[0] is not None
    assert rings[1:] == [None, None]


def test_machines_have_equal_shares_of_the_ranks() -> None:
    parallel = ParallelConfig(tp_size=2, pp_size=4, nnodes=2)
    assert layout_of(parallel).size == 8
    assert [list(ranks_of_node(parallel, node)) for node in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_addresses() -> None:
    assert address_of("10.0.0.1:5000") == ("10.0.0.1", 5000)
    assert address_of("[fd00::1]:5000") == ("fd00::1", 5000)
    for text in ("10.0.0.1", ":5000", "host:", "host:0", "host:65536", "host:x"):
        with pytest.raises(ConfigError, match="--dist-init-addr must be HOST:PORT"):
            address_of(text)
    with pytest.raises(ConfigError, match="must name one address"):
        address_of("0.0.0.0:5000")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_more_ranks_than_devices() -> None:
    with pytest.raises(ConfigError, match=r"--device cuda: this machine has 0 usable CUDA devices"):
        resolve_here(EngineConfig.from_options({"tp_size": 2, "device": "cuda"}))


def test_more_ranks_than_a_machine_can_start() -> None:
    """98 processes were started before a model of 4 layers refused 99 stages."""
    refuse_ranks(EngineConfig.from_options({"pp_size": MAX_HERE}))
    with pytest.raises(ConfigError, match=f"--pp-size {MAX_HERE + 1} put {MAX_HERE + 1} ranks on this machine"):
        refuse_ranks(EngineConfig.from_options({"pp_size": MAX_HERE + 1}))


def test_ray_places_several_ranks_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = EngineConfig.from_options({"pp_size": MAX_HERE + 1, "distributed_executor_backend": "ray"})
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"backend ray needs the package ray: pip install 'sluice-llm\[ray\]'"):
        refuse_ranks(given)


@pytest.mark.parametrize("node", ["0", "1"])
@pytest.mark.parametrize("given", ["--idle-unload 60", "--enable-admin --admin-key boss"])
def test_the_engine_of_several_machines_stays(given: str, node: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it, the other machines would give up."""
    line = "serve --tp-size 2 --nnodes 2 --dist-init-addr 127.0.0.1:1 --dist-token-file missing"
    assert main([*line.split(), *given.split(), "--node-rank", node]) == 2
    shown = given.removesuffix(" --admin-key boss")
    assert f"{shown} is not supported beside --nnodes 2: without an engine, the other" in capsys.readouterr().err


def test_the_library_is_one_process() -> None:
    with pytest.raises(ConfigError, match="--tp-size 2 needs `sluice serve` or AsyncLLM"):
        LLM(tp_size=2)
