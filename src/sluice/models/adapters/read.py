"""Reads adapters from files, and checks that they are of a model."""

from __future__ import annotations

from pathlib import Path

import torch

from sluice.models.adapters.adapter import Adapter, AdapterError, own_names, parts_by_path
from sluice.models.adapters.gguf import read_gguf_adapter
from sluice.models.adapters.peft import read_peft
from sluice.models.adapters.stored import StoredAdapter, StoredMatrix, StoredPair
from sluice.models.blocks.lora import LoraPair, LoraPart
from sluice.models.decoder import Decoder
from sluice.types.adapters import AdapterInfo, AdapterLimits

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def read_adapter(path: Path, name: str, model: Decoder, limits: AdapterLimits, base: Path | None = None) -> Adapter:
    """Read an adapter: a folder of PEFT, or a GGUF file. This takes as long as reading the file several times.

    Args:
        name: what requests call it.
        model: that it is to be added to, or a rank's part of it.
        base: the model's folder, if it is one of Hugging Face.

    Raises:
        AdapterError: it cannot be read or is not supported, is not of this model, or is larger than the limits.
    """
    if path.is_dir():
        stored = read_peft(path, model, limits, base)
    elif path.is_file():
        stored = read_gguf_adapter(path, model)
    else:
        raise AdapterError(f"{path}: there is no such folder or file")
    return _checked(stored, path, name, model, limits)


def _checked(stored: StoredAdapter, path: Path, name: str, model: Decoder, limits: AdapterLimits) -> Adapter:
    """Return an adapter, or refuse it if it does not fit the model."""
    if not stored.pairs:
        raise AdapterError(f"{stored.file} holds no matrices")
    parts = parts_by_path(model.config)
    pairs, num_bytes = {}, 0
    for layer, pair in stored.pairs.items():
        a, b = _both(stored.file, layer, pair)
        _check_shapes(stored, layer, a, b, parts[layer], limits)
        own_a, own_b = (_numbers(stored.file, matrix, model.spec.dtype) for matrix in (a, b))
        pairs[layer] = LoraPair(own_a, own_b, stored.scales[layer])
        num_bytes += a.value.nbytes + b.value.nbytes
    info = AdapterInfo(
        name=name,
        path=str(path.absolute()),
        digest=stored.digest,
        rank=max(len(pair.a) for pair in pairs.values()),
        alpha=stored.alpha,
        targets=own_names(pairs),
        num_bytes=num_bytes,
    )
    return Adapter(info, pairs)


def _both(file: str, layer: str, pair: StoredPair) -> tuple[StoredMatrix, StoredMatrix]:
    if pair.a is None or pair.b is None:
        found = pair.a or pair.b
        assert found is not None
        missing = "A" if pair.a is None else "B"
        raise AdapterError(f"{file} has {found.name}, and lacks the other matrix of {layer}: {missing}")
    return pair.a, pair.b


def _check_shapes(
    stored: StoredAdapter, layer: str, a: StoredMatrix, b: StoredMatrix, part: LoraPart, limits: AdapterLimits
) -> None:
    """Refuse a pair whose shapes are not those of a layer, or whose rank is too large."""
    for matrix, own, size in ((a, 1, part.in_features), (b, 0, part.out_features)):
        shape = tuple(matrix.value.shape)
        if len(shape) != 2 or shape[own] != size:
            wanted = f"[rank, {size}]" if own else f"[{size}, rank]"
            raise AdapterError(
                f"{stored.file}: {matrix.name} has shape {list(shape)}, and this model's {layer} takes {wanted}: the"
                " adapter is of another model"
            )
    rank, other = a.value.shape[0], b.value.shape[1]
    if rank != other or rank < 1:
        raise AdapterError(f"{stored.file}: {a.name} and {b.name} must have one rank, got {rank} and {other}")
    if rank != stored.ranks.get(layer, rank):
        raise AdapterError(
            f"{stored.file}: {a.name} has rank {rank}, and adapter_config.json says {stored.ranks[layer]}"
        )
    if rank > limits.max_lora_rank:
        raise AdapterError(f"{stored.file}: {a.name} has rank {rank}, above --max-lora-rank {limits.max_lora_rank}")


def _numbers(file: str, matrix: StoredMatrix, dtype: torch.dtype) -> torch.Tensor:
    """Return the values of a matrix in the model's dtype."""
    if matrix.value.dtype not in FLOATS:
        names = ", ".join(str(each).removeprefix("torch.") for each in FLOATS)
        raise AdapterError(f"{file}: {matrix.name} has dtype {matrix.value.dtype}; accepted are {names}")
    values = matrix.value.to(dtype)
    if not torch.isfinite(values).all():
        raise AdapterError(f"{file}: {matrix.name} has values that are infinite, or no numbers, in {dtype}")
    return values
