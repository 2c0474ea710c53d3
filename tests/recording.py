"""A runner that keeps the plans it passes on."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.engine.protocols import Pending, Runner
from sluice.types import BatchPlan


@dataclass
class RecordingRunner:
    """In front of any runner."""

    inner: Runner
    plans: list[BatchPlan] = field(default_factory=list)

    def launch(self, plan: BatchPlan) -> Pending:
        self.plans.append(plan)
        return self.inner.launch(plan)

    def close(self) -> None:
        self.inner.close()
