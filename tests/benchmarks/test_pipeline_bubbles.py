"""What docs/parallel.md says of pipelines, in virtual time."""

from __future__ import annotations

from benchmarks.bubbles_plot import bubbles_plot
from benchmarks.pipeline_bubbles import MACHINES, WAYS, Serving, figures_of

STAGES = 4


def test_chunks_of_equal_time_halve_the_bubbles() -> None:
    costs = MACHINES["8B on a GPU"]
    found = {}
    for way in WAYS:
        serving = Serving(costs, way, STAGES, 64)
        found[way.name] = figures_of(serving.beside_prompts()), figures_of(serving.alone)
    (together, _), (fixed, _), (equal, _), _ = found.values()
    assert equal["bubbles"] < fixed["bubbles"] / 2
    assert equal["seconds"] < fixed["seconds"]
    assert equal["most_decodes"] - equal["fewest_decodes"] <= 1
    assert together["most_decodes"] == 64
    together_alone, in_turn_alone = (found[name][1] for name in list(found)[:2])
    assert together_alone["bubbles"] > 0.7
    assert in_turn_alone["bubbles"] < 0.01
    assert in_turn_alone["tokens_per_second"] > together_alone["tokens_per_second"]


def test_the_plot_shows_every_share() -> None:
    plot = bubbles_plot({"2": {"fixed": 0.04, "equal time": 0.01}, "4": {"fixed": 0.12, "equal time": 0.04}}, "Waits")
    for shown in (">Waits<", ">2 stages<", ">4 stages<", ">fixed<", ">12.0<", ">1.0<"):
        assert shown in plot
