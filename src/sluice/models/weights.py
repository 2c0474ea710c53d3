"""The weight files of a checkpoint folder: which there are, and the tensors in them. Safetensors only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from sluice.models.errors import CheckpointError
from sluice.models.fields import Fields

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint, as stored."""

    name: str
    file: str
    value: torch.Tensor


def weight_files(folder: Path) -> list[Path]:
    """The weight files, in order; all of them exist.

    Raises:
        CheckpointError: there are none, only pickled ones, or a shard named by the index is missing.
    """
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if not (folder / INDEX).exists():
        if any(next(folder.glob(pattern), None) for pattern in PICKLED):
            raise CheckpointError(
                f"{folder} holds only pickled weights, which are not read because they can run code:"
                f" convert them to {SINGLE}"
            )
        raise CheckpointError(f"{folder} holds no weights: expected {SINGLE} or {INDEX}")
    names = sorted(set(_index(folder).values()))
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(names)} weight files named by {INDEX} are missing: {', '.join(missing)}"
        )
    return [folder / name for name in names]


def stored_tensors(folder: Path) -> Iterator[StoredTensor]:
    """Every tensor of the checkpoint, file by file, on the CPU and not yet read from disk.

    Raises:
        CheckpointError: see `weight_files`; or a file is broken, or lacks a tensor that the index puts there.
    """
    index = _index(folder) if (folder / INDEX).exists() else {}
    for path in weight_files(folder):
        with _opened(path) as file:
            names = list(file.keys())
            absent = {name for name, shard in index.items() if shard == path.name} - set(names)
            if absent:
                raise CheckpointError(f"{path.name} lacks {min(absent)}, which {INDEX} says is there")
            for name in names:
                yield StoredTensor(name, path.name, file.get_tensor(name))


def first_floating_dtype(folder: Path) -> str:
    """The dtype of the first floating-point tensor, as PyTorch spells it.

    Raises:
        CheckpointError: see `stored_tensors`; or there is none.
    """
    for tensor in stored_tensors(folder):
        if tensor.value.is_floating_point():
            return str(tensor.value.dtype).removeprefix("torch.")
    raise CheckpointError(f"the weights in {folder} hold no floating-point tensor")


@contextmanager
def _opened(path: Path) -> Iterator[safe_open]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path.name} is not a readable safetensors file: {error}") from None


def _index(folder: Path) -> dict[str, str]:
    """Tensor name to file name."""
    section = Fields.read(folder / INDEX).section("weight_map")
    if section is None:
        raise CheckpointError(f"{INDEX}: weight_map is missing or empty")
    names = {name: section.text(name) for name in section}
    for file in names.values():
        if Path(file).name != file:
            raise CheckpointError(f"{INDEX}: weight files must lie beside it, got {file!r}")
    return names
