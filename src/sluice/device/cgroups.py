"""The control groups this process is in: what a container may use of its machine. Linux has two versions of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path("/")


class Group(NamedTuple):
    """A control group that may limit something."""

    folder: Path
    """Not there if the group is not visible from inside this container."""
    version: int
    """1 or 2, of the interface: files have other names."""


def groups(controller: str, root: Path = ROOT) -> Iterator[Group]:
    """The groups this process is in, with all above them: a limit holds for everything below.

    Args:
        controller: what is limited, "memory" or "cpu".
        root: where /proc and /sys are found.
    """
    membership = root / "proc/self/cgroup"
    if not membership.exists():
        return
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        inner = PurePosixPath(path.lstrip("/"))
        for level in (inner, *inner.parents):
            if not controllers:
                yield Group(root / "sys/fs/cgroup" / level, 2)
            elif controller in controllers.split(","):
                yield Group(root / "sys/fs/cgroup" / controller / level, 1)
