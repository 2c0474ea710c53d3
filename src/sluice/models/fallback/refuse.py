"""What transformers cannot run for us, told from the configuration, before any weight is read."""

from __future__ import annotations

from transformers import PreTrainedConfig, PreTrainedModel, __version__
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from sluice.models.errors import CheckpointError
from sluice.models.hf_config import CheckpointConfig

FULL, SLIDING = "full_attention", "sliding_attention"
LAYERS = (FULL, SLIDING)
"""Kinds of layers that paged attention computes."""


def model_type(checkpoint: CheckpointConfig) -> str:
    """The name under which transformers knows the configuration.

    Raises:
        CheckpointError: it knows none, or only with code from the checkpoint.
    """
    fields = checkpoint.fields
    name = fields.text("model_type")
    if name in CONFIG_MAPPING:
        return name
    if "auto_map" in fields:
        raise CheckpointError(
            f"{fields.source}: {checkpoint.architecture} comes with Python code of its own, which is never run"
        )
    raise CheckpointError(
        f"{fields.source}: architecture {checkpoint.architecture!r} is not supported: transformers {__version__} does"
        f" not know the model type {name!r} either"
    )


def model_class(checkpoint: CheckpointConfig, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class of transformers that computes the checkpoint.

    Raises:
        CheckpointError: it is no decoder-only language model whose attention others may compute; says why.
    """
    name = checkpoint.architecture
    if config.is_encoder_decoder:
        raise _refused(name, "it has an encoder")
    if checkpoint.fields.section("quantization_config") is not None:
        raise _refused(name, "its weights are quantised (quantization_config)")
    known = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if known is None or known.__name__ != name:
        other = "" if known is None else f"; that of its configuration is {known.__name__}"
        raise _refused(name, f"it is no causal language model over text{other}")
    if known._is_stateful:
        raise _refused(name, "its layers keep a state between tokens that is no keys and values")
    if not known._supports_attention_backend:
        raise _refused(name, "transformers does not let others compute its attention")
    _check_layers(name, config)
    return known


def _check_layers(name: str, config: PreTrainedConfig) -> None:
    fields = config.to_dict()
    other = sorted({*(fields.get("layer_types") or ())} - {*LAYERS})
    if other:
        raise _refused(name, f"layers of the kind {', '.join(other)} are not supported, only {' and '.join(LAYERS)}")
    if fields.get("attention_chunk_size") is not None:
        raise _refused(name, "attention in chunks (attention_chunk_size) is not supported")


def _refused(name: str, why: str) -> CheckpointError:
    return CheckpointError(f"architecture {name!r} has no native implementation, and transformers cannot run it: {why}")
