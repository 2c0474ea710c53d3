"""A step that raises ends the engine's process: what its device holds may be broken, and by whom is not known.

The server starts another one, goes on with every request there, and finds out whether one of them is to blame.
"""

from __future__ import annotations

from sluice.engine.protocols import Pending, Runner
from sluice.types import BatchPlan, BatchResult


class StepFailed(BaseException):
    """A step raised. No `Exception`, so that the loop does not make it a failure of the step's requests."""


class ExitOnErrorRunner:
    """A runner in front of another one whose errors it does not survive."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner

    def launch(self, plan: BatchPlan) -> ExitOnErrorStep:
        """
        Raises:
            StepFailed: from whatever the inner one raised.
        """
        try:
            return ExitOnErrorStep(self._inner.launch(plan))
        except Exception as error:
            raise StepFailed from error


class ExitOnErrorStep:
    """A launched step."""

    def __init__(self, inner: Pending) -> None:
        self._inner = inner

    def wait(self) -> BatchResult:
        """
        Raises:
            StepFailed: from whatever the inner one raised.
        """
        try:
            return self._inner.wait()
        except Exception as error:
            raise StepFailed from error
