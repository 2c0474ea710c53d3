"""Sizes of models whose layers have a recurrent state, from the fields of a `config.json` alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sluice.models.catalog.expert_sizes import ExpertNumbers
from sluice.models.checkpoint import FULL, Fields

STATES = ("linear_attention", "mamba", "conv")
ATTENTION = (FULL, "attention")
PATTERN = {"M": STATES[0], "*": FULL, "-": "mlp", "E": "moe"}
"""Letters of Nemotron-H's `hybrid_override_pattern`, and kinds of layers."""


BLOCK = 64
"""Tokens of the tail of a state, as in `attention/states.py`, which loads torch."""
WIDE_BYTES, NARROW_BYTES = 4, 2
"""Bytes of a number of a state and its tail, and of the inputs of its convolution."""


class StateCost(NamedTuple):
    """What the recurrent states of a model take."""

    layers: int
    """Layers that have one."""
    attending: int
    """Layers that have keys and values."""
    state: int
    """Numbers of the state of a layer, behind its convolution."""
    columns: int
    """Inputs of the convolution that a layer keeps."""
    channels: int
    """Those of one token."""
    token: int
    """Numbers that a layer keeps of each token of the tail."""

    @property
    def record_bytes(self) -> int:
        """Bytes of a record."""
        return self.layers * (self.state * WIDE_BYTES + self.columns * NARROW_BYTES)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a running request, with one token behind the firm ones."""
        tail = (BLOCK + 1) * self.token * WIDE_BYTES + (self.columns + self.channels) * NARROW_BYTES
        return self.record_bytes + self.layers * tail


class StateNumbers(NamedTuple):
    """How many numbers a model has."""

    layers: int
    """In the matrices of all layers, without experts and what is beside them."""
    kv: int
    """In a token's keys and values."""
    experts: ExpertNumbers | None
    states: StateCost


class _Mixers(NamedTuple):
    """Numbers of a layer's mixer."""

    of_state: int
    channels: int
    taps: int
    state: int = 0
    token: int = 0
    """As in `StateCost`, as the one before."""
    gate: int = 0
    """Heads of the output's gate, beside those of q."""


def kinds_of(config: Fields) -> list[str]:
    """Return the kinds of a model's layers."""
    given = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(given, list):
        return [str(each) for each in given]
    if config.get("hybrid_override_pattern") is not None:
        return [PATTERN.get(each, each) for each in config.text("hybrid_override_pattern")]
    layers, attending = config.integer("num_hidden_layers"), config.get("full_attn_idxs")
    if isinstance(attending, list):
        return [FULL if number in attending else "conv" for number in range(layers)]
    interval = config.integer("full_attention_interval", 4)
    return [STATES[0] if (number + 1) % interval else FULL for number in range(layers)]


def state_numbers(config: Fields, architecture: str) -> StateNumbers:
    """Return the numbers of a model.

    Args:
        architecture: a key of `MIXERS`.

    Raises:
        CheckpointError: a field is not valid.
    """
    kinds, mixers = kinds_of(config), MIXERS[architecture](config)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads, head_dim = config.integer("num_key_value_heads", heads), config.integer("head_dim", hidden // heads)
    attending = sum(kind in ATTENTION for kind in kinds)
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads + mixers.gate)
    layers, columns = sum(kind in STATES for kind in kinds), (mixers.taps - 1) * mixers.channels
    total = attending * attention + layers * mixers.of_state
    dense, experts = _mlps(config, architecture, kinds)
    states = StateCost(layers, attending, mixers.state, columns, mixers.channels, mixers.token)
    return StateNumbers(total + dense, 2 * attending * kv_heads * head_dim, experts, states)


def _mlps(config: Fields, architecture: str, kinds: Sequence[str]) -> tuple[int, ExpertNumbers | None]:
    """Return the numbers of the MLPs, and the experts."""
    hidden, layers = config.integer("hidden_size"), len(kinds)
    match architecture:
        case "NemotronHForCausalLM":
            dense, sparse = kinds.count("mlp"), kinds.count("moe")
            inner, each = config.integer("intermediate_size"), 2 * hidden * config.integer("moe_intermediate_size", 1)
            shared, held = 2 * hidden * config.integer("moe_shared_expert_intermediate_size", 1), "n_routed_experts"
            total = dense * 2 * hidden * inner
        case "Lfm2MoeForCausalLM":
            dense = config.integer("num_dense_layers", 2, minimum=0)
            sparse, shared, held = layers - dense, 0, "num_experts"
            each = 3 * hidden * config.integer("moe_intermediate_size")
            total = dense * 3 * hidden * config.integer("intermediate_size")
        case "GraniteMoeHybridForCausalLM":
            held, shared = "num_local_experts", 3 * hidden * config.integer("shared_intermediate_size")
            sparse = layers if config.integer(held, 8, minimum=0) else 0
            each = 3 * hidden * config.integer("intermediate_size")
            total = 0 if sparse else layers * shared
        case "Qwen3_5MoeForCausalLM" | "Qwen3NextForCausalLM":
            listed = config.get("mlp_only_layers") or []
            dense = len(listed) if isinstance(listed, list) else 0
            sparse, held = layers - dense, "num_experts"
            each = 3 * hidden * config.integer("moe_intermediate_size")
            shared = 3 * hidden * config.integer("shared_expert_intermediate_size") + hidden
            total = dense * 3 * hidden * config.integer("intermediate_size", 1)
        case _:
            return layers * 3 * hidden * _inner_size(config), None
    if not sparse:
        return total, None
    count = config.integer(held if config.get(held) is not None else "num_local_experts")
    beside = sparse * (hidden * count + shared)
    return total, ExpertNumbers(sparse, count, config.integer("num_experts_per_tok"), each, beside, 0)


def _inner_size(config: Fields) -> int:
    """Return the inner size of a dense model. That of LFM2 is given before it is reduced and rounded."""
    size = config.integer("block_ff_dim", config.integer("intermediate_size"))
    if config.get("conv_L_cache") is None or not config.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
    multiple = config.integer("block_multiple_of", 256)
    return -(-size // multiple) * multiple


def _short_conv(config: Fields) -> _Mixers:
    hidden, taps = config.integer("hidden_size"), config.integer("conv_L_cache", 3)
    return _Mixers(hidden * (4 * hidden + taps), hidden, taps)


def _gated_delta(config: Fields) -> _Mixers:
    hidden, heads = config.integer("hidden_size"), config.integer("linear_num_value_heads", 32)
    value_dim, key_dim = config.integer("linear_value_head_dim", 128), config.integer("linear_key_head_dim", 128)
    value, key = heads * value_dim, config.integer("linear_num_key_heads", 16) * key_dim
    channels = 2 * key + value
    matrices = hidden * (channels + 2 * value + 2 * heads)
    taps = config.integer("linear_conv_kernel_dim", 4)
    numbers, token = matrices + channels * taps, key + value + heads
    return _Mixers(numbers, channels, taps, value * key_dim, token, config.integer("num_attention_heads"))


def _mamba2(config: Fields, heads: int, inner: int, groups: int, state: int, taps: int) -> _Mixers:
    channels = inner + 2 * groups * state
    numbers = config.integer("hidden_size") * (2 * inner + channels + heads) + channels * taps
    return _Mixers(numbers, channels, taps, inner * state, groups * state + inner + heads)


def _of_granite(config: Fields) -> _Mixers:
    inner = config.integer("mamba_expand", 2) * config.integer("hidden_size")
    groups, state = config.integer("mamba_n_groups", 1), config.integer("mamba_d_state", 256)
    heads, taps = config.integer("mamba_n_heads", 128), config.integer("mamba_d_conv", 4)
    return _mamba2(config, heads, inner, groups, state, taps)


def _of_nemotron(config: Fields) -> _Mixers:
    heads = config.integer("mamba_num_heads", 128)
    inner, groups = heads * config.integer("mamba_head_dim", 64), config.integer("n_groups", 8)
    state, taps = config.integer("ssm_state_size", 128), config.integer("conv_kernel", 4)
    return _mamba2(config, heads, inner, groups, state, taps)


MIXERS: Mapping[str, Callable[[Fields], _Mixers]] = {
    **dict.fromkeys(("Lfm2ForCausalLM", "Lfm2MoeForCausalLM"), _short_conv),
    **dict.fromkeys(("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Qwen3NextForCausalLM"), _gated_delta),
    "GraniteMoeHybridForCausalLM": _of_granite,
    "NemotronHForCausalLM": _of_nemotron,
}
"""Architectures -> the numbers of their mixers."""
