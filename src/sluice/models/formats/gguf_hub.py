"""Chooses a GGUF file of a repository on the hub, which often holds twenty of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from sluice.models.checkpoint import CheckpointError
from sluice.models.formats.gguf_folder import SUFFIX
from sluice.text.gguf.model import part_name

PREFERRED = ("Q4_K_M", "Q8_0")
"""What is taken if none is named; llama.cpp prefers the first, too."""
NO_MODEL = re.compile(r"mmproj|imatrix|(?:^|[-_.])(?:mtp|eagle3|dflash|dspark)-", re.IGNORECASE)
"""Found in names of files beside a model: its vision part, statistics, and what only guesses tokens for it."""


def models_among(names: Sequence[str]) -> list[str]:
    """Return the names that are GGUF files of models, or the first parts of such, in order."""
    return sorted(name for name in names if name.endswith(SUFFIX) and _is_model(PurePosixPath(name).name))


def _is_model(name: str) -> bool:
    return NO_MODEL.search(name) is None and part_name(name) in (None, name)


def parts_among(names: Sequence[str], file: str) -> list[str]:
    """Return the files of a model: `file`, and its other parts if it is split."""
    path = PurePosixPath(file)
    first = part_name(path.name)
    if first is None:
        return [file]
    return sorted(
        name
        for name in names
        if PurePosixPath(name).parent == path.parent and part_name(PurePosixPath(name).name) == first
    )


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
    first = part_name(choice)
    if first not in (None, choice):
        raise CheckpointError(f"{choice} is one of several parts: name the first one, {repository}:{first}")
    found = [file for file in files if choice in (file, PurePosixPath(file).name)] or _of_kind(files, choice)
    if len(found) == 1:
        return found[0]
    problem = f"has {len(found)} GGUF files for {choice!r}" if found else f"has no GGUF file for {choice!r}"
    some = ", ".join(found or files) or "none that is a model"
    raise CheckpointError(f"{repository} {problem}; its files: {some}")


def _of_kind(files: Sequence[str], kind: str) -> list[str]:
    ending = re.compile(rf"(?:^|[-._/]){re.escape(kind)}(?:-\d{{5}}-of-\d{{5}})?{re.escape(SUFFIX)}$", re.IGNORECASE)
    return [file for file in files if ending.search(file)]
