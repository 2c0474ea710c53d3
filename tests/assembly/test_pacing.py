"""What an engine knows of its machine's speed before its first step, and the file that keeps what it learns."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from sluice import LLM, SamplingParams
from sluice.config import ConfigError

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


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--cost-model .*: it cannot be written"):
        serve(tmp_path / "missing" / "costs.json")
