"""Reads the config of an EAGLE-3 head, and checks that the head fits its target."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sluice.models.checkpoint import CheckpointConfig, CheckpointError, Fields, refuse_unsupported
from sluice.models.families.llama import Llama
from sluice.models.plan import DecoderConfig
from sluice.models.rope import Rope, read_rope
from sluice.models.spec import ModelSpec

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
"""SGLang's name, which the published heads have, and vLLM's."""
NUM_STATES = 3
"""Layers of the target whose inputs a head reads."""


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """An EAGLE-3 head."""

    layer: DecoderConfig
    """The drafter's only layer, in the sizes of a Llama model. The vocabulary is the target's."""
    draft_vocab_size: int
    """Tokens that it can guess."""
    target_hidden_size: int
    target_layers: tuple[int, ...]
    """Layers of the target whose inputs it reads, from 0, ascending."""
    rope: Rope
    norm_before_residual: bool
    """Whether the residual is what comes out of the norm over the hidden states, and not what goes in."""


def read_eagle3_config(checkpoint: CheckpointConfig, target: ModelSpec) -> Eagle3Config:
    """Read the config of a head for a target, in whose dtype it computes.

    Raises:
        CheckpointError: it is no such head, or not one for this target; the message names both values.
    """
    fields = checkpoint.fields
    if checkpoint.architecture not in ARCHITECTURES:
        raise fields.error("architectures", f"one of {', '.join(ARCHITECTURES)} for an EAGLE-3 head")
    refuse_unsupported(fields)
    layer = Llama.read(replace(checkpoint, architecture="LlamaForCausalLM"), target.dtype)
    if layer.spec.num_layers != 1:
        raise fields.error("num_hidden_layers", "1 for an EAGLE-3 head")
    hidden_size = fields.integer("target_hidden_size", layer.spec.hidden_size)
    _same("reads hidden states of size", hidden_size, target.hidden_size)
    _same("has a vocabulary of", layer.spec.vocab_size, target.vocab_size)
    draft_vocab_size = fields.integer("draft_vocab_size", layer.spec.vocab_size)
    if draft_vocab_size > layer.spec.vocab_size:
        raise fields.error("draft_vocab_size", f"at most vocab_size = {layer.spec.vocab_size}")
    return Eagle3Config(
        layer=layer,
        draft_vocab_size=draft_vocab_size,
        target_hidden_size=hidden_size,
        target_layers=_target_layers(fields, target.num_layers),
        rope=read_rope(fields),
        norm_before_residual=fields.flag("norm_before_residual", False),
    )


def _same(what: str, of_head: int, of_target: int) -> None:
    if of_head != of_target:
        raise CheckpointError(f"the EAGLE-3 head {what} {of_head}, but the model has {of_target}")


def _target_layers(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """Return the layers that the config names, or those with which heads are trained: low, middle, high.

    vLLM's field numbers layers by what enters them. SGLang's section numbers them by what leaves them.
    """
    section = fields.section("eagle_config")
    name, shift = "eagle_aux_hidden_state_layer_ids", 0
    ids = fields.get(name)
    if section is not None and not section.flag("use_aux_hidden_state", True):
        raise section.error("use_aux_hidden_state", "true: heads on the last hidden state alone are not supported")
    if not ids and section is not None:
        fields, ids, shift = section, section.get(name), 1
    if not ids:
        layers = (2, num_layers // 2, num_layers - 3)
        if sorted({*layers}) != list(layers):
            raise CheckpointError(
                f"EAGLE-3 heads read layers 2, n / 2 and n - 3 of a model of n layers, unless config.json names others"
                f" by {name}; the model has {num_layers} layers, accepted are 7 or more"
            )
        return layers
    if (
        not isinstance(ids, list)
        or len(ids) != NUM_STATES
        or not all(isinstance(each, int) and 0 <= each + shift < num_layers for each in ids)
        or sorted({*ids}) != ids
    ):
        highest = num_layers - 1 - shift
        raise fields.error(
            name, f"{NUM_STATES} ascending layers of the model's {num_layers}, from {-shift} to {highest}"
        )
    return tuple(each + shift for each in ids)
