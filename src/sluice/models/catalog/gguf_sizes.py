"""What a GGUF file needs, from its metadata and the table of its tensors: no weight is read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from sluice.models.block_types import BLOCK_TYPES
from sluice.models.catalog.estimate import Estimate, StoredBytes
from sluice.models.catalog.read_sizes import sizes_of
from sluice.models.catalog.sizes import NUMBER_BYTES, ModelSizes
from sluice.models.checkpoint import Fields
from sluice.models.formats.gguf_config import METHOD, model_config
from sluice.models.formats.gguf_open import open_gguf
from sluice.text.gguf.file import TensorInfo
from sluice.text.gguf.model import GGUFModel

EXPERTS = 3
"""Dimensions of the tensors of all experts of a layer."""
EMBEDDING, HEAD = "token_embd.weight", "output.weight"


class GGUFSizes(NamedTuple):
    """Sizes of a model in a GGUF file."""

    sizes: ModelSizes
    types: str
    """The types of its matrices, with their numbers: "Q4_K (169), Q6_K (28)"."""
    numbers: int
    """Numbers in all tensors."""
    file_bytes: int
    as_stored: StoredBytes
    """If matrices are multiplied as they are stored."""

    @classmethod
    def read(cls, path: Path) -> GGUFSizes:
        """Return the sizes of a file, or of a split one by its first part.

        Raises:
            CheckpointError: it is broken, or not of a model that is supported.
        """
        model = open_gguf(path)
        config = model_config(model)
        number_bytes = 4 if config["dtype"] == "float32" else NUMBER_BYTES
        sizes = sizes_of(Fields({**config, "quantization_config": None}, path.name), path.stem, path.parent)
        share = 1.0 if sizes.experts is None else sizes.experts.chosen / sizes.experts.count
        return cls(
            sizes,
            _counted(model),
            sum(info.numel for info in model.tensors.values()),
            sum(part.stat().st_size for part in model.paths),
            _stored_bytes(model, number_bytes, share),
        )

    def estimate(self, quantization: str | None, *, computes_blocks: bool) -> Estimate:
        """Return what the model needs.

        Args:
            quantization: value of `--quantization`; None: as it is stored.
            computes_blocks: the machine multiplies matrices as they are stored.
        """
        if quantization not in (None, METHOD):
            return Estimate(self.sizes, quantization)
        return Estimate(self.sizes, stored=self.as_stored if computes_blocks else None)


def _counted(model: GGUFModel) -> str:
    """Return types of the matrices with their numbers, the most frequent one first; `general.file_type` is often
    wrong."""
    found = Counter(info.kind.name for info in model.tensors.values() if len(info.shape) > 1)
    return ", ".join(f"{kind} ({count})" for kind, count in found.most_common())


def _stored_bytes(model: GGUFModel, number_bytes: int, share: float) -> StoredBytes:
    """Return the bytes of a model whose matrices are packed as they are stored, and whose embedding stays in the file.

    Args:
        number_bytes: of a number in a matrix of another type, which is dequantised.
        share: of experts that compute a token.
    """
    layers = sum(_held(info, number_bytes) for name, info in model.tensors.items() if name not in (EMBEDDING, HEAD))
    embedding = model.tensors[EMBEDDING]
    head = _held(model.tensors.get(HEAD, embedding), number_bytes)
    lookups = 0 if _is_stored(embedding) else _held(embedding, number_bytes)
    experts = sum(_held(info, number_bytes) for info in model.tensors.values() if len(info.shape) == EXPERTS)
    return StoredBytes(layers + head + lookups, layers + head - round((1 - share) * experts))


def _held(info: TensorInfo, number_bytes: int) -> int:
    return info.nbytes if _is_stored(info) else info.numel * number_bytes


def _is_stored(info: TensorInfo) -> bool:
    return info.kind.name in BLOCK_TYPES and len(info.shape) > 1
