"""What an engine knows of its machine's speed before its first step, and the file that keeps what it learns."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluice import LLM, SamplingParams
from sluice.assembly.pacing import CostFile, Entry, Key, read_costs
from sluice.config import ConfigError
from sluice.scheduler.cost import CostPrior, LearntCosts, LearntRegime, Load, StepCost
from sluice.scheduler.pacer import LearntPace
from sluice.types import Regime

SMALL: dict[str, Any] = {"max_total_tokens": 512, "itl_target": "10s"}
EMPTY = '{"format": 1, "entries": [[["a", "b", "c", 1, "d"], [[{}, {"mixed": [1, [], [], [0, 0], [], 1, []]}], 0, 0]]]}'
"""A file with a regime of no numbers."""
PROMPTS = [[7] * 60, [8] * 90, [9] * 30]


def serve(path: Path, **changed: Any) -> list[tuple[int, ...]]:
    """Answer a few prompts, and leave what was learnt behind."""
    with LLM(cost_model=str(path), **SMALL | changed) as llm:
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
        ('{"format": 2}', "has format 2, 1 is accepted"),
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
        cost.observe(Regime.MIXED, Load(tokens, 1), 1000.0 + tokens)
    return cost.learnt().regimes[Regime.MIXED]._asdict()


def write(path: Path, **changed: Any) -> None:
    """Write such a file, with other values of some fields."""
    regime = LearntRegime(**learnt() | changed)
    pace = LearntPace(LearntCosts(CostPrior(), {Regime.MIXED: regime}), 16, 16)
    path.write_bytes(msgspec.json.encode(CostFile(1, (Entry(Key("a", "b", "c", 1, "d"), pace),))))


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
        ({"matrix": [[1.0, 2.0], [3.0, 4.0]]}, "matrix has 2 entries of 6"),
        ({"matrix": [[1.0]] * 6}, "a row of matrix has 1 entries of 6"),
        ({"matrix": [[-1.0] * 6] * 6}, "matrix has -1.0, from 0 to 1e.50 is accepted"),
        ({"matrix": [[1e308] * 6] * 6}, "matrix has 1e.308"),
        ({"vector": [1.0]}, "vector has 1 entries of 6"),
        ({"factors": [1.0] * 7}, "factors has 7 entries of 6"),
        ({"factors": [-0.5] + [1.0] * 5}, "factors has -0.5"),
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
