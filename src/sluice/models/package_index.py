"""Downloads a wheel from the package index, by pip: so its index, proxies and certificates are what pip is set to."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PIP = """\
import os, runpy, sys, tempfile, threading
def end_with_parent():
    os.read(0, 1)
    os._exit(1)
threading.Thread(target=end_with_parent, daemon=True).start()
tempfile.tempdir = sys.argv.pop(1)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""Runs pip, which ends with its standard input, whose other end this process holds, however this process ends."""
OPTIONS = ("--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "-q")
SECONDS = 0.25
"""Between two looks at how much there is."""

Report = Callable[[int, int], None]
"""Receives how many bytes are there, and how many there will be."""


class DownloadError(Exception):
    """A wheel cannot be had. The message is a clause that says why."""


class PinnedWheel(NamedTuple):
    """A wheel that is known byte for byte."""

    package: str
    version: str
    size: int
    """Bytes of the file."""
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


def download_wheel(wheel: PinnedWheel, folder: Path, report: Report, options: Sequence[str] = ()) -> Path:
    """Download a wheel and check its hash.

    Args:
        folder: an empty folder on the disk where the wheel is to be; everything is written there.
        report: called several times a second.
        options: more of pip's, such as ones that name an index.

    Raises:
        DownloadError: there is no pip; the index cannot be reached or does not have the wheel; another hash.
        OSError: the folder cannot be written.
    """
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise DownloadError("this Python environment has no pip to download it with")
    temporary, found = folder / "temporary", folder / "wheel"
    temporary.mkdir()
    command = [sys.executable, "-c", PIP, str(temporary), "download", *OPTIONS, *options]
    command += ["--dest", str(found), wheel.requirement]
    held, holds = os.pipe()
    pipe = subprocess.PIPE  # of the errors: a full disk would not take them
    with open(holds, "wb"), subprocess.Popen(command, stdin=held, stdout=subprocess.DEVNULL, stderr=pipe) as process:
        os.close(held)
        try:
            while (errors := _errors(process)) is None:
                report(min(_largest(folder), wheel.size), wheel.size)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise DownloadError(_problem(errors.decode(errors="replace")))
    files = list(found.glob("*.whl"))
    if len(files) != 1:
        raise DownloadError(f"pip downloaded {len(files)} wheels")
    with files[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise DownloadError(
            f"the package index delivered other bytes, which are not used (SHA-256 {digest}, expected {wheel.sha256})"
        )
    return files[0]


def _errors(process: subprocess.Popen[bytes]) -> bytes | None:
    """Wait a moment, or until a process has ended. Return what it wrote to its standard error; None while it runs."""
    try:
        _, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return errors


def _largest(folder: Path) -> int:
    """Return the size of the largest file: pip writes the wheel to a temporary file, and copies it when it is whole.

    Files and folders that pip removes meanwhile are passed over, as `os.walk` does.
    """
    sizes = [0]
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                sizes.append((Path(place) / name).stat().st_size)
    return max(sizes)


def _problem(errors: str) -> str:
    """Return why pip failed, as it wrote: its first error, or its last line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    if any("Retrying" in line for line in lines):
        return "pip could not reach the package index"
    told = [line for line in lines if line.startswith("ERROR: ") and line != "ERROR: Exception:"]
    return f"pip says: {(told or lines[-1:] or ['nothing'])[0].removeprefix('ERROR: ')}"
