"""Configurations in turns, and their medians."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench_makers import record, result
from benchmarks.alternating import Configuration, alternate, medians
from benchmarks.interference import ITL_MAX, MEASURES, TTFT, configurations, contenders
from benchmarks.peers.peer import Settings
from sluice.bench import BenchError
from sluice.bench.measure import REPEAT_SEED
from sluice.bench.results import read_result, write_result
from sluice.config import ConfigError

HERE = Settings(Path("nowhere"))


class Clockwork:
    """An engine whose stalls are known: each measurement is 10 ms slower than the one before."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.measured: list[tuple[int | None, int]] = []
        self.fails_at = fails_at

    def __call__(self, peer: str, settings: Settings, given: dict[str, Any], out: Path) -> int:
        if len(self.measured) == self.fails_at:
            return 1
        self.measured.append((settings.budget, given["seed"]))
        slow = 0.01 * len(self.measured)
        short = record(1.0, 1.1, 1.1 + slow, due=0.0)
        long = record(1.05 + slow, due=1.0, kind="long")
        write_result(result([short, long]), out)
        return 0


def two() -> Sequence[Configuration]:
    return [Configuration(label, "sluice", Settings(Path("nowhere"), budget=int(label))) for label in ("64", "128")]


def test_configurations_take_turns_and_a_round_shares_a_seed(tmp_path: Path) -> None:
    """A A B B would give what slows the machine later to B alone."""
    engine = Clockwork()
    found = alternate(two(), {"seed": 7}, 3, tmp_path / "sweep", measurer=engine)
    seeds = [7 + REPEAT_SEED * repeat for repeat in range(3)]
    assert engine.measured == [(budget, seed) for seed in seeds for budget in (64, 128)]
    assert {path.name for path in tmp_path.iterdir()} == {"sweep-64.json", "sweep-128.json"}
    for label in ("64", "128"):
        kept = read_result(tmp_path / f"sweep-{label}.json")
        assert len(kept.runs) == len(found[label].runs) == kept.settings["run"]["repeats"] == 3
    # The first and every second measurement after it: 10, 30 and 50 ms.
    assert medians(found["64"], MEASURES)[ITL_MAX] == pytest.approx(0.1)
    assert medians(found["64"], MEASURES)[TTFT] == pytest.approx(0.05 + 0.03)
    assert medians(found["128"], MEASURES)[TTFT] == pytest.approx(0.05 + 0.04)


def test_a_failure_keeps_what_was_measured_before(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="the measurement of 128 failed"):
        alternate(two(), {}, 3, tmp_path / "sweep", measurer=Clockwork(fails_at=3))
    assert len(read_result(tmp_path / "sweep-64.json").runs) == 2
    assert len(read_result(tmp_path / "sweep-128.json").runs) == 1


def test_no_rounds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--repeats must be at least 1, got 0"):
        alternate(two(), {}, 0, tmp_path / "sweep", measurer=Clockwork())


def test_off_cuts_nothing() -> None:
    """Sluice has a flag for it; another engine gets a budget into which the long prompts of the preset fit whole."""
    ours = configurations("sluice", HERE, ["64", "off"])
    assert [item.settings.budget for item in ours] == [64, None]
    assert ours[1].settings.more == ("--chunked-prefill-size", "-1")
    (other,) = configurations("vllm", HERE, ["off"])
    assert other.settings.budget is not None
    assert other.settings.budget > 4000 + 4


def test_engines_are_measured_side_by_side() -> None:
    """Each with its own weights and size; what an engine does by default is a size of its own."""
    text = "sluice:int8:default,sluice:int8:8x,llama.cpp:q8_0:64"
    found = contenders(text, HERE)
    assert [item.label for item in found] == ["sluice-int8-default", "sluice-int8-8x", "llama.cpp-q8_0-64"]
    assert [(item.peer, item.settings.weights) for item in found[1:]] == [("sluice", "int8"), ("llama.cpp", "q8_0")]
    assert [item.settings.budget for item in found] == [None, None, 64]
    assert [item.settings.more for item in found] == [(), ("--itl-target", "8x"), ()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sluice:int8", "must be PEER:WEIGHTS:SIZE"),
        ("ollama:int8:64", "must be PEER:WEIGHTS:SIZE"),
        ("vllm:int8:64", "vllm has weights in bf16, got 'int8'"),
        ("vllm:bf16:8x", "got '8x'"),
    ],
)
def test_an_engine_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        contenders(text, HERE)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [(["64", "x"], "got 'x'"), (["0"], "got '0'"), (["64", "64"], "each size once, got 64,64"), ([""], "got ''")],
)
def test_a_size_that_is_none_is_refused(sizes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"--sizes must .*{message}"):
        configurations("sluice", HERE, sizes)
