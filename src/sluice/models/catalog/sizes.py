"""Sizes of a model, from the fields of its `config.json` alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sluice.models.catalog.expert_sizes import ExpertNumbers, expert_numbers
from sluice.models.catalog.gemma4_sizes import ARCHITECTURE, Numbers, gemma4_numbers
from sluice.models.catalog.state_sizes import MIXERS, StateCost, state_numbers
from sluice.models.checkpoint import CheckpointError, Fields, text_part

NUMBER_BYTES = 2
"""Bytes of a number of weights and KV, in bfloat16."""
FIELDS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"),
    "max_position_embeddings",
)


class SizesError(ValueError):
    """The sizes of a model are not known; the message says why."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a model."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    weights: int
    """Numbers that each token is multiplied by."""
    stored: int
    """Numbers in memory."""
    table: int
    """Numbers of the embedding; the head has as many, or is the embedding."""
    experts: ExpertNumbers | None
    """None: it has none."""
    lookups: int
    """Numbers of further tables of which a token needs one row."""
    kv: int
    """Numbers of a token's keys and values."""
    max_model_len: int
    """Length of the model's context, in tokens."""
    architecture: str | None
    """The architecture; None if the config names none, or several."""
    states: StateCost | None = None
    """What recurrent states take; None: its layers have none."""

    @property
    def idle(self) -> int:
        """Numbers of the experts that do not compute a token."""
        return 0 if self.experts is None else self.experts.idle

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values."""
        return self.kv * NUMBER_BYTES

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the sizes in the `config.json` of a folder, or in a file like it.

        Raises:
            SizesError: it cannot be read, or is not of a model of 16 bits with layers as Llama's.
        """
        path = folder / "config.json" if folder.is_dir() else folder
        try:
            content = json.loads(path.read_bytes())
        except (OSError, RecursionError, ValueError) as error:
            raise SizesError(f"cannot read the sizes of a model from {path}: {error}") from error
        if not isinstance(content, dict):
            raise SizesError(f"{path} holds no JSON object")
        return cls.of(content, path.parent.resolve().name, str(path))

    @classmethod
    def of(cls, content: Mapping[str, Any], name: str, source: str = "config.json") -> Self:
        """Return the sizes in the fields of a `config.json`.

        Args:
            source: what the fields are of, for errors.

        Raises:
            SizesError: they are not of a model of 16 bits with layers as Llama's.
        """
        content = _with_layers(_text_part(content, source), source)
        if content.get("quantization_config") is not None:
            raise SizesError(f"{source} is of quantised weights, not of those of 16 bits")
        size = {field: _size(source, content, field) for field in FIELDS}
        heads, hidden, vocab = size["num_attention_heads"], size["hidden_size"], size["vocab_size"]
        kv_heads = _size(source, content, "num_key_value_heads", heads)
        head_dim = _size(source, content, "head_dim", hidden // heads)
        layers, named = size["num_hidden_layers"], content.get("architectures")
        layer = hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * size["intermediate_size"]
        numbers = Numbers(layers * layer, 2 * layers * kv_heads * head_dim, 0)
        if named == [ARCHITECTURE]:
            numbers = _gemma4(content, source, head_dim, kv_heads)
        architecture = _architecture(content)
        states = None
        if architecture is not None and architecture in MIXERS:
            experts, numbers, states = _with_states(content, source, architecture)
        else:
            experts, numbers = _with_experts(content, source, architecture, numbers)
        weights = numbers.layers + vocab * hidden
        stored = numbers.lookups + (weights if content.get("tie_word_embeddings") else weights + vocab * hidden)
        stored += 0 if experts is None else experts.idle
        context = _context(source, content, size["max_position_embeddings"])
        table = vocab * hidden
        return cls(
            name,
            layers,
            heads,
            kv_heads,
            head_dim,
            weights,
            stored,
            table,
            experts,
            numbers.lookups,
            numbers.kv,
            context,
            architecture,
            states,
        )


def _architecture(content: Mapping[str, Any]) -> str | None:
    named = content.get("architectures")
    return named[0] if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str) else None


def _with_layers(content: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return the fields with sizes that configs of layers with a state may leave out: the layers are listed, and all
    may have experts."""
    if _architecture(content) not in MIXERS:
        return content
    listed = content.get("layer_types") or content.get("layers_block_type") or content.get("hybrid_override_pattern")
    layers = {"num_hidden_layers": len(listed)} if isinstance(listed, list | str) else {}
    return {"intermediate_size": content.get("moe_intermediate_size"), **layers, **content}


def _with_states(
    content: Mapping[str, Any], source: str, architecture: str
) -> tuple[ExpertNumbers | None, Numbers, StateCost]:
    """Return the experts, the numbers of a model whose layers have a state, and what the states take."""
    try:
        layers, kv, experts, states = state_numbers(Fields(content, source), architecture)
    except CheckpointError as error:
        raise SizesError(str(error)) from error
    if experts is not None:
        layers += experts.layers * experts.chosen * experts.each + experts.beside
    return experts, Numbers(layers, kv, 0), states


def _with_experts(
    content: Mapping[str, Any], source: str, architecture: str | None, dense: Numbers
) -> tuple[ExpertNumbers | None, Numbers]:
    """Return the experts, and the numbers that each token is multiplied by: chosen experts in the place of MLPs."""
    try:
        found = expert_numbers(Fields(content, source), architecture or "")
    except CheckpointError as error:
        raise SizesError(str(error)) from error
    if found is None:
        return None, dense
    layers = dense.layers - found.replaced + found.layers * found.chosen * found.each + found.beside
    return found, dense._replace(layers=layers)


def _gemma4(content: Mapping[str, Any], source: str, head_dim: int, kv_heads: int) -> Numbers:
    try:
        return gemma4_numbers(Fields(content, source), head_dim, kv_heads)
    except CheckpointError as error:
        raise SizesError(str(error)) from error


def _text_part(content: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return the fields of the text model of one that has further parts; of others all."""
    try:
        return text_part(Fields(content, source)).values
    except CheckpointError:  # for want of an architecture, which sizes do not need
        return content


def _context(source: str, content: Mapping[str, Any], positions: int) -> int:
    """Return the model's context. YaRN configs often give the original one in `max_position_embeddings`."""
    rope = content.get("rope_scaling") or content.get("rope_parameters")
    if not isinstance(rope, dict) or "yarn" not in (rope.get("rope_type"), rope.get("type")):
        return positions
    factor = rope.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < math.inf:
        raise SizesError(f"{source}: the factor of YaRN must be a number of at least 1, got {factor!r}")
    return max(positions, int(_size(source, rope, "original_max_position_embeddings", positions) * factor))


def _size(source: str, content: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = content.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise SizesError(f"{source}: {name} must be an integer of at least 1, got {value!r}")
    return value
