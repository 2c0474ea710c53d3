"""Sizes of Gemma 4, whose layers differ, from the fields of its `config.json` alone."""

from __future__ import annotations

from typing import NamedTuple

from sluice.models.checkpoint import FULL, Fields

ARCHITECTURE = "Gemma4ForCausalLM"
PERIOD, FULL_HEAD_DIM = 6, 512
"""Of a config that does not say which layers have full attention, and of what size their heads are."""


class Numbers(NamedTuple):
    """How many numbers a model has."""

    layers: int
    """In the matrices of all layers."""
    kv: int
    """In a token's keys and values."""
    lookups: int
    """In tables of which a token needs one row: the inputs of each layer."""


def gemma4_numbers(config: Fields, head_dim: int, kv_heads: int) -> Numbers:
    """Return the numbers of a model.

    Args:
        head_dim, kv_heads: of layers with a window.

    Raises:
        CheckpointError: a field is not valid.
    """
    count, hidden, heads = (
        config.integer(name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    kinds = config.get("layer_types")
    is_full = [
        number + 1 == count or (kinds[number] == FULL if isinstance(kinds, list) else (number + 1) % PERIOD == 0)
        for number in range(count)
    ]
    own = count - config.integer("num_kv_shared_layers", 0, minimum=0)
    is_shared_value, wide = (config.flag(name, False) for name in ("attention_k_eq_v", "use_double_wide_mlp"))
    full_heads = config.integer("num_global_key_value_heads", kv_heads) if is_shared_value else kv_heads
    full_dim, inner = config.integer("global_head_dim", FULL_HEAD_DIM), config.integer("intermediate_size")
    each = config.section("per_layer_config")
    layers = kv = 0
    for number, full in enumerate(is_full):
        size, of_kv = (full_dim, full_heads) if full else (head_dim, kv_heads)
        if full and each is not None:
            given = each.section(str(number)) or each
            size, of_kv = given.integer("head_dim", size), given.integer("num_key_value_heads", of_kv)
        has_kv = number < own
        layers += hidden * size * (2 * heads + has_kv * of_kv * (1 if full and is_shared_value else 2))
        layers += 3 * hidden * inner * (1 if has_kv or not wide else 2)
        kv += has_kv * 2 * size * of_kv
    extra = count * config.integer("hidden_size_per_layer_input", 0, minimum=0)
    rows = config.integer("vocab_size_per_layer_input", config.integer("vocab_size"))
    return Numbers(layers + 3 * hidden * extra, kv, rows * extra)
