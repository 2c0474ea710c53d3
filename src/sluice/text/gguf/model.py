"""GGUFModel: the metadata and the tensors of a model, in one file or in the parts of a split one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.text.gguf.cursor import GGUFError
from sluice.text.gguf.file import GGUFFile, TensorInfo
from sluice.text.gguf.metadata import Metadata

PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""Names of parts, as llama-gguf-split gives them. Numbers begin with 1 in names, and with 0 in metadata."""


class GGUFModel:
    """An open model, by the name of its file or of its first part, which has all metadata.

    Raises:
        GGUFError: a file is no GGUF file, or is damaged or cut off; a part is missing, or of another model.
    """

    def __init__(self, path: Path) -> None:
        first = GGUFFile(path)
        self.name = first.name
        self.metadata: Metadata = first.metadata
        count = self.metadata.integer("split.count") or 1
        self.paths: Sequence[Path] = _paths(path, first, count)
        files = [first, *(_part(each, index, count) for index, each in enumerate(self.paths[1:], start=1))]
        self.tensors: Mapping[str, TensorInfo] = first.tensors if count == 1 else _joined(files)


def part_name(name: str, number: int = 1) -> str | None:
    """Return the name of another part beside the part `name`, counted from 1; None: `name` is none of a part's."""
    match = PART.fullmatch(name)
    return None if match is None else f"{match['stem']}-{number:05}-of-{match['count']}.gguf"


def _paths(path: Path, first: GGUFFile, count: int) -> list[Path]:
    """Return the files of a model; all of them exist."""
    if count == 1:
        return [path]
    if number := first.metadata.integer("split.no"):
        wanted = part_name(path.name) or "the one whose split.no is 0"
        raise GGUFError(f"{path.name} is part {number + 1} of {count}: name the first part, {wanted}")
    match = PART.fullmatch(path.name)
    if match is None or int(match["number"]) != 1 or int(match["count"]) != count:
        raise GGUFError(
            f"{path.name} is the first of {count} parts (split.count): it must have a name that ends with"
            f" -00001-of-{count:05}.gguf, so that the others are found beside it"
        )
    paths = [
        path,
        *(path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(2, count + 1)),
    ]
    for part in paths:
        if not part.is_file():
            raise GGUFError(f"{part.name} is missing beside {path.name}")
    return paths


def _part(path: Path, index: int, count: int) -> GGUFFile:
    file = GGUFFile(path)
    for key, wanted in (("split.no", index), ("split.count", count)):
        if file.metadata.integer(key) != wanted:
            raise file.metadata.error(key, f"{wanted}, as the file's name says")
    return file


def _joined(files: Sequence[GGUFFile]) -> Mapping[str, TensorInfo]:
    """Return the tensors of all parts."""
    found: dict[str, TensorInfo] = {}
    for file in files:
        for name, info in file.tensors.items():
            if name in found:
                raise GGUFError(f"{file.name}: tensor {name!r} is also there in {found[name].file}")
            found[name] = info
    total = files[0].metadata.integer("split.tensors.count")
    if total not in (None, len(found)):
        raise files[0].metadata.error("split.tensors.count", f"{len(found)}, the tensors of all {len(files)} parts")
    return found
