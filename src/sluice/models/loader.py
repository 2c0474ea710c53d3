"""Loads the model of a checkpoint folder.

A native model is built on the meta device and then filled tensor by tensor. A model without a native class is loaded
through transformers (`fallback`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from sluice.models.base import CausalLM, PagedLM, Report, no_report
from sluice.models.checkpoint import (
    LONGEST_SHOWN,
    CheckpointConfig,
    CheckpointError,
    read_config,
    refuse_unsupported,
)
from sluice.models.fallback.load import load_fallback
from sluice.models.filler import Filler
from sluice.models.formats.base import Rows, WeightFormat
from sluice.models.formats.read import check_agrees, read_format
from sluice.models.linear import Packer
from sluice.models.model_class import model_class
from sluice.models.registry import ARCHITECTURES, is_native
from sluice.models.spec import AS_STORED, DTYPES, FP8, ON_LOAD, ModelSpec, Quantization
from sluice.models.stacked import by_expert
from sluice.models.stored_sizes import check_sizes
from sluice.models.tying import has_own_head
from sluice.models.unused import Unused
from sluice.models.weights import StoredTensor, first_floating_dtype, stored_tensors, weight_files
from sluice.parallel.layout import Layout
from sluice.parallel.member import ALONE, Member

LOGGER = logging.getLogger("sluice.models")

Check = Callable[[ModelSpec], None]


class Watch(NamedTuple):
    """What is called while a native model is loaded, and whether a bar is drawn, as `load_model` takes them."""

    report: Report
    packing: Report
    check: Check
    progress: bool


def check_layout(folder: Path, layout: Layout, implementation: str = "auto") -> None:
    """Check by its `config.json` that a model can be cut into the parts of a layout.

    Args:
        implementation: as in `load_model`.

    Raises:
        CheckpointError: it cannot; the message says what is accepted. Or the config is not supported.
    """
    if layout.size == 1:
        return
    checkpoint = read_config(folder)
    if _is_fallback(checkpoint, implementation):
        raise CheckpointError(
            f"{checkpoint.architecture} runs through transformers, on one device alone: leave out --tp-size and"
            f" --pp-size; architectures that are computed by several: {', '.join(ARCHITECTURES)}"
        )
    model_class(checkpoint.architecture).check_layout(checkpoint, layout)


def load_model(
    folder: Path,
    *,
    dtype: str,
    device: torch.device,
    progress: bool,
    implementation: str = "auto",
    quantization: str | None = None,
    packer: Packer | None = None,
    report: Report = no_report,
    packing: Report = no_report,
    member: Member = ALONE,
    blocks: Mapping[str, object] | None = None,
    check: Check = lambda spec: None,
) -> tuple[PagedLM, ModelSpec]:
    """Load the checkpoint in `folder`, or a rank's part of it, filling every parameter exactly once.

    Args:
        dtype: a key of `DTYPES`, or "auto" for the checkpoint's own.
        device: the device of the weights. A native model holds at most one further tensor while it loads.
        progress: draw a progress bar on standard error.
        implementation: "native", "transformers", or "auto": transformers if there is no native class.
        quantization: "int8" quantises a native model's linear layers, embedding and head, tensor by tensor; "int4" the
            layers to four bits, where groups divide their inputs, and the rest to int8; "fp8" the layers to e4m3, if
            the packer has products in it. Else how
            the checkpoint must be quantised, by its `quant_method` or "none"; None: in any way, or not. Weights that
            it stores for products that the packer has stay so.
        packer: lays out native weights; None keeps torch's layout.
        report: called with the bytes of native weights that were read, and those of all.
        packing: called with the layers whose weights are packed, and their number.
        member: the rank. Of a native model, only its part of the weights is read.
        check: called with a native model's sizes before its weights are read; may raise.
        blocks: `block_size` and `mask_token_id` of a model of block diffusion, in place of those in its `config.json`.

    Returns:
        The rank's part of the model, and the sizes of all of it (`ModelSpec.of` gives those of the part).

    Raises:
        CheckpointError: the config is not supported, or the model cannot be cut so; a file is missing or broken, or a
            tensor is missing, unexpected, duplicated, of the wrong shape or not of a floating-point dtype.
    """
    check_layout(folder, member.place.layout, implementation)
    checkpoint = read_config(folder)
    check_sizes(checkpoint, folder)
    if blocks:
        checkpoint = replace(checkpoint, fields=checkpoint.fields.replaced(blocks, "--dllm-algorithm-config"))
    if _is_fallback(checkpoint, implementation):
        _refuse_quantization(checkpoint, quantization)
        chosen = _resolve_dtype(folder, checkpoint, dtype, device, None)
        model: PagedLM = load_fallback(folder, checkpoint, dtype=chosen, device=device, progress=progress)
    else:
        watch = Watch(report, packing, check, progress)
        model = _load_native(folder, checkpoint, dtype, quantization, device, packer or Packer(), member, watch)
    return model, model.spec


def _refuse_quantization(checkpoint: CheckpointConfig, quantization: str | None) -> None:
    """Refuse `--quantization` of a model that runs through transformers."""
    if quantization in ON_LOAD:
        raise CheckpointError(
            f"{checkpoint.architecture} runs through transformers, whose weights are not quantised: leave out"
            f" --quantization {quantization}"
        )
    if checkpoint.fields.section("quantization_config") is None:  # else it is refused
        check_agrees(quantization, None)


def _is_fallback(checkpoint: CheckpointConfig, implementation: str) -> bool:
    """Return whether a model runs through transformers."""
    return implementation == "transformers" or (implementation == "auto" and not is_native(checkpoint.architecture))


def _load_native(
    folder: Path,
    checkpoint: CheckpointConfig,
    dtype: str,
    quantization: str | None,
    device: torch.device,
    packer: Packer,
    member: Member,
    watch: Watch,
) -> CausalLM:
    stored_as = read_format(checkpoint)
    check_agrees(quantization, stored_as)
    architecture = model_class(checkpoint.architecture)
    refuse_unsupported(checkpoint.fields, architecture.reads)
    if dtype == "auto" and _is_on_load(quantization, stored_as):
        dtype = "bfloat16"
    chosen = _resolve_dtype(folder, checkpoint, dtype, device, stored_as)
    whole, checkpoint = _whole(architecture, checkpoint, folder, chosen)
    model = whole
    if member.place.layout.size > 1:
        with torch.device("meta"):
            model = architecture.from_checkpoint(checkpoint, chosen, member)
    watch.check(whole.spec)
    numbers = sum(weight.numel() for weight in whole.parameters())
    held = _held(quantization, stored_as, chosen, packer)
    whole.spec = replace(whole.spec, quantization=held, num_parameters=numbers)
    if stored_as is not None:
        stored = Quantization(stored_as.name, stored_as.description, stored_as.level)
        whole.spec = replace(whole.spec, stored_as=stored)
    model.spec = whole.spec
    adds_one = stored_as is None or not stored_as.holds_sums
    filler = Filler(whole, model, device, packer, Unused(checkpoint.fields, whole.rules), adds_one=adds_one)
    total = sum(path.stat().st_size for path in weight_files(folder))
    with tqdm(
        total=total, desc="loading weights", unit="B", unit_scale=True, leave=False, disable=not watch.progress
    ) as bar:
        tensors = _tensors(folder, stored_as, whole, filler.rows)
        _fill(filler, by_expert(tensors, whole.rules, whole.spec), bar, watch.report)
    if model.spec.stored_as is not None:
        number_bytes = filler.kept_bytes / max(1, filler.kept_numbers)
        stored = replace(model.spec.stored_as, kept=filler.kept, number_bytes=number_bytes)
        model.spec = replace(model.spec, stored_as=stored)
    filler.finish(watch.packing)
    if packer.widened:
        LOGGER.info(
            "%d layers are dequantised to %s: their parts are quantised in different ways, or no product takes them",
            packer.widened,
            str(chosen).removeprefix("torch."),
        )
    # Moves the buffers that were computed from the config.
    return model.to(device)


def _whole(
    architecture: type[CausalLM], checkpoint: CheckpointConfig, folder: Path, dtype: torch.dtype
) -> tuple[CausalLM, CheckpointConfig]:
    """Return all of a model, on the meta device, and its config, which ties no head that is stored and differs."""
    with torch.device("meta"):
        whole = architecture.from_checkpoint(checkpoint, dtype)
    if not (whole.tied and has_own_head(folder, whole.rules, dtype)):
        return whole, checkpoint
    untied = checkpoint.fields.replaced({"tie_word_embeddings": False}, "a head of its own")
    checkpoint = replace(checkpoint, fields=untied)
    with torch.device("meta"):
        return architecture.from_checkpoint(checkpoint, dtype), checkpoint


def _fill(filler: Filler, tensors: Iterator[StoredTensor], bar: tqdm, report: Report) -> None:
    """Fill a model. No tensor outlives this function, and none is there when the layers are packed."""
    done = 0
    for tensor in tensors:
        filler.fill(tensor)
        bar.update(tensor.nbytes)
        done += tensor.nbytes
        report(done, bar.total)


def _tensors(folder: Path, stored_as: WeightFormat | None, model: CausalLM, rows: Rows) -> Iterator[StoredTensor]:
    """Iterate over a checkpoint's tensors as plain weights."""
    if stored_as is None:
        return stored_tensors(folder)
    if model.rules.transposed:
        raise CheckpointError(f"{model.spec.architecture} with quantised weights ({stored_as.name}) is not supported")
    # Of float32, int8 is made without another rounding: weights that were stored so get their own numbers back.
    dtype = torch.float32 if model.spec.quantization in ON_LOAD else model.spec.dtype
    return stored_as.tensors(folder, model, dtype, rows)


def _held(asked: str | None, stored_as: WeightFormat | None, dtype: torch.dtype, packer: Packer) -> str:
    """Return how the model holds its weights, as `ModelSpec.quantization` says it."""
    if _is_on_load(asked, stored_as):
        assert asked is not None
        if asked == FP8 and (problem := packer.why_not(FP8, dtype)) is not None:
            raise CheckpointError(f"--quantization fp8 is not supported here: {problem}")
        return asked
    kinds = () if stored_as is None or asked == "none" else stored_as.kinds
    return next((kind + AS_STORED for kind in kinds if packer.why_not(kind, dtype) is None), "none")


def _is_on_load(asked: str | None, stored_as: WeightFormat | None) -> bool:
    """Return whether weights are to be quantised while they are loaded. FP8 may also name how they are stored."""
    return asked in ON_LOAD and not (stored_as is not None and stored_as.name == asked)


def _resolve_dtype(
    folder: Path, checkpoint: CheckpointConfig, dtype: str, device: torch.device, stored_as: WeightFormat | None
) -> torch.dtype:
    """Return the dtype to compute in. Weights that must be dequantised are so to one that the CPU's kernels have."""
    name = dtype
    if dtype == "auto" and stored_as is not None:
        name = checkpoint.dtype or "bfloat16"
        if name == "float16" and device.type == "cpu":
            name = "bfloat16"
    elif dtype == "auto":
        name = checkpoint.dtype or first_floating_dtype(folder)
    if name not in DTYPES:
        source = "the checkpoint's dtype" if dtype == "auto" else "dtype"
        raise CheckpointError(f"{source} must be one of {', '.join(DTYPES)}, got {name!r:.{LONGEST_SHOWN}}")
    return DTYPES[name]
