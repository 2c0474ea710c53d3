"""Chooses a GGUF file of a repository on the hub, which often holds twenty of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sluice.models.checkpoint import CheckpointError
from sluice.models.formats.gguf_folder import SUFFIX

PREFERRED = ("Q4_K_M", "Q8_0")
"""What is taken if none is named; llama.cpp prefers the first, too."""
NO_MODEL = re.compile(r"mmproj|imatrix|-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
"""Files beside a model, and pieces of one that must be joined first."""


def models_among(names: Sequence[str]) -> list[str]:
    """Return the names that are GGUF files of whole models, in order."""
    return sorted(name for name in names if name.endswith(SUFFIX) and "/" not in name and not NO_MODEL.search(name))


def chosen_file(repository: str, names: Sequence[str], choice: str) -> str:
    """Return the file that is to be loaded.

    Args:
        names: the repository's files.
        choice: the name of a file, or what the names of files end with, such as "Q4_0"; empty: any.

    Raises:
        CheckpointError: there is no such file, or several.
    """
    files = models_among(names)
    if not choice:
        found = [file for kind in PREFERRED for file in _of_kind(files, kind)] or files
        return found[0]
    found = [file for file in files if file == choice] or _of_kind(files, choice)
    if len(found) == 1:
        return found[0]
    problem = f"has {len(found)} GGUF files for {choice!r}" if found else f"has no GGUF file for {choice!r}"
    some = ", ".join(found or files) or "none that holds a whole model"
    raise CheckpointError(f"{repository} {problem}; its files: {some}")


def _of_kind(files: Sequence[str], kind: str) -> list[str]:
    ending = re.compile(rf"(?:^|[-._]){re.escape(kind)}{re.escape(SUFFIX)}$", re.IGNORECASE)
    return [file for file in files if ending.search(file)]
