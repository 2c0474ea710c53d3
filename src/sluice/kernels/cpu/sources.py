"""The digest of the kernels' sources, which the build puts into the library.

`setup.py` runs this file by itself: it imports the standard library only.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

SUFFIXES = (".cpp", ".h")


def digest_of(folder: Path) -> str:
    """Return the digest of the sources in a folder, empty if there are none."""
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    found = sha256()
    for file in files:
        data = file.read_bytes()
        found.update(f"{file.name} {len(data)}\n".encode() + data)
    return found.hexdigest()[:32] if files else ""
