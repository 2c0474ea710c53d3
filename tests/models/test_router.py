"""The ten ways in which families choose experts, against transformers' own modules, and what holds for all of them."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

import tiny_models
from sluice.models.router import Router, Score

EXPERTS, CHOSEN, HIDDEN, TOKENS = 16, 4, 24, 200
SIZES: dict[str, Any] = {
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "top_k_experts": CHOSEN,
    "hidden_size": HIDDEN,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "routed_scaling_factor": 2.5,
    "use_expert_bias": True,
    "n_group": 4,
    "topk_group": 2,
    "topk_method": "greedy",
}
COMMON: dict[str, Any] = {"experts": EXPERTS, "chosen": CHOSEN}
GROUPED: dict[str, Any] = {"groups": 4, "chosen_groups": 2, "scale": 2.5}
V3: dict[str, Any] = {"score": Score.SIGMOID, "has_select_bias": True, "group_score": 2, "renorm_eps": 1e-20, **GROUPED}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen3-moe": ("qwen3_moe.Qwen3MoeTopKRouter", {"norm_topk_prob": False}, {}),
    "qwen3-moe, normed": ("qwen3_moe.Qwen3MoeTopKRouter", {}, {"renorm_eps": 0.0}),
    "qwen3-next": ("qwen3_next.Qwen3NextTopKRouter", {}, {"renorm_eps": 0.0}),
    "qwen3.5-moe": ("qwen3_5_moe.Qwen3_5MoeTopKRouter", {}, {"renorm_eps": 0.0}),
    "mixtral": ("mixtral.MixtralTopKRouter", {}, {"renorm_eps": 0.0}),
    "gpt-oss": ("gpt_oss.GptOssTopKRouter", {}, {"chooses_first": True, "has_bias": True}),
    "granite": ("granitemoe.GraniteMoeTopKRouter", {}, {"chooses_first": True}),
    "lfm2-moe": (
        "lfm2_moe.Lfm2MoeTopKRouter",
        {},
        {"score": Score.SIGMOID, "has_select_bias": True, "renorm_eps": 1e-6, "scale": 2.5},
    ),
    "deepseek-v2": ("deepseek_v2.DeepseekV2TopkRouter", {}, {"scale": 2.5, "is_wide": True}),
    "deepseek-v2, groups": (
        "deepseek_v2.DeepseekV2TopkRouter",
        {"topk_method": "group_limited_greedy"},
        {"is_wide": True, **GROUPED},
    ),
    "deepseek-v3": ("deepseek_v3.DeepseekV3TopkRouter", {}, {"is_wide": True, **V3}),
    "gemma4": ("gemma4.Gemma4TextRouter", {}, {"renorm_eps": 0.0}),
}
"""Name -> transformers' router, which is imported when it is needed, its config, and the options of ours."""


def theirs(name: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Return the logits that a router with random weights computes, their select bias, and its choice."""
    kind, fields, options = CASES[name]
    family, _, router = kind.partition(".")
    modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    module = getattr(modeling, router)(SimpleNamespace(**SIZES | fields)).double()
    draw = torch.Generator().manual_seed(1)
    select_bias = torch.randn(EXPERTS, generator=draw) / 4 if options.get("has_select_bias") else None
    with tiny_models.exact(torch.float64), torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw).double())
        if name == "deepseek-v3":
            assert select_bias is not None
            module.e_score_correction_bias = select_bias
        found = module(x, select_bias) if name == "lfm2-moe" else module(x)
    weights, ids = found[1:]
    if name == "gemma4":
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        logits = functional.linear(normed * module.scale * HIDDEN**-0.5, module.proj.weight)
        weights = weights / module.per_expert_scale[ids]
    else:
        logits = found[0] if name != "mixtral" else functional.linear(x, module.weight)
    return logits, weights, ids, select_bias


@pytest.mark.parametrize("name", CASES)
def test_equals_transformers(name: str) -> None:
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(0)).double()
    logits, weights, ids, select_bias = theirs(name, x)
    assert ids is not None
    ours = Router(**COMMON, **CASES[name][2]).choose(logits, select_bias)
    order, their_order = ours.ids.argsort(1), ids.argsort(1)
    assert torch.equal(ours.ids.gather(1, order), ids.gather(1, their_order))
    found, expected = ours.weights.gather(1, order), weights.gather(1, their_order)
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-12, atol=1e-12)
    assert len(ids.unique()) == EXPERTS


@pytest.mark.parametrize("name", CASES)
def test_the_lower_of_equal_experts_is_chosen(name: str) -> None:
    router = Router(**COMMON, **CASES[name][2])
    expected = [[0, 1, 2, 3], [5, 11, 0, 1], [1, 2, 3, 4]]
    if router.groups > 1:  # the best two of four groups
        expected[1] = [5, 11, 4, 6]
    logits = torch.zeros(3, EXPERTS)
    logits[1, 5] = logits[1, 11] = 1.0
    logits[2, 0] = -1.0
    bias = torch.zeros(EXPERTS) if router.has_select_bias else None
    assert router.choose(logits, bias).ids.tolist() == expected


@pytest.mark.parametrize("name", CASES)
def test_a_choice_depends_on_no_other_token(name: str) -> None:
    router = Router(**COMMON, **CASES[name][2])
    draw = torch.Generator().manual_seed(2)
    logits = torch.randn(TOKENS, EXPERTS, generator=draw).bfloat16().float()
    bias = torch.randn(EXPERTS, generator=draw) if router.has_select_bias else None
    whole = router.choose(logits, bias)
    for rows in (range(1), range(5, 12), range(TOKENS - 3, TOKENS)):
        part = router.choose(logits[rows.start : rows.stop], bias)
        assert torch.equal(part.ids, whole.ids[rows.start : rows.stop])
        assert torch.equal(part.weights, whole.weights[rows.start : rows.stop])


def test_weights_have_no_select_bias() -> None:
    router = Router(**COMMON, score=Score.SIGMOID, has_select_bias=True)
    bias = torch.zeros(EXPERTS)
    bias[9] = 100.0
    ids, weights = router.choose(torch.zeros(1, EXPERTS), bias)
    assert ids.tolist() == [[9, 0, 1, 2]]
    assert weights.tolist() == [[0.5] * CHOSEN]
