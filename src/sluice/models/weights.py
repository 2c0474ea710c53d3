"""Reads and fingerprints the weight files of a checkpoint folder. Safetensors only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from sluice.models.checkpoint import CheckpointError, Fields
from sluice.models.quantized import QuantizedWeight

SINGLE = "model.safetensors"
GGUF = "model.gguf"
GGUF_PARTS = "model-*.gguf"
"""Files in a folder that was made of a GGUF file (`formats/gguf_folder.py`): the file, and the parts of a split one."""
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint, as stored."""

    name: str
    file: str
    value: torch.Tensor | QuantizedWeight
    """Quantised if the checkpoint stores it so and the model is to hold it so."""
    nbytes: int
    """Bytes that it takes in its file; the value takes more if it was dequantised."""


class WeightFile:
    """An open file of weights."""

    def __init__(self, path: Path, file: safe_open) -> None:
        self.name = path.name
        self.names = tuple(file.keys())
        self._file = file

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, which is not read."""
        return tuple(self._file.get_slice(name).get_shape())

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor, on the CPU and memory-mapped."""
        value: torch.Tensor = self._file.get_tensor(name)
        return value


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files in order; all of them exist.

    Raises:
        CheckpointError: there are none, only pickled ones, or a shard named by the index is missing.
    """
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if (folder / GGUF).exists():
        return [folder / GGUF, *sorted(folder.glob(GGUF_PARTS))]
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
    """Iterate over the tensors of the checkpoint, file by file, on the CPU and memory-mapped.

    Raises:
        CheckpointError: as `weight_files`; or a file is broken, or lacks a tensor that the index assigns to it.
    """
    with opened_weights(folder) as files:
        for file in files:
            for name in file.names:
                value = file.read(name)
                yield StoredTensor(name, file.name, value, value.nbytes)


@contextmanager
def opened_weights(folder: Path) -> Iterator[list[WeightFile]]:
    """Open the weight files of a checkpoint, all at once.

    Raises:
        CheckpointError: as `weight_files`; or a file is broken, or lacks a tensor that the index assigns to it.
    """
    index = _index(folder) if (folder / INDEX).exists() else {}
    with ExitStack() as stack:
        files = [WeightFile(path, stack.enter_context(_opened(path))) for path in weight_files(folder)]
        for file in files:
            absent = {name for name, shard in index.items() if shard == file.name} - set(file.names)
            if absent:
                raise CheckpointError(f"{file.name} lacks {min(absent)}, although {INDEX} lists it")
        yield files


def first_floating_dtype(folder: Path) -> str:
    """Return the name of the dtype of the first floating-point tensor, as PyTorch spells it.

    Raises:
        CheckpointError: as `stored_tensors`; or there is no such tensor.
    """
    for tensor in stored_tensors(folder):
        if isinstance(tensor.value, torch.Tensor) and tensor.value.is_floating_point():
            return str(tensor.value.dtype).removeprefix("torch.")
    raise CheckpointError(f"the weights in {folder} hold no floating-point tensor")


@contextmanager
def _opened(path: Path) -> Iterator[safe_open]:
    problem = f"{path.name} is not a readable safetensors file"
    try:
        opened = safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{problem}: {error}") from None
    try:
        with opened as file:
            yield file
    except SafetensorError as error:  # an OSError is of what the caller does with the tensors
        raise CheckpointError(f"{problem}: {error}") from None


def _index(folder: Path) -> dict[str, str]:
    """Return the file name of each tensor."""
    section = Fields.read(folder / INDEX).section("weight_map")
    if section is None:
        raise CheckpointError(f"{INDEX}: weight_map is missing or empty")
    names = {name: section.text(name) for name in section}
    for file in names.values():
        if Path(file).name != file:
            raise CheckpointError(f"{INDEX}: weight files must lie beside it, got {file!r}")
    return names


THREADS = 8
"""Files hashed at once, so that the disk and not a processor limits a checkpoint of many files."""


def fingerprint(folder: Path) -> str:
    """Return a digest of a checkpoint's config and weights, in hex. It takes as long as reading every byte of them.

    Raises:
        OSError: a file cannot be read.
    """
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    files += [*folder.glob(GGUF), *sorted(folder.glob(GGUF_PARTS))]
    with ThreadPoolExecutor(THREADS) as executor:
        digests = list(executor.map(_digest, files))
    total = hashlib.sha256()
    for file, digest in zip(files, digests, strict=True):
        total.update(f"{file.name}\0".encode() + digest)
    return total.hexdigest()


def _digest(file: Path) -> bytes:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()
