"""Opens GGUF files for what reads checkpoints: with the errors of these, and with typed access to the metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from sluice.models.checkpoint import CheckpointError, Fields
from sluice.text.gguf.cursor import GGUFError
from sluice.text.gguf.metadata import Metadata
from sluice.text.gguf.model import GGUFModel


def open_gguf(path: Path) -> GGUFModel:
    """Open a model in a file, or in the parts of a split one, of which `path` is the first.

    Raises:
        CheckpointError: it is not a readable GGUF file, or a part is missing.
    """
    try:
        return GGUFModel(path)
    except GGUFError as error:
        raise CheckpointError(str(error)) from error


def fields_of(file: GGUFModel) -> Fields:
    """Return the metadata of a file."""
    return Fields(_Values(file.metadata), file.name)


class _Values(Mapping[str, object]):
    """The values of a file.

    Raises:
        CheckpointError: (on access) a value is damaged.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def __getitem__(self, key: str) -> object:
        try:
            return self._metadata[key]
        except GGUFError as error:
            raise CheckpointError(str(error)) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._metadata)

    def __len__(self) -> int:
        return len(self._metadata)
