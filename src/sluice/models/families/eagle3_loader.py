"""Loads an EAGLE-3 head from a checkpoint folder, as SafeAILab publishes them and SGLang and vLLM read them.

fc, midlayer.*, norm, lm_head    weights of the head; `layers.0` is another name of `midlayer`
embed_tokens                     missing if the head shares its target's
d2t                              [draft vocabulary] what to add to a guess to get its token; missing without a map
t2d                              [vocabulary] whether a token can be guessed; follows from d2t, and is not read
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from sluice.models.base import PagedLM
from sluice.models.checkpoint import CheckpointError, read_config
from sluice.models.decoder import Decoder
from sluice.models.families.eagle3 import Eagle3
from sluice.models.families.eagle3_config import Eagle3Config, read_eagle3_config
from sluice.models.formats.read import read_format
from sluice.models.linear import Packer
from sluice.models.spec import DTYPES
from sluice.models.weights import StoredTensor, stored_tensors

EMBEDDING = "embed_tokens.weight"
MAP, INVERSE_MAP = "d2t", "t2d"


def load_eagle3(folder: Path, target: PagedLM, device: torch.device, packer: Packer) -> Eagle3:
    """Load a head for a target, in the target's dtype.

    Raises:
        CheckpointError: the target hands out no hidden states, the head is not one for this target, or a tensor is
            missing, unexpected or of the wrong shape.
    """
    if not isinstance(target, Decoder):
        raise CheckpointError(
            f"EAGLE-3 heads need a model whose layers hand out hidden states, which {target.spec.architecture}"
            f" ({target.spec.implementation}) does not; native models do"
        )
    checkpoint = read_config(folder)
    config = read_eagle3_config(checkpoint, target.spec)
    if (stored_as := read_format(checkpoint)) is not None:
        raise CheckpointError(f"the EAGLE-3 head is quantised ({stored_as.name}), which is not supported")
    tensors = {_parameter(tensor.name): tensor for tensor in stored_tensors(folder)}
    tensors.pop(INVERSE_MAP, None)
    target_ids = _target_ids(tensors.pop(MAP, None), config)
    with torch.device("meta"):
        head = Eagle3(config, has_embedding=EMBEDDING in tensors)
    head.load_state_dict(_weights(head, tensors, config, device), assign=True)
    head.requires_grad_(False)
    head.pack(packer)
    if head.embed_tokens is None:
        _share_embedding(head, target)
    head.target_ids = target_ids
    return head.to(device)


def _parameter(name: str) -> str:
    """Return the head's name for a stored tensor."""
    name = name.removeprefix("model.")
    return f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name


def _weights(
    head: Eagle3, tensors: Mapping[str, StoredTensor], config: Eagle3Config, device: torch.device
) -> dict[str, torch.Tensor]:
    """Return the head's weights by name. All of them are there, and no others."""
    parameters = dict(head.named_parameters())
    expected = {name: tuple(weight.shape) for name, weight in parameters.items()}
    if unexpected := sorted({*tensors} - {*expected}):
        raise CheckpointError(f"unexpected tensor {unexpected[0]}: an EAGLE-3 head with this config.json has none")
    if missing := [name for name in expected if name not in tensors]:
        raise CheckpointError(f"the EAGLE-3 head lacks the tensor {missing[0]}")
    weights = {}
    for name, tensor in tensors.items():
        value = tensor.value
        assert isinstance(value, torch.Tensor), "heads are not quantised"
        if tuple(value.shape) != expected[name]:
            raise CheckpointError(
                f"{tensor.file}: tensor {name} has shape {tuple(value.shape)}, config.json requires {expected[name]}"
            )
        if str(value.dtype).removeprefix("torch.") not in DTYPES:
            raise CheckpointError(
                f"{tensor.file}: tensor {name} has dtype {value.dtype}; accepted: {', '.join(DTYPES)}"
            )
        weights[name] = torch.empty(value.shape, dtype=parameters[name].dtype, device=device).copy_(value)
    return weights


def _target_ids(offsets: StoredTensor | None, config: Eagle3Config) -> torch.Tensor | None:
    """Return the token of each guess, [draft_vocab_size] int64; None if every token can be guessed."""
    size, vocab_size = config.draft_vocab_size, config.layer.spec.vocab_size
    if offsets is None:
        if size == vocab_size:
            return None
        raise CheckpointError(f"the EAGLE-3 head lacks the tensor {MAP}, but guesses {size} of {vocab_size} tokens")
    values = offsets.value
    if not isinstance(values, torch.Tensor) or tuple(values.shape) != (size,) or values.is_floating_point():
        raise CheckpointError(f"{offsets.file}: tensor {MAP} must hold {size} integers")
    ids = values.to(torch.int64) + torch.arange(size)
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size or len(ids.unique()) < size:
        raise CheckpointError(f"{offsets.file}: tensor {MAP} must name {size} different tokens of {vocab_size}")
    return ids


def _share_embedding(head: Eagle3, target: Decoder) -> None:
    """Let a head without an embedding use its target's."""
    own, of_target = head.config.layer.spec.hidden_size, target.spec.hidden_size
    if own != of_target:
        raise CheckpointError(
            f"the EAGLE-3 head lacks {EMBEDDING}, and cannot share the model's: its hidden size is {own}, the model's"
            f" {of_target}"
        )
    head.embed_tokens = target.embed_tokens
