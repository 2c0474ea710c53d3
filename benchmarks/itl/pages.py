"""The plots of `itl_target.py` as one HTML page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from benchmarks.figures_page import Plot, page
from sluice.bench.html import document
from sluice.bench.plots import scatter

P95, MAX, TTFT = "ITL p95", "ITL max", "TTFT of long prompts"


def html_page(record: Mapping[str, Any]) -> str:
    """Return the page: predicted against measured times, and the figures of each mix by configuration."""
    parts = [_predictions(record, noisy=noisy) for noisy in (False, True)]
    parts += [_curve(record, mix) for mix in dict.fromkeys(run["mix"] for run in record["runs"])]
    shown = {name: value for name, value in record.items() if name != "runs"}
    parts.append(f"<details><summary>numbers</summary><pre>{escape(json.dumps(shown, indent=2))}</pre></details>")
    introduction = (
        f"{record['model']}; {record['machine']['processor']}. Decode step {1000 * record['decode_step']:.1f} ms."
    )
    return document("ITL target", introduction, parts)


def _predictions(record: Mapping[str, Any], *, noisy: bool) -> str:
    points: dict[str, list[tuple[float, float]]] = {}
    for run in record["runs"]:
        if run["noisy"] is noisy:
            for regime, predicted, micros in run["steps"]:
                points.setdefault(regime, []).append((predicted / 1000, micros / 1000))
    return scatter(
        name="predicted-noisy" if noisy else "predicted",
        title="Predicted and measured steps" + (", beside a busy neighbour" if noisy else ""),
        description="Each dot is a step of a run with a target, from a cold start.",
        series=points,
        windows=(),
        x_label="predicted, ms",
        y_label="measured, ms",
    )


def _curve(record: Mapping[str, Any], mix: str) -> str:
    """Plot how ITL and TTFT depend on the target, without a neighbour."""
    by_case = {
        run["case"]: {P95: 1000 * run["itl"]["p95"], MAX: 1000 * run["itl_max"], TTFT: 1000 * run["ttft_mean"]}
        for run in record["runs"]
        if run["mix"] == mix and not run["noisy"]
    }
    targets = {name.removeprefix("target ").removesuffix("x"): own for name, own in by_case.items() if "target" in name}
    whole = page(
        f"Mix {mix}",
        "",
        targets,
        [Plot(f"curve-{mix}", f"Mix {mix}: by target", "ms", (P95, MAX, TTFT), "target, decode steps")],
        {},
        of="target",
    )
    return whole[whole.index("<figure") : whole.index("</figure>") + len("</figure>")]
