"""Reads the configuration of a checkpoint folder, in the spelling of transformers 4 and 5.

`CheckpointConfig` holds what all families share; each family reads the rest of the fields itself. A field that would
change the numbers and is not supported is refused, never ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sluice.models.registry import COMPOSITES

LONGEST_SHOWN = 200
"""Characters of a value in an error."""
LARGEST = (1 << 63) - 1
"""Integer of a config; torch has none above."""
FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers in `layer_types`."""
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
DIMENSIONS = (
    *("hidden_size", "intermediate_size", "vocab_size", "head_dim", "num_attention_heads", "num_key_value_heads"),
    *("n_embd", "n_inner", "n_head"),
)
"""Fields that are a dimension of some tensor, or divide one."""
EXPERTS = ("num_experts", "num_local_experts")
MOST = {**dict.fromkeys(LAYERS, 1 << 10), **dict.fromkeys(EXPERTS, 1 << 12), **dict.fromkeys(DIMENSIONS, 1 << 24)}
"""Many times those of any known model. A model is built in these sizes before its weights are looked at."""


class CheckpointError(ValueError):
    """A checkpoint cannot be served: it is missing or broken, or it requires something that is not supported.

    The message is one line. It names the file, field or tensor, and what would be accepted.
    """


class Fields:
    """A JSON object with typed access to its fields. `null` counts as absent.

    Every accessor raises `CheckpointError` with the field, its value and what would be accepted.
    """

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        self._values = values
        self.source = source

    @classmethod
    def read(cls, path: Path) -> Fields:
        """Read the object in a file.

        Raises:
            CheckpointError: the file is missing, unreadable, or does not hold a JSON object.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{path.parent} holds no {path.name}: not a Hugging Face checkpoint") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        except (RecursionError, ValueError) as error:
            raise CheckpointError(f"{path} is not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} must hold a JSON object, got {type(values).__name__}")
        return cls(values, path.name)

    def replaced(self, values: Mapping[str, object], by: str) -> Fields:
        """Return the object with other values of some fields, which an option gives."""
        return Fields({**self._values, **values}, f"{self.source} with {by}")

    def with_defaults(self, values: Mapping[str, object]) -> Fields:
        """Return the object with values for fields that it does not have; one that is `null` stays so."""
        return Fields({**values, **self._values}, self.source)

    @property
    def values(self) -> Mapping[str, object]:
        """The unchecked values."""
        return self._values

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the fields that are not null."""
        return (name for name, value in self._values.items() if value is not None)

    def __contains__(self, name: str) -> bool:
        """Return whether the field exists, even if it is `null`."""
        return name in self._values

    def get(self, name: str) -> object:
        """Return the unchecked value, None if absent."""
        return self._values.get(name)

    def error(self, name: str, accepted: str) -> CheckpointError:
        """Return the error for a field whose value is not accepted."""
        shown = repr(self._values.get(name))
        shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}..."
        return CheckpointError(f"{self.source}: {name} must be {accepted}, got {shown}")

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1) -> int:
        value = self._given(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= LARGEST:
            raise self.error(name, f"an integer of at least {minimum}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a positive finite number."""
        value = self._given(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(name, "a number above 0")
        if not 0 < value < math.inf:
            raise self.error(name, "a number above 0")
        try:
            return float(value)
        except OverflowError:
            raise self.error(name, "a number above 0") from None

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._given(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._given(name, default)
        if not isinstance(value, str):
            raise self.error(name, "a text")
        return value

    def section(self, name: str) -> Fields | None:
        """Return a nested object, None if absent or empty."""
        value = self._values.get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return Fields(value, f"{self.source}: {name}")

    def _given(self, name: str, default: object) -> object:
        value = self._values.get(name)
        if value is not None:
            return value
        if default is None:
            raise CheckpointError(f"{self.source}: {name} is missing")
        return default


NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "compression_config": (),
    "partial_rotary_factor": (1, 1.0),
    "rotary_pct": (1, 1.0),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (1, 1.0),
    "clip_qkv": (),
    "attention_chunk_size": (),
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "is_causal": (True,),
    "use_bidirectional_attention": (False,),
    "use_mrope": (False,),
}
"""Fields that most native families do not support, with the values at which they have no effect."""


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """`config.json`, and the end-of-sequence ids of `generation_config.json`."""

    architecture: str
    fields: Fields
    dtype: str | None
    """Dtype of the stored weights (`float32`, `bfloat16`, ...), None if the config has none."""
    eos_token_ids: tuple[int, ...]
    media_token_ids: tuple[int, ...] = ()
    """Tokens that stand for images and sound in prompts for the model around a text model."""

    def with_defaults(self, values: Mapping[str, object]) -> CheckpointConfig:
        """Return the configuration with values for fields that it does not have."""
        return replace(self, fields=self.fields.with_defaults(values))


def refuse_unsupported(fields: Fields, but: Sequence[str] = ()) -> None:
    """Refuse fields that most native families do not support.

    Args:
        but: fields that the family supports.

    Raises:
        CheckpointError: a field of `NEUTRAL` has a value that would have an effect.
    """
    for name, neutral in NEUTRAL.items():
        value = None if name in but else fields.get(name)
        if value is not None and value not in neutral:
            raise CheckpointError(f"{fields.source}: {name} = {value!r:.{LONGEST_SHOWN}} is not supported")


def read_config(folder: Path) -> CheckpointConfig:
    """Read the configuration of a checkpoint. `refuse_unsupported` checks it for a native family.

    Raises:
        CheckpointError: a file is missing or broken.
    """
    return parse_config(Fields.read(folder / "config.json"), folder)


def parse_config(fields: Fields, folder: Path) -> CheckpointConfig:
    """Return the configuration that is in the fields of a `config.json`.

    Args:
        folder: with `generation_config.json`, if there is one.

    Raises:
        CheckpointError: a field or a file is broken.
    """
    outer, fields = fields, text_part(fields)
    for name, most in MOST.items():
        value = fields.get(name)
        if isinstance(value, int) and value > most:
            raise fields.error(name, f"an integer of at most {most}")
    return CheckpointConfig(
        architecture=_architecture(fields),
        fields=fields,
        dtype=_dtype(fields),
        eos_token_ids=_eos_token_ids(folder, fields),
        media_token_ids=() if outer is fields else tuple(each for name in MEDIA for each in _token_ids(outer, name)),
    )


MEDIA = ("image_token_id", "image_token_index", "video_token_id", "audio_token_id")
"""Fields with tokens that are replaced by what other parts of the model compute."""
INHERITED = ("eos_token_id", "dtype", "torch_dtype", "quantization_config")
"""Fields that a text model has of the model around it, where its own config has none."""


def text_part(fields: Fields) -> Fields:
    """Return the config of the text model inside one that has further parts; of others, the config itself."""
    architecture, section = _architecture(fields), fields.section("text_config")
    if architecture not in COMPOSITES or section is None:
        return fields
    families = COMPOSITES[architecture]
    kind = section.text("model_type", families[0].model_type)
    family = next((family for family in families if family.model_type == kind), None)
    if family is None:
        accepted = ", ".join(str(family.model_type) for family in families)
        raise section.error("model_type", f"one of {accepted} inside {architecture}")
    outer = {name: fields.get(name) for name in INHERITED if section.get(name) is None and name in fields}
    # The model around it decides, as it has the head.
    tied = {} if fields.get(TIED) is None else {TIED: fields.get(TIED)}
    return Fields({**section.values, **outer, **tied, "architectures": [family.architecture]}, section.source)


TIED = "tie_word_embeddings"


def _architecture(fields: Fields) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise fields.error("architectures", "a list of one name")
    return names[0]


def _dtype(fields: Fields) -> str | None:
    for name in ("dtype", "torch_dtype"):
        if fields.get(name) is not None:
            return fields.text(name).removeprefix("torch.")
    return None


def _eos_token_ids(folder: Path, fields: Fields) -> tuple[int, ...]:
    """Return the ids in `generation_config.json`, as transformers does, or else those in `config.json`."""
    generation = folder / "generation_config.json"
    if generation.exists():
        ids = _token_ids(Fields.read(generation), "eos_token_id")
        if ids:
            return ids
    return _token_ids(fields, "eos_token_id")


def _token_ids(fields: Fields, name: str) -> tuple[int, ...]:
    value = fields.get(name)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
        raise fields.error(name, "a token id or a list of them")
    return tuple(dict.fromkeys(ids))
