"""The machine and the engine that are simulated, as a file keeps them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sluice.config import ConfigError
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.calibrate import Fit, calibrate
from sluice.sim.world import BLOCK, WITH_PROMPTS, World
from sluice.tracing.file import TraceReader
from sluice.tracing.format import Header
from sluice.types import Regime

FORMAT = "sluice-machine-1"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with an engine on it."""

    format: str = FORMAT
    model: str
    name: str
    """What it is, in words."""
    is_measured: bool
    """False: its costs follow from what its maker promises."""
    setup: SchedulerSetup
    """Setup of the engine that was measured, or of one with all options left open."""
    depth: int
    device: str = "cpu"
    """Type of the device: cpu or cuda."""
    world: World
    steps: dict[Regime, int] = {}
    """Measured steps of each kind."""
    error: float = 0.0
    """Median of the relative errors of measured steps by the costs alone."""
    token_bytes: int = 0
    """Bytes of a token's KV; 0 if they are not known."""
    max_model_len: int = 0
    """Context of the model, in tokens; 0: not known."""

    @property
    def kind(self) -> str:
        """What figures of it are called."""
        return "simulated" if self.is_measured else "predicted, not measured"

    def lines(self) -> list[str]:
        """Return what a user must know of it."""
        if not self.is_measured:
            return [f"{self.model} on {self.name}: {self.kind}"]
        steps = ", ".join(f"{count} {regime}" for regime, count in self.steps.items() if count)
        found = [
            f"{self.model} on {self.name}: costs of {sum(self.steps.values())} measured steps ({steps}), off by"
            f" {100 * self.error:.0f}% in the median; residuals are drawn from these steps"
        ]
        unseen = [regime for regime in (Regime.DECODE, Regime.MIXED, Regime.PREFILL) if not self.steps.get(regime)]
        if unseen and not (unseen == [Regime.DECODE] and self.steps.get(Regime.GRAPH)):
            found.append(f"note: no step of kind {', '.join(unseen)} was measured; the costs of others stand for them")
        found += [
            f"note: only {count} steps of kind {regime} were measured" + self._helped(regime)
            for regime, count in self.steps.items()
            if 0 < count < BLOCK
        ]
        return found

    def _helped(self, regime: Regime) -> str:
        """Return which steps help to describe a kind with few of them."""
        other = next((each for each in WITH_PROMPTS if each is not regime and self.steps.get(each)), None)
        return f"; those of kind {other} help to fit it" if regime in WITH_PROMPTS and other else ""


def read_machine(path: Path) -> Machine:
    """Return what a file holds: a saved machine, or a trace, to which one is fitted.

    Raises:
        ConfigError: the file cannot be read, or is neither.
        TraceError: it is a broken trace, or one with too few steps.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4096)
            if b'"kind":"header"' not in start.partition(b"\n")[0].replace(b" ", b""):
                return _decoded(path, start + file.read())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    with TraceReader(path) as trace:
        return of_fit(trace.header, calibrate(trace))


def _decoded(path: Path, content: bytes) -> Machine:
    try:
        found = msgspec.json.decode(content, type=Machine)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is neither a trace nor a machine that --save-machine wrote: {error}") from error
    if found.format != FORMAT:
        raise ConfigError(f"{path} has the format {found.format!r}; this version reads {FORMAT!r}")
    return found


def of_fit(header: Header, fit: Fit) -> Machine:
    """Return the machine of a trace."""
    return Machine(
        model=header.model,
        name="the machine of the trace" if header.machine is None else str(header.machine),
        is_measured=True,
        setup=header.setup,
        depth=header.depth,
        device="cpu" if header.machine is None or header.machine.threads is not None else "cuda",
        world=fit.world,
        steps=dict(fit.steps),
        error=fit.error,
        max_model_len=header.max_model_len,
    )


def write_machine(machine: Machine, path: Path) -> None:
    """
    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.write_bytes(msgspec.json.encode(machine) + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
