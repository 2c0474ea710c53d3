"""Divides the tensors that store all experts of a layer into those of each expert, or several matrices into each."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from sluice.models.base import HeadRows, Stack, WeightRules
from sluice.models.checkpoint import CheckpointError
from sluice.models.spec import ModelSpec
from sluice.models.weights import StoredTensor


def by_expert(tensors: Iterator[StoredTensor], rules: WeightRules, spec: ModelSpec) -> Iterator[StoredTensor]:
    """Iterate over tensors, with those of all experts divided. The parts are views.

    Args:
        spec: of the whole model.

    Raises:
        CheckpointError: a tensor has another number of experts than the config, or of dimensions.
    """
    for tensor in tensors:
        name = rules.inner(tensor.name)
        heads = next((each for each in rules.head_rows if name.endswith(f".{each.stored}")), None)
        if heads is not None and isinstance(tensor.value, torch.Tensor):
            yield from _by_matrix(tensor, tensor.value, heads, name, spec)
            continue
        stack = rules.stack_of(name)
        if stack is None or not isinstance(tensor.value, torch.Tensor):
            yield tensor
        else:
            yield from _divided(tensor, tensor.value, stack, name, spec)


def _by_matrix(
    tensor: StoredTensor, value: torch.Tensor, heads: HeadRows, name: str, spec: ModelSpec
) -> Iterator[StoredTensor]:
    assert spec.state is not None, "a model without states"
    stem = name.removesuffix(heads.stored)
    try:
        for end, part in heads.divided(value, spec.state):
            yield StoredTensor(stem + end, tensor.file, part, tensor.nbytes * len(part) // len(value))
    except ValueError as error:
        raise CheckpointError(
            f"{tensor.file}: tensor {tensor.name} has the shape {list(value.shape)}: {error}"
        ) from None


def _divided(
    tensor: StoredTensor, value: torch.Tensor, stack: Stack, name: str, spec: ModelSpec
) -> Iterator[StoredTensor]:
    shape = list(value.shape)
    value = value if stack.is_of_experts else value[None]
    dimensions, count = 3 if stack.leaf == "weight" else 2, len(stack.parts)
    outputs = value.shape[-1] if stack.transposed or value.ndim < 3 else value.shape[1]
    if value.ndim != dimensions or outputs % count:
        kind = f"{dimensions} dimensions" + (f", and outputs of {count} layers" if count > 1 else "")
        raise CheckpointError(
            f"{tensor.file}: tensor {tensor.name} has the shape {shape}; those of experts have {kind}"
        )
    experts = check_experts(tensor.file, tensor.name, len(value), spec) if stack.is_of_experts else 1
    for expert in range(experts):
        for number, part in enumerate(stack.parts):
            nbytes = tensor.nbytes // (experts * count)
            yield StoredTensor(stack.name(name, expert, part), tensor.file, stack.part(value[expert], number), nbytes)


def check_experts(file: str, name: str, found: int, spec: ModelSpec) -> int:
    """Return how many experts a tensor has.

    Raises:
        CheckpointError: the config says another number.
    """
    wanted = 0 if spec.experts is None else spec.experts.count
    if found != wanted:
        raise CheckpointError(f"{file}: tensor {name} has {found} experts, and the config says {wanted}")
    return found
