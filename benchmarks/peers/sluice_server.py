"""Runs Sluice itself as its peers are run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.peers.environment import ROOT
from benchmarks.peers.peer import Command, Settings
from sluice.bench.results import installed_versions


class Sluice:
    """Sluice of this repository, in this interpreter."""

    name = "sluice"
    packages: Sequence[str] = ("sluice", "torch")
    weights: Sequence[str] = ("bf16", "int8", "int4")

    def set_up(self) -> None:
        """Do nothing: Sluice is installed."""

    def versions(self) -> dict[str, str]:
        return installed_versions(self.packages)

    def prepare(self, settings: Settings) -> None:
        """Do nothing: Sluice reads Hugging Face folders."""

    def serve(self, settings: Settings, port: int) -> Command:
        arguments = [
            *(sys.executable, "-m", "sluice", "serve", str(settings.checkpoint), "--port", str(port)),
            *("--max-running-requests", str(settings.max_running)),
            *("--max-total-tokens", str(settings.kv_tokens)),
            *("--threads", str(settings.threads)),
        ]
        if settings.budget is not None:
            arguments += ["--chunked-prefill-size", str(settings.budget)]
        if settings.weights != "bf16":
            arguments += ["--quantization", settings.weights]
        environment = {"PYTHONPATH": str(ROOT / "src")}
        return Command([*arguments, *settings.more], environment)
