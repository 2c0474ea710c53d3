"""Makes the virtual environments of peers under `build/peers/`, once, from pinned versions."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.bench.results import installed_versions

ROOT = Path(__file__).parents[2]
HOME = ROOT / "build" / "peers"
PINS = Path(__file__).parent / "pins"


class SetupError(RuntimeError):
    """A peer that cannot be installed."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with exactly what `pins/<name>.txt` lists.

    Packages are installed without their dependencies, which are among the pins: some peers require packages for
    pictures and sound whose builds do not fit a torch for the CPU.
    """

    name: str

    @property
    def folder(self) -> Path:
        return HOME / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def pins(self) -> Path:
        return PINS / f"{self.name}.txt"

    @property
    def is_ready(self) -> bool:
        return self._stamp.is_file() and self._stamp.read_text() == self.pins.read_text()

    @property
    def _stamp(self) -> Path:
        return self.folder / ".pins"

    def set_up(self) -> None:
        """Make the environment, unless it exists with the same pins.

        Raises:
            SetupError: pip failed; its own message was printed before.
        """
        if self.is_ready:
            return
        run([sys.executable, "-m", "venv", "--clear", str(self.folder)])
        pip = [str(self.python), "-m", "pip", "install", "--no-deps", "--no-compile", "-r", str(self.pins)]
        run(pip)
        self._stamp.write_text(self.pins.read_text())

    def versions(self, packages: Sequence[str]) -> dict[str, str]:
        """Return the versions of these packages, where they are installed."""
        return installed_versions(packages, [sysconfig.get_path("purelib", "venv", {"base": str(self.folder)})])


def run(command: Sequence[str]) -> None:
    """Run a command.

    Raises:
        SetupError: the command cannot be run or fails.
    """
    print("+", " ".join(command), file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, check=False, stdout=sys.stderr)
    except OSError as error:
        raise SetupError(f"cannot run {command[0]}: {error.strerror or error}") from error
    if done.returncode != 0:
        raise SetupError(f"{command[0]} ended with {done.returncode}")
