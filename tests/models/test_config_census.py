"""Every field that transformers has in a family's config is read, refused, or known to leave the numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pytest
import torch
import transformers

import tiny_families
import tiny_models
from sluice.models.checkpoint import NEUTRAL, CheckpointConfig, Fields
from sluice.models.decoder import Decoder
from sluice.models.model_class import model_class

WITHOUT_EFFECT = frozenset(
    (
        *("transformers_version", "architectures", "model_type", "dtype", "return_dict", "output_hidden_states"),
        *("output_attentions", "id2label", "label2id", "problem_type", "chunk_size_feed_forward", "use_cache"),
        *(
            "initializer_range",
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "sep_token_id",
            "decoder_start_token_id",
        ),
        *("attention_dropout", "resid_pdrop", "embd_pdrop", "hidden_dropout", "default_theta", "_name_or_path"),
        *("router_aux_loss_coef", "output_router_logits", "router_jitter_noise"),
        *("attn_pdrop", "summary_use_proj", "summary_first_dropout", "summary_proj_to_labels", "summary_type"),
        *(
            "summary_activation",
            "pretraining_tp",
            "_sliding_window_pattern",
            "tokenizer_class",
            "task_specific_params",
            "prefix",
        ),
    )
)
"""Of training, of other programs, or read from elsewhere: ids of tokens come with the generation config."""


def of_model(make: Callable[[], transformers.PreTrainedModel]) -> tuple[str, transformers.PreTrainedConfig]:
    model = make()
    return type(model).__name__, model.config


CHUNKS = {"mamba_chunk_size": "it divides what one kernel computes at once"}
NEMOTRON = {
    **CHUNKS,
    **dict.fromkeys(("chunk_size", "use_mamba_kernels", "num_logits_to_keep"), "it changes no numbers"),
    **dict.fromkeys(("time_step_min", "time_step_max", "time_step_floor"), "they say how weights begin"),
    **dict.fromkeys(("expand", "mamba_proj_bias"), "transformers reads other fields in their place"),
    **dict.fromkeys(("num_nextn_predict_layers", "mtp_layers_block_type"), "layers that draft are skipped"),
    "rope_parameters": "nothing is rotated",
    "rescale_prenorm_residual": "it says how weights begin",
    "mamba_ssm_cache_dtype": "states are in float32",
    "moe_shared_expert_overlap": "it says when an MLP is computed",
}
OF_EXPERTS = (
    *("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size"),
    *("moe_latent_size", "num_experts_per_tok", "routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob"),
)
UNUSED = {
    "gemma3": {"attn_logit_softcapping": "it caps no scores, although its configs may name a cap"},
    "smollm3": {
        "no_rope_layer_interval": "it says what no_rope_layers does, which is there",
        "sliding_window": "without use_sliding_window there is none",
    },
    "qwen2": {"sliding_window": "without use_sliding_window there is none"},
    "qwen3": {"sliding_window": "without use_sliding_window there is none"},
    "qwen3-moe": {"sliding_window": "without use_sliding_window there is none"},
    "gpt2": {"reorder_and_upcast_attn": "scores are computed in float32 in any case"},
    "granite-hybrid": CHUNKS,
    "nemotron-h": NEMOTRON | dict.fromkeys(OF_EXPERTS, "it has no experts"),
    "nemotron-3": NEMOTRON | {"intermediate_size": "it has no MLPs"},
    "granite-hybrid-dense": CHUNKS | {"num_experts_per_tok": "it has no experts"},
    "phi3": {"original_max_position_embeddings": "it is read with a rotation for long texts only"},
}
"""Family -> fields that change nothing in it, and why."""


class Recorded(Mapping[str, object]):
    """Values that note which of them are asked for."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> object:
        self.asked.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def with_defaults(self, values: Mapping[str, object]) -> Recorded:
        """Return values with further ones, which note in the same place."""
        given = Recorded({**values, **self._values})
        given.asked = self.asked
        return given


class RecordedFields(Fields):
    """Fields whose copies with other values note what is asked for, too."""

    def __init__(self, values: Recorded) -> None:
        super().__init__(values, "config.json")
        self._recorded = values

    def with_defaults(self, values: Mapping[str, object]) -> Fields:
        return RecordedFields(self._recorded.with_defaults(values))

    def replaced(self, values: Mapping[str, object], by: str) -> Fields:
        return self


CONFIGS: dict[str, Callable[[], tuple[str, transformers.PreTrainedConfig]]] = {
    **{name: partial(of_model, make) for name, make in (tiny_models.FAMILIES | tiny_families.FAMILIES).items()},
    "qwen3-vl": lambda: ("Qwen3VLTextForCausalLM", transformers.Qwen3VLTextConfig(**tiny_models.sizes(), head_dim=8)),
}


@pytest.mark.parametrize("family", CONFIGS)
def test_every_field_is_known(family: str) -> None:
    architecture, config = CONFIGS[family]()
    recorded = Recorded(config.to_dict())
    decoder = model_class(architecture)
    assert issubclass(decoder, Decoder)
    decoder.read(CheckpointConfig(architecture, RecordedFields(recorded), None, ()), torch.float64)
    known = recorded.asked | NEUTRAL.keys() | WITHOUT_EFFECT | UNUSED.get(family, {}).keys()
    assert {*recorded} - known == set()
