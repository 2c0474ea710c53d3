"""Names of stored tensors that cannot change what a language model computes, and why."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from sluice.models.base import WeightRules
from sluice.models.checkpoint import Fields

LOGGER = logging.getLogger("sluice.models")
MODULES: Mapping[str, str] = {
    **dict.fromkeys(("v_head", "value_head", "reward_head"), "a head for values"),
    **dict.fromkeys(("score", "classifier"), "a head for classes"),
    **dict.fromkeys(("mtp", "mtp_block", "mtp_layers"), "a layer that drafts tokens"),
    **dict.fromkeys(("vision_tower", "vision_model", "visual", "embed_vision"), "a part for images"),
    "multi_modal_projector": "a part for images",
    **dict.fromkeys(("audio_tower", "audio_model", "embed_audio"), "a part for sound"),
}
"""Outermost module in the checkpoint -> what it is. None of them is in a text model's way from tokens to logits."""
KV = ("k_scale", "v_scale", "q_scale", "prob_scale", "k_zero_point", "v_zero_point")
"""Parameters for a quantised KV cache, which is in the model's dtype here, or in that of `--kv-cache-dtype`."""
ACTIVATIONS = ("input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point")
"""Parameters for quantised activations, or keys and values, which are computed in the model's dtype here."""


class Unused:
    """Tells the tensors that no model uses from those that a model with this config lacks.

    Args:
        fields: of `config.json`.
        rules: of the model.
    """

    def __init__(self, fields: Fields, rules: WeightRules) -> None:
        self._rules = rules
        self._drafting: Iterable[int] = ()
        drafting = fields.get("num_nextn_predict_layers")
        if isinstance(drafting, int) and drafting > 0:
            first = fields.integer("num_hidden_layers", 0, minimum=0)
            self._drafting = range(first, first + drafting)
        self._found: dict[str, list[str]] = {}

    def skips(self, name: str) -> bool:
        """Return whether a tensor that is no parameter of the model cannot matter, and note it."""
        reason = self._reason(name)
        if reason is not None:
            self._found.setdefault(reason, []).append(name)
        return reason is not None

    def log(self) -> None:
        """Write a line on the tensors that were skipped."""
        for reason, names in self._found.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            LOGGER.warning("the tensor %s%s is not used: %s", names[0], more, reason)

    def _reason(self, name: str) -> str | None:
        if name.rpartition(".")[2] in (*KV, *ACTIVATIONS):
            return "a parameter of quantised activations or of a quantised KV cache"
        outermost, _, rest = self._rules.inner(name).partition(".")
        if outermost == "layers" and any(rest.startswith(f"{layer}.") for layer in self._drafting):
            return MODULES["mtp"]
        return MODULES.get(outermost)
