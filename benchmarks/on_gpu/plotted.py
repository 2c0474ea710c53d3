"""Makes a page with plots of the part `interference`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.figures_page import Plot, in_milliseconds, page
from benchmarks.on_gpu.interference import OFF

CALM, P50, P99, WORST, TTFT = "undisturbed p50", "ITL p50", "ITL p99", "ITL max", "TTFT of the prompt"
X_LABEL = "tokens of a chunk"
PLOTS = (
    Plot(
        "itl",
        "Gaps between tokens of decoding streams while a long prompt arrives",
        "ms",
        (CALM, P50, P99, WORST),
        X_LABEL,
    ),
    Plot("ttft", "Time to first token of the long prompt", "ms", (TTFT,), X_LABEL),
)


def plotted(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page of a run's results.

    Raises:
        ValueError: the results lack the part `interference`.
    """
    rows = parts.get("interference", {}).get("rows")
    if not rows:
        raise ValueError("there is no result of the part interference to plot")
    figures = {
        "off" if row["chunk"] == OFF else str(row["chunk"]): {
            CALM: row["undisturbed"]["p50"],
            P50: row["disturbed"]["p50"],
            P99: row["disturbed"]["p99"],
            WORST: row["disturbed"]["max"],
            TTFT: row["ttft_seconds"],
        }
        for row in rows
    }
    first = rows[0]
    introduction = (
        f"{first['streams']} streams decode, a prompt of {first['prompt']} tokens arrives; once for each size of chunk."
    )
    return page(
        "A long prompt beside decoding streams",
        introduction,
        in_milliseconds(figures),
        PLOTS,
        parts.get("rates", {}),
        of=X_LABEL,
        caption="Milliseconds",
    )
