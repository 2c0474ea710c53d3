"""The fields of an architecture in a GGUF file, such as `qwen3.block_count`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.models.checkpoint import FULL, SLIDING, CheckpointError, Fields
from sluice.models.pooling import POOLINGS
from sluice.text.gguf.file import TensorInfo
from sluice.text.gguf.metadata import Items
from sluice.text.gguf.model import GGUFModel

READ = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "pooling_type"),
    *("attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "attention.causal"),
    *("attention.key_length", "attention.value_length", "attention.sliding_window", "attention.scale"),
    *("rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"),
    *("rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.finetuned"),
    *("expert_count", "expert_used_count", "tensor_data_layout"),
)
"""Fields that are read, or say nothing about the numbers."""
WITHOUT_EFFECT: Mapping[str, tuple[float, ...]] = {
    **dict.fromkeys(("logit_scale", "residual_scale", "embedding_scale"), (0, 1)),
    **dict.fromkeys(("attention.clamp_kqv", "attention.max_alibi_bias", "nextn_predict_layers"), (0,)),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), (0,)),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "rope.scaling.yarn_attn_factor": (-1, 1),
    "rope.scaling.yarn_beta_fast": (32,),
    "rope.scaling.yarn_beta_slow": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
    **dict.fromkeys(("expert_shared_count", "expert_shared_feed_forward_length"), (0,)),
    **dict.fromkeys(("expert_group_count", "expert_group_used_count", "expert_weights_scale"), (0, 1)),
    "expert_weights_norm": (1,),
    "expert_gating_func": (1,),
}
"""Other fields -> the values that change nothing."""
EXPERT_COUNT = "expert_count"
KV_HEADS = "attention.head_count_kv"
DRAFTING = "nextn_predict_layers"
"""Layers behind the model's, which draft tokens."""
LOCAL_SIZE = "attention.key_length_swa"
"""The head size of layers with a window, where it is another one."""
NEAR = 1e-4
"""Numbers of a file are rounded to float32."""


class ArchitectureFields:
    """The fields of a file's architecture.

    Args:
        name: of the architecture.
        tensors: of the file.
        reads: fields that its family reads beside those that all read.
        varying: sizes that may differ between its layers.
        has_states: some of its layers have a state in the place of attention, and may have 0 KV heads.
        has_gates: the matrix of q has a gate beside each head.

    Raises:
        CheckpointError: one of them is not supported.
    """

    def __init__(
        self,
        metadata: Fields,
        name: str,
        tensors: Mapping[str, TensorInfo],
        reads: Sequence[str] = (),
        varying: Sequence[str] = (),
        *,
        has_states: bool = False,
        has_gates: bool = False,
    ) -> None:
        self._metadata = metadata
        self.name = name
        self.tensors = tensors
        self._varying = varying
        self._has_states, self._has_gates = has_states, has_gates
        self._refuse_unknown(reads)
        if EXPERT_COUNT not in reads:
            self._only(EXPERT_COUNT, (0, None), "0")
        if "attention.sliding_window" not in reads:
            self._only("attention.sliding_window", (0, None), "0")
        self._only("attention.causal", (True, None), "true")
        self.heads = self.integer("attention.head_count")
        self.kv_heads = self.integer("attention.head_count_kv", self.heads)
        self.head_dim = self.full_head_dim = self._head_dim(reads)
        self._first = 0
        if has_states:
            blocks = range(self.integer("block_count"))
            self._first = next((n for n in blocks if f"blk.{n}.attn_q.weight" in tensors), 0)
        if LOCAL_SIZE in reads:
            self.head_dim, self._first = self.integer(LOCAL_SIZE), self._first_sliding()
        for field in ("rope.dimension_count", "attention.value_length"):
            if field in reads:
                continue
            self._only(field, (self.head_dim, None), f"the head size, {self.head_dim}")
        scale, usual = self.number("attention.scale", 0.0), self.head_dim**-0.5
        if scale and abs(scale / usual - 1) > NEAR and "attention.scale" not in reads:
            raise self.error("attention.scale", f"{usual:g}, that of heads of {self.head_dim}")

    @property
    def layers(self) -> int:
        """The model's layers, without those that draft."""
        return self.integer("block_count") - self.count(DRAFTING)

    @property
    def pooling(self) -> int:
        """How embeddings are made, as `pooling.py` numbers it."""
        kind = self._metadata.get(f"{self.name}.pooling_type")
        if kind is not None and kind not in POOLINGS:
            raise self.error("pooling_type", f"one of {', '.join(map(str, POOLINGS))}")
        return 0 if kind is None else self._metadata.integer(f"{self.name}.pooling_type", minimum=0)

    def check(self, model: GGUFModel) -> None:
        """Check that the tensors have these sizes, before anything is made in them."""
        layers, width = self.integer("block_count"), self.integer("embedding_length")
        if layers > len(model.tensors):
            raise self.error("block_count", f"at most {len(model.tensors)}, the tensors' number")
        kv_heads = self.integers("attention.head_count_kv")[self._first] if self._varying else self.kv_heads
        of_q = self.heads * self.head_dim * (2 if self._has_gates else 1)
        parts = {"attn_q": of_q, "attn_k": kv_heads * self.head_dim}
        if "blk.0.attn_qkv.weight" in model.tensors and not self._has_states:
            parts = {"attn_qkv": (self.heads + 2 * self.kv_heads) * self.head_dim}
        rows_of = {"token_embd": None, **{f"blk.{self._first}.{part}": rows for part, rows in parts.items()}}
        if experts := self.count(EXPERT_COUNT):
            routers = (n for n in range(layers) if f"blk.{n}.ffn_gate_inp.weight" in model.tensors)
            rows_of[f"blk.{next(routers, self._first)}.ffn_gate_inp"] = experts
        for part, rows in rows_of.items():
            found = model.tensors.get(f"{part}.weight")
            shape = (found.shape[0] if rows is None and found is not None else rows, width)
            if found is None or found.shape != shape:
                has = "is missing" if found is None else f"has the shape {list(found.shape)}"
                raise CheckpointError(
                    f"{model.name}: tensor {part}.weight {has}, and the sizes of {self.name} ask for {list(shape)}"
                )

    def integer(self, field: str, default: int | None = None) -> int:
        """Return a size: of all layers, if there is one for each; of the first one, if they may differ."""
        key = f"{self.name}.{field}"
        value = self._metadata.get(key)
        if not isinstance(value, Items):
            return self._metadata.integer(key, default)
        if field == "block_count":
            raise self._metadata.error(key, "an integer of at least 1")
        each = self.integers(field)
        if self._may_be_zero(field):
            each = [one for one in each if one] or [0]
        if len(set(each)) != 1 and field not in self._varying:
            raise CheckpointError(
                f"{self._metadata.source}: {key} has {min(each)} to {max(each)}: layers that differ are not supported"
            )
        return each[0]

    def _may_be_zero(self, field: str) -> bool:
        """Return whether layers may have 0 of something, as they have no attention, or no MLP."""
        return self._has_states and field in (KV_HEADS, "feed_forward_length")

    def integers(self, field: str) -> list[int]:
        """Return a size of each layer, which a file gives for each or once."""
        key, layers = f"{self.name}.{field}", self.integer("block_count")
        value = self._metadata.get(key)
        if not isinstance(value, Items):
            return [self._metadata.integer(key)] * layers
        if value.holds_texts:
            raise self._metadata.error(key, "an integer of at least 1")
        each = value.numbers()
        if len(each) != layers:
            raise self._metadata.error(key, f"a number, or one for each of {layers} layers")
        least = 0 if self._may_be_zero(field) else 1
        return [Fields({key: one}, self._metadata.source).integer(key, minimum=least) for one in each]

    def count(self, field: str) -> int:
        """Return a number of things; of a file that does not give it 0."""
        return self._metadata.integer(f"{self.name}.{field}", 0, minimum=0)

    def kinds(self, period: int) -> list[str]:
        """Return the kinds of the layers: sliding, apart from the last of each so many, or as the file lists them.

        Args:
            period: if the file does not say it.
        """
        field, layers = "attention.sliding_window_pattern", self.integer("block_count")
        given = self._metadata.get(f"{self.name}.{field}")
        if isinstance(given, Items):
            flags = None if given.holds_texts else given.numbers()
            if flags is None or len(flags) != layers:
                raise self.error(field, f"one for each of {layers} layers")
            return [SLIDING if flag else FULL for flag in flags]
        period = self.integer(field, period)
        return [SLIDING if (layer + 1) % period else FULL for layer in range(layers)]

    def flag(self, field: str, *, default: bool) -> bool:
        return self._metadata.flag(f"{self.name}.{field}", default)

    def flags(self, field: str) -> list[bool]:
        """Return a flag for each layer; of a file that does not give them none."""
        given, layers = self._metadata.get(f"{self.name}.{field}"), self.integer("block_count")
        if given is None:
            return []
        flags = list(given.numbers()) if isinstance(given, Items) and not given.holds_texts else []
        if len(flags) != layers:
            raise self.error(field, f"one for each of {layers} layers")
        return [bool(flag) for flag in flags]

    def number(self, field: str, default: float) -> float:
        """Return a finite number of at least 0."""
        if self._metadata.get(f"{self.name}.{field}") in (0, None):
            return default
        return self._metadata.number(f"{self.name}.{field}")

    def text(self, field: str, default: str) -> str:
        return self._metadata.text(f"{self.name}.{field}", default)

    def error(self, field: str, accepted: str) -> CheckpointError:
        return self._metadata.error(f"{self.name}.{field}", accepted)

    def _refuse_unknown(self, reads: Sequence[str]) -> None:
        prefix = f"{self.name}."
        for key in self._metadata:
            field = key.removeprefix(prefix)
            if key == field or field in (*READ, *reads):
                continue
            value = self._metadata.get(key)
            neutral = WITHOUT_EFFECT.get(field, ())
            if not isinstance(value, int | float) or not any(abs(value - each) <= NEAR * each for each in neutral):
                raise CheckpointError(f"{self._metadata.source}: {key} = {value!r:.100} is not supported")

    def _head_dim(self, reads: Sequence[str]) -> int:
        for field in ("attention.key_length", "rope.dimension_count"):
            if field not in reads and self._metadata.get(f"{self.name}.{field}") is not None:
                return self.integer(field)
        return self.integer("embedding_length") // self.heads

    def _first_sliding(self) -> int:
        kinds = self.kinds(6)
        if SLIDING not in kinds:
            raise self.error("attention.sliding_window_pattern", "a list with a layer that has a window")
        return kinds.index(SLIDING)

    def _only(self, field: str, accepted: tuple[Any, ...], words: str) -> None:
        if self._metadata.get(f"{self.name}.{field}") not in accepted:
            raise self.error(field, words)
