"""Writes a checkpoint with quantised weights, tensor by tensor."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import torch
from tqdm import tqdm

from sluice.cli.quantize.schemes import Scheme, WrittenTensor
from sluice.cli.quantize.source import PlainCheckpoint
from sluice.cli.quantize.tensor_file import DTYPES, TensorFile
from sluice.models.checkpoint import CheckpointError
from sluice.models.formats.extra import need
from sluice.models.hub import WANTED, WEIGHTS
from sluice.models.weights import INDEX, SINGLE, StoredTensor, WeightFile, opened_weights

CONFIG = "config.json"
DTYPE_FIELDS = ("dtype", "torch_dtype")
"""Fields of the configuration that name the dtype, in transformers 5 and before."""
LICENSES = ("LICENSE*", "NOTICE*", "USE_POLICY*")


def write_quantized(source: PlainCheckpoint, target: Path, scheme: Scheme, *, progress: bool) -> int:
    """Write a checkpoint of compressed-tensors: linear layers quantised, embedding, head and all else as they are.

    At any time one weight is in memory, quantised; a target that exists is whole.

    Args:
        target: a folder that is empty or does not exist.

    Returns:
        Bytes of its tensors.

    Raises:
        CheckpointError: the target exists or cannot be written, a tensor is missing or cannot be quantised, or a
            package is missing.
    """
    _check_target(target)
    if source.model.rules.transposed:
        raise CheckpointError(
            f"{source.model.spec.architecture} stores its weights transposed, and no format of quantised weights does:"
            f" quantise it at each start, with --quantization {scheme.name}"
        )
    config = _config(source, scheme)
    with opened_weights(source.folder) as files, _appearing(target) as folder:
        plans = [{name: _parts(source, file, name, scheme) for name in file.names} for file in files]
        _check_complete(source, [name for plan in plans for name in plan])
        total = sum(file.read(name).nbytes for file in files for name in file.names)
        with tqdm(total=total, desc="quantising", unit="B", unit_scale=True, leave=False, disable=not progress) as bar:
            sizes = [
                _write_file(source, file, plan, folder, scheme, bar) for file, plan in zip(files, plans, strict=True)
            ]
        if [file.name for file in files] != [SINGLE]:
            _write_index(folder, files, plans, sum(sizes))
        _copy_others(source.folder, folder)
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return sum(sizes)


def _check_target(target: Path) -> None:
    if target.is_dir() and any(target.iterdir()):
        raise CheckpointError(f"--output {target} is not empty: name a new folder")
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"--output {target} is a file: name a new folder")
    if os.path.ismount(target):
        raise CheckpointError(f"a file system is mounted at --output {target}: name a new folder in it")


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """Yield a folder beside the target that takes its name in the end, and is removed after an error.

    Raises:
        CheckpointError: a file cannot be written.
    """
    target = target.resolve()
    folder = target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"
    try:
        folder.mkdir(parents=True)
        yield folder
        folder.rename(target)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise CheckpointError(f"--output {target} cannot be written: {error}") from None
        raise


def _parts(source: PlainCheckpoint, file: WeightFile, name: str, scheme: Scheme) -> dict[str, WrittenTensor]:
    """Return the tensors that a tensor becomes, by their names."""
    value = file.read(name)
    if source.inner(name) not in source.linear:
        if value.dtype not in DTYPES:
            accepted = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise CheckpointError(f"{file.name}: tensor {name} has dtype {value.dtype}; accepted are {accepted}")
        return {name: WrittenTensor(value.dtype, tuple(value.shape))}
    outputs, inputs = source.oriented(StoredTensor(name, file.name, value, value.nbytes)).shape
    try:
        parts = scheme.parts(outputs, inputs)
    except ValueError as error:
        raise CheckpointError(f"{file.name}: tensor {name} cannot be quantised: {error}") from None
    module = name.removesuffix(".weight")
    return {f"{module}.{part}": stored for part, stored in parts.items()}


def _check_complete(source: PlainCheckpoint, names: list[str]) -> None:
    missing = source.linear - {source.inner(name) for name in names}
    if missing:
        raise CheckpointError(f"the checkpoint lacks the tensor {source.model.rules.prefix}{min(missing)}")


def _write_file(
    source: PlainCheckpoint,
    file: WeightFile,
    plan: dict[str, dict[str, WrittenTensor]],
    folder: Path,
    scheme: Scheme,
    bar: tqdm,
) -> int:
    parts = {name: part for stored in plan.values() for name, part in stored.items()}
    with TensorFile(folder / file.name, parts) as written:
        for name in plan:
            value = file.read(name)
            for stored_name, stored in _stored(source, file, name, value, scheme).items():
                written.write(stored_name, stored)
            bar.update(value.nbytes)
        return written.nbytes


def _stored(
    source: PlainCheckpoint, file: WeightFile, name: str, value: torch.Tensor, scheme: Scheme
) -> dict[str, torch.Tensor]:
    if source.inner(name) not in source.linear:
        return {name: value}
    try:
        parts = scheme.stored(value)
    except ValueError as error:
        raise CheckpointError(f"{file.name}: tensor {name} cannot be quantised: {error}") from None
    module = name.removesuffix(".weight")
    return {f"{module}.{part}": stored for part, stored in parts.items()}


def _write_index(
    folder: Path, files: list[WeightFile], plans: list[dict[str, dict[str, WrittenTensor]]], size: int
) -> None:
    homes = {
        name: file.name for file, plan in zip(files, plans, strict=True) for stored in plan.values() for name in stored
    }
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(homes.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _config(source: PlainCheckpoint, scheme: Scheme) -> dict[str, object]:
    """Return the content of `config.json`."""
    quantization = need("compressed_tensors.quantization", "a checkpoint of compressed-tensors")
    inputs = None if scheme.inputs is None else dict(scheme.inputs)
    group = quantization.QuantizationScheme(
        targets=["Linear"], weights=dict(scheme.weights), input_activations=inputs, format=scheme.format
    )
    config = quantization.QuantizationConfig(
        config_groups={"group_0": group},
        format=scheme.format,
        quantization_status="compressed",
        ignore=[source.model.rules.head.removesuffix(".weight")],
    )
    fields: dict[str, object] = json.loads((source.folder / CONFIG).read_text(encoding="utf-8"))
    # Without its dtype a quantised checkpoint would be computed in bfloat16.
    dtype = {} if any(name in fields for name in DTYPE_FIELDS) else {DTYPE_FIELDS[0]: source.dtype}
    return fields | dtype | {"quantization_config": config.model_dump(mode="json")}


def _copy_others(source: Path, folder: Path) -> None:
    """Copy what is no weight: tokenizer, chat template, settings, licences."""
    for path in (*source.iterdir(), *source.glob("[0-9]*/*")):
        is_wanted = any(fnmatch(path.name, pattern) for pattern in (*WANTED, *LICENSES))
        is_weight = any(fnmatch(path.name, pattern) for pattern in WEIGHTS)
        copy = folder / path.relative_to(source)
        if is_wanted and not is_weight and path.is_file() and copy != folder / CONFIG:
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)
