"""Every field that transformers has in a family's config is read, refused, or known to leave the numbers alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import torch

import tiny_families
from sluice.models.checkpoint import NEUTRAL, CheckpointConfig, Fields
from sluice.models.decoder import Decoder
from sluice.models.native import model_class

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
        *("pretraining_tp", "_sliding_window_pattern", "tokenizer_class", "task_specific_params", "prefix"),
    )
)
"""Of training, of other programs, or read from elsewhere: ids of tokens come with the generation config."""
UNUSED = {
    "gemma3": {"attn_logit_softcapping": "it caps no scores, although its configs may name a cap"},
    "smollm3": {
        "no_rope_layer_interval": "it says what no_rope_layers does, which is there",
        "sliding_window": "without use_sliding_window there is none",
    },
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


class RecordedFields(Fields):
    """Fields whose copies with other values note what is asked for, too."""

    def __init__(self, values: Recorded) -> None:
        super().__init__(values, "config.json")
        self._recorded = values

    def with_defaults(self, values: Mapping[str, object]) -> Fields:
        return self

    def replaced(self, values: Mapping[str, object], by: str) -> Fields:
        return self


@pytest.mark.parametrize("family", tiny_families.FAMILIES)
def test_every_field_is_known(family: str) -> None:
    config = tiny_families.FAMILIES[family]().config
    recorded = Recorded(config.to_dict())
    architecture = type(tiny_families.FAMILIES[family]()).__name__
    decoder = model_class(architecture)
    assert issubclass(decoder, Decoder)
    decoder.read(CheckpointConfig(architecture, RecordedFields(recorded), None, ()), torch.float64)
    known = recorded.asked | NEUTRAL.keys() | WITHOUT_EFFECT | UNUSED.get(family, {}).keys()
    assert {*recorded} - known == set()
