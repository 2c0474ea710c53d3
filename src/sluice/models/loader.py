"""Loads the model of a checkpoint folder.

A native model is built on the meta device and then filled tensor by tensor. A model without a native class is loaded
through transformers (`fallback`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from tqdm import tqdm

from sluice.models.base import CausalLM, PagedLM
from sluice.models.checkpoint import CheckpointConfig, CheckpointError, read_config, refuse_unsupported
from sluice.models.fallback.load import load_fallback
from sluice.models.gpt2 import GPT2
from sluice.models.linear import Packer
from sluice.models.llama import Llama
from sluice.models.llama_config import LLAMA_ARCHITECTURES
from sluice.models.spec import ModelSpec
from sluice.models.weights import StoredTensor, first_floating_dtype, stored_tensors, weight_files

ARCHITECTURES: Mapping[str, type[CausalLM]] = {
    **dict.fromkeys(LLAMA_ARCHITECTURES, Llama),
    **dict.fromkeys(("GPT2LMHeadModel", "GPT2Model"), GPT2),
}

Report = Callable[[int, int], None]


def is_native(architecture: str) -> bool:
    """Return whether an architecture has a native class."""
    return architecture in ARCHITECTURES


def model_class(architecture: str) -> type[CausalLM]:
    """Return the native class for a name in the `architectures` of a `config.json`.

    Raises:
        CheckpointError: there is none; the message lists the supported ones.
    """
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"architecture {architecture!r} is not supported natively; known: {', '.join(ARCHITECTURES)}; others"
            " may run with --model-impl transformers"
        )
    return ARCHITECTURES[architecture]


DTYPES: Mapping[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_model(
    folder: Path,
    *,
    dtype: str,
    device: torch.device,
    progress: bool,
    implementation: str = "auto",
    packer: Packer | None = None,
    report: Report = lambda done, total: None,
) -> tuple[PagedLM, ModelSpec]:
    """Load the checkpoint in `folder`, filling every parameter exactly once.

    Args:
        dtype: a key of `DTYPES`, or "auto" for the checkpoint's own.
        device: the device of the weights. A native model holds at most one further tensor while it loads.
        progress: draw a progress bar on standard error.
        implementation: "native", "transformers", or "auto": transformers if there is no native class.
        packer: lays out native weights; None keeps torch's layout.
        report: called with the bytes of native weights that were read, and those of all.

    Raises:
        CheckpointError: the config is not supported, a file is missing or broken, or a tensor is missing,
            unexpected, duplicated, of the wrong shape or not of a floating-point dtype.
    """
    checkpoint = read_config(folder)
    if implementation == "transformers" or (implementation == "auto" and not is_native(checkpoint.architecture)):
        chosen = _resolve_dtype(folder, checkpoint, dtype)
        model: PagedLM = load_fallback(folder, checkpoint, dtype=chosen, device=device, progress=progress)
    else:
        packer = packer or Packer()
        model = _load_native(folder, checkpoint, dtype, device, packer, report, progress=progress)
    return model, model.spec


def _load_native(
    folder: Path,
    checkpoint: CheckpointConfig,
    dtype: str,
    device: torch.device,
    packer: Packer,
    report: Report,
    *,
    progress: bool,
) -> CausalLM:
    architecture = model_class(checkpoint.architecture)
    refuse_unsupported(checkpoint.fields)
    chosen = _resolve_dtype(folder, checkpoint, dtype)
    with torch.device("meta"):
        model = architecture.from_checkpoint(checkpoint, chosen)
    filler = _Filler(model, device)
    done, total = 0, sum(path.stat().st_size for path in weight_files(folder))
    with tqdm(total=total, desc="loading weights", unit="B", unit_scale=True, leave=False, disable=not progress) as bar:
        for tensor in stored_tensors(folder):
            filler.fill(tensor)
            bar.update(tensor.value.nbytes)
            done += tensor.value.nbytes
            report(done, total)
    filler.finish(packer)
    # Moves the buffers that were computed from the config.
    return model.to(device)


def _resolve_dtype(folder: Path, checkpoint: CheckpointConfig, dtype: str) -> torch.dtype:
    name = dtype
    if dtype == "auto":
        name = checkpoint.dtype or first_floating_dtype(folder)
    if name not in DTYPES:
        source = "the checkpoint's dtype" if dtype == "auto" else "dtype"
        raise CheckpointError(f"{source} must be one of {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]


class _Filler:
    """Copies stored tensors into a model on the meta device, and keeps track of what is missing."""

    def __init__(self, model: CausalLM, device: torch.device) -> None:
        self.model = model
        self.device = device
        self.expected = dict(model.named_parameters())
        self.filled: dict[str, torch.Tensor] = {}
        self.sources: dict[str, tuple[str, str]] = {}

    def fill(self, tensor: StoredTensor) -> None:
        """Copy one tensor, or skip it if it is a buffer."""
        rules = self.model.rules
        name = tensor.name.removeprefix(rules.prefix)
        if name.endswith(rules.ignored):
            return
        target = rules.embedding if self.model.tied and name == rules.head else name
        if target not in self.expected:
            raise CheckpointError(
                f"{tensor.file}: unexpected tensor {tensor.name}: {self.model.spec.architecture} with this"
                f" config.json has no such weight"
            )
        value = self._oriented(tensor, target)
        if target in self.filled:
            self._check_duplicate(tensor, target, value)
            return
        filled = torch.empty(value.shape, dtype=self.model.spec.dtype, device=self.device)
        filled.copy_(value)
        self.filled[target] = filled
        self.sources[target] = tensor.name, tensor.file

    def finish(self, packer: Packer) -> None:
        """Load the tensors into the model, and pack them."""
        missing = [name for name in self.expected if name not in self.filled]
        if missing == [self.model.rules.head]:
            self.model.drop_head()
        elif missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise CheckpointError(f"the checkpoint lacks the tensor {missing[0]}{more}")
        self.model.load_state_dict(self.filled, assign=True)
        self.model.requires_grad_(False)
        self.filled.clear()  # otherwise every weight would exist twice until all are packed
        self.model.pack(packer)

    def _oriented(self, tensor: StoredTensor, target: str) -> torch.Tensor:
        """Return the stored value in the model's shape."""
        wanted, value = tuple(self.expected[target].shape), tensor.value
        transposed = target.endswith(self.model.rules.transposed)
        stored_shape = wanted[::-1] if transposed else wanted
        if tuple(value.shape) != stored_shape:
            raise CheckpointError(
                f"{tensor.file}: tensor {tensor.name} has shape {tuple(value.shape)}, config.json requires"
                f" {stored_shape}"
            )
        if str(value.dtype).removeprefix("torch.") not in DTYPES:
            raise CheckpointError(
                f"{tensor.file}: tensor {tensor.name} has dtype {value.dtype}; accepted are {', '.join(DTYPES)}"
            )
        return value.t() if transposed else value

    def _check_duplicate(self, tensor: StoredTensor, target: str, value: torch.Tensor) -> None:
        """Refuse a second tensor for a parameter, unless it is a tied head equal to its embedding."""
        (name, file), rules = self.sources[target], self.model.rules
        names = {stored.removeprefix(rules.prefix) for stored in (name, tensor.name)}
        if names != {rules.head, rules.embedding}:
            raise CheckpointError(f"tensor {tensor.name} in {tensor.file} is also there as {name} in {file}")
        if not torch.equal(value.to(self.device, self.model.spec.dtype), self.filled[target]):
            raise CheckpointError(
                f"config.json ties {rules.head} to {rules.embedding}, but {tensor.name} in {tensor.file} differs"
                f" from {name} in {file}"
            )
