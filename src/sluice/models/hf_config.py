"""What a checkpoint folder says about itself, in the spelling of transformers 4 and 5.

Here is what every family shares; each family reads the rest of the fields itself. Whatever would change the
numbers and is not supported is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.models.errors import CheckpointError
from sluice.models.fields import Fields

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "quantization_config": (),
    "compression_config": (),
    "partial_rotary_factor": (1, 1.0),
    "rotary_pct": (1, 1.0),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_scale": (1, 1.0),
    "clip_qkv": (),
    "attention_chunk_size": (),
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "use_mrope": (False,),
}
"""Fields that change the numbers in a way no native family supports, with the values that change nothing."""


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """`config.json` and the ends of sequence of `generation_config.json`."""

    architecture: str
    fields: Fields
    dtype: str | None
    """As stored (`float32`, `bfloat16`, ...), None if the config does not say."""
    eos_token_ids: tuple[int, ...]


def read_config(folder: Path) -> CheckpointConfig:
    """Read the configuration of a checkpoint folder, for one of the native families.

    Raises:
        CheckpointError: a file is missing or broken, or the config asks for something unsupported.
    """
    checkpoint = read_any_config(folder)
    refuse_unsupported(checkpoint.fields)
    return checkpoint


def refuse_unsupported(fields: Fields) -> None:
    """
    Raises:
        CheckpointError: a field asks for what no native family computes.
    """
    for name, neutral in NEUTRAL.items():
        value = fields.get(name)
        if value is not None and value not in neutral:
            raise CheckpointError(f"{fields.source}: {name} = {value!r} is not supported")


def read_any_config(folder: Path) -> CheckpointConfig:
    """Read what every implementation needs to know.

    Raises:
        CheckpointError: a file is missing or broken.
    """
    fields = Fields.read(folder / "config.json")
    return CheckpointConfig(
        architecture=_architecture(fields),
        fields=fields,
        dtype=_dtype(fields),
        eos_token_ids=_eos_token_ids(folder, fields),
    )


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
    """Those of `generation_config.json` if it names any, as in transformers, else those of `config.json`."""
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
