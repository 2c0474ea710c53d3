"""What an engine knows of its machine's speed before its first step, and the file that keeps what it learns."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from any_checkpoint import any_checkpoint
from sluice import LLM, SamplingParams
from sluice.assembly.cost_file import CostFile, Key, LearntEntry, read_costs, write_entry
from sluice.assembly.pacing import kept_costs, profiled
from sluice.assembly.resolve import resolve
from sluice.config import ConfigError, EngineConfig
from sluice.engine.clock import VirtualClock
from sluice.scheduler.cost import CostPrior, LearntCosts, LearntRegime, StepCost, StepLoad
from sluice.scheduler.pacer import LearntPacing, Pacing
from sluice.scheduler.setup import SchedulerSetup
from sluice.testing import ShadowRunner
from sluice.types import CHUNKS_BY_TIME, Regime
from timed import MACHINE, PAGE, TimedRunner, time_of
from worlds import limits_of

SMALL: dict[str, Any] = {"max_total_tokens": 512, "itl_target": "10s"}
EMPTY = '{"format": 2, "entries": [[["a", "b", "c", 1, "d"], [[{}, {"mixed": [1, [], [], [0, 0], [], 1, []]}], 0, 0]]]}'
"""A file with a regime of no numbers."""
PROMPTS = [[7] * 60, [8] * 90, [9] * 30]


def serve(path: Path, **changed: Any) -> list[tuple[int, ...]]:
    """Answer a few prompts, and leave what was learnt behind."""
    with LLM(any_checkpoint(), cost_model=str(path), **SMALL | changed) as llm:
        found = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=6))
        return [tuple(each.token_ids) for each in found]


def entries(path: Path) -> list[Any]:
    found = json.loads(path.read_text())["entries"]
    assert isinstance(found, list)
    return found


def steps_of(entry: Any) -> int:
    """How many steps an entry was learnt from."""
    return sum(regime[0] for regime in entry[1][0][1].values())


def test_a_later_engine_knows_the_machine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was learnt is gone with the engine, and the next one begins with chunks of a few tokens. An engine of other
    kernels must not take it over, nor throw it away."""
    path = tmp_path / "costs.json"
    tokens = serve(path)
    (first,) = entries(path)
    assert serve(path) == tokens
    (second,) = entries(path)
    assert second[0] == first[0]
    assert steps_of(second) > steps_of(first) > 0
    with caplog.at_level(logging.WARNING):
        serve(path, cpu_kernels="torch")
    assert "has costs of" in caplog.text
    assert len(entries(path)) == 2
    assert second in entries(path)


def test_a_target_below_a_known_decode_is_refused(tmp_path: Path) -> None:
    """Every step would be too late, and no chunk could help."""
    path = tmp_path / "costs.json"
    serve(path)
    with pytest.raises(ConfigError, match=r"--itl-target 1us is below the .* ms of a step that decodes one request"):
        serve(path, itl_target="1us")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is no cost model: Input data was truncated; name another file, or remove it to begin anew"),
        ('{"format": 3}', "has format 3, 2 is accepted"),
        (EMPTY, "is no cost model: "),
    ],
)
def test_a_file_that_is_no_cost_model_is_refused(tmp_path: Path, content: str, said: str) -> None:
    """A wrong path would be overwritten when the engine ends."""
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        serve(path)
    assert path.read_text() == content


def learnt() -> dict[str, Any]:
    """A file of one entry as an engine leaves it, by field of its only kind of steps."""
    cost = StepCost()
    for tokens in (8, 16, 32):
        cost.observe(Regime.MIXED, StepLoad(tokens, 1), 1000.0 + tokens)
    return cost.learnt().regimes[Regime.MIXED]._asdict()


def write(path: Path, **changed: Any) -> None:
    """Write such a file, with other values of some fields."""
    regime = LearntRegime(**learnt() | changed)
    pace = LearntPacing(LearntCosts(CostPrior(), {Regime.MIXED: regime}), 16, 16)
    path.write_bytes(msgspec.json.encode(CostFile(2, (LearntEntry(Key("a", "b", "c", 1, "d"), pace),))))


def test_a_file_as_an_engine_leaves_it_is_read(tmp_path: Path) -> None:
    """One that is refused for its numbers costs what was learnt."""
    write(tmp_path / "costs.json")
    assert len(read_costs(tmp_path / "costs.json").entries) == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ratios": []}, "mixed steps: ratios has 0 entries, 1 to 100 are accepted"),
        ({"ratios": [1.0] * 101}, "ratios has 101 entries"),
        ({"ratios": [0.0]}, "ratios has 0.0, from 1e-50 to 1e.50 is accepted"),
        ({"matrix": [[1.0, 2.0], [3.0, 4.0]]}, "matrix has 2 entries of 7"),
        ({"matrix": [[1.0]] * 7}, "a row of matrix has 1 entries of 7"),
        ({"matrix": [[-1.0] * 7] * 7}, "matrix has -1.0, from 0 to 1e.50 is accepted"),
        ({"matrix": [[1e308] * 7] * 7}, "matrix has 1e.308"),
        ({"vector": [1.0]}, "vector has 1 entries of 7"),
        ({"factors": [1.0] * 8}, "factors has 8 entries of 7"),
        ({"factors": [-0.5] + [1.0] * 6}, "factors has -0.5"),
        ({"sums": (0.0, 0.0)}, "sums has 0.0"),
        ({"gain": 0.0}, "gain has 0.0"),
        ({"num_steps": 0}, "num_steps is 0, it must be above 0"),
    ],
)
def test_a_file_of_other_numbers_is_refused_when_it_is_read(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    """It was accepted, and the engine died at the first step or planned by nonsense."""
    path = tmp_path / "costs.json"
    write(path, **changed)
    with pytest.raises(ConfigError, match=f"is no cost model: .*{said}.*; name another file, or remove it"):
        read_costs(path)


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--cost-model .*: it cannot be written"):
        serve(tmp_path / "missing" / "costs.json")


def entry_of(model: str, regime: Regime = Regime.MIXED, micros: float = 1000.0) -> LearntEntry:
    """What an engine learns from steps that all take so long."""
    cost = StepCost()
    for _ in range(20):
        cost.observe(regime, StepLoad(1, 1, 1), micros)
    return LearntEntry(Key("machine", model, "float32", 1, "native"), LearntPacing(cost.learnt(), 8, 8))


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    """The file behind it, which other engines or a mounted volume hold, would never get what was learnt."""
    (tmp_path / "volume").mkdir()
    path, link = tmp_path / "volume" / "costs.json", tmp_path / "costs.json"
    link.symlink_to(path)
    assert write_entry(link, entry_of("a"))
    assert link.is_symlink()
    assert [each.key.model for each in read_costs(path).entries] == ["a"]
    assert [each.name for each in path.parent.iterdir()] == ["costs.json"]


def test_engines_that_share_a_file_keep_each_others_entries(tmp_path: Path) -> None:
    """Each began with the file as it was then: the last one to write would throw away what the others have learnt."""
    path = tmp_path / "costs.json"
    with LLM(any_checkpoint(), cost_model=str(path), **SMALL) as llm:
        llm.generate([[7] * 30], SamplingParams(max_tokens=2))
        write_entry(path, entry_of("of another engine", micros=1.0))
        write_entry(path, entry_of("of another engine", micros=2.0))
    found = read_costs(path).entries
    assert found[0] == entry_of("of another engine", micros=2.0)
    assert len(found) == 2


def test_an_engine_does_not_wait_for_another_one_that_writes(tmp_path: Path) -> None:
    """It writes between two steps, for which streams would wait."""
    path = tmp_path / "costs.json"
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        assert not write_entry(path, entry_of("a"))
        assert not path.exists()
    finally:
        os.close(folder)
    assert write_entry(path, entry_of("a"))


def test_what_another_program_has_written_is_not_overwritten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "costs.json"
    with caplog.at_level(logging.WARNING), LLM(any_checkpoint(), cost_model=str(path), **SMALL) as llm:
        llm.generate([[7] * 30], SamplingParams(max_tokens=2))
        path.write_text("a diary")
    assert path.read_text() == "a diary"
    assert "cannot be written: " in caplog.text


@pytest.mark.parametrize(("graph_rows", "regime"), [((), Regime.DECODE), ((1, 2), Regime.GRAPH)])
def test_a_target_is_compared_with_the_decodes_that_there_will_be(
    tmp_path: Path, graph_rows: tuple[int, ...], regime: Regime
) -> None:
    """Where a step of decodes replays a graph, its time is known under another name; a slower one without a graph, of
    more rows than are captured, is no reason to refuse."""
    path, device = tmp_path / "costs.json", torch.device("cpu")
    config = resolve(EngineConfig.from_options({"cost_model": str(path), "itl_target": "5ms"}), "cpu").config
    key = Key.of(config, device)
    other = Regime.GRAPH if regime is Regime.DECODE else Regime.DECODE
    write_entry(path, entry_of("", other, 9000.0)._replace(key=key))
    assert kept_costs(config, device, graph_rows, follows=False) is not None
    write_entry(path, entry_of("", regime, 9000.0)._replace(key=key))
    with pytest.raises(ConfigError, match=r"--itl-target 5ms is below the 9\.\d ms of a step that decodes one request"):
        kept_costs(config, device, graph_rows, follows=False)


@pytest.mark.parametrize(("pages", "longest"), [(400, 100_000), (400, 3000), (60, 100_000)])
def test_the_first_chunks_are_sized_by_a_profile(pages: int, longest: int) -> None:
    """The position was that of the model's sizes until the engine had served prompts."""
    limits = limits_of(chunk=512, dynamic_chunking=CHUNKS_BY_TIME, dynamic_chunking_smoothing=0.75)
    setup = SchedulerSetup(limits, pages, PAGE, pacing=Pacing(CostPrior(token=90.0, pair=0.1)))
    clock = VirtualClock()
    runner = TimedRunner(ShadowRunner(page_size=PAGE, vocab_size=2), clock, time_of)
    pacing = profiled(setup, runner, clock, longest)
    sizer = SchedulerSetup(limits, pages, PAGE, pacing=pacing).build().state.sizer
    assert sizer is not None
    # With a prompt of 1,900 tokens, there are too few steps that show it.
    expected = 900.0 if pages == 60 else MACHINE[1] / MACHINE[4]
    assert sizer.doubles_at == pytest.approx(expected, rel=0.15)
    assert max(step.plan.num_tokens for step in runner.steps) == 512
    assert all(step.plan.step < 0 for step in runner.steps), "ranks refuse a step that comes twice"
