"""Routers by the compiled kernels against their definition in torch."""

from __future__ import annotations

import pytest
import torch

from compiled import library
from sluice.kernels.cpu.library import Kernels
from sluice.models.native_router import NativeRouter, native_router
from sluice.models.router import Router, Score

LIBRARY = library()
ROUTERS = {
    "softmax": Router(experts=60, chosen=4),
    "renormed": Router(experts=60, chosen=8, renorm_eps=0.0, scale=2.5),
    "chooses first": Router(experts=32, chosen=4, chooses_first=True),
    "sigmoid": Router(experts=9, chosen=9, score=Score.SIGMOID, renorm_eps=1e-6, has_select_bias=True),
}


def logits_of(router: Router, rows: int) -> torch.Tensor:
    return torch.randn(rows, router.experts, generator=torch.Generator().manual_seed(rows)) * 3


@pytest.mark.parametrize("name", ROUTERS)
@torch.inference_mode()
def test_choices_are_those_of_the_definition(name: str) -> None:
    """The bias counts in the weights, weights of all experts are divided by, or rows are exchanged between threads."""
    router = ROUTERS[name]
    chooser = native_router(Kernels(LIBRARY, LIBRARY.best(), 2), router)
    assert isinstance(chooser, NativeRouter)
    bias = torch.linspace(1, -1, router.experts) if router.has_select_bias else None
    for rows in (0, 1, 5, 500):
        logits = logits_of(router, rows)
        got, wanted = chooser.choose(logits, bias), router.choose(logits, bias)
        assert torch.equal(got.ids, wanted.ids)
        torch.testing.assert_close(got.weights, wanted.weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ROUTERS)
@torch.inference_mode()
def test_of_equal_experts_the_lower_number_is_chosen(name: str) -> None:
    """A choice that depends on the backend."""
    router = ROUTERS[name]
    chooser = native_router(Kernels(LIBRARY, LIBRARY.best(), 1), router)
    bias = torch.zeros(router.experts) if router.has_select_bias else None
    logits = torch.zeros(3, router.experts)
    logits[1, ::2], logits[2] = 1.0, torch.nan
    assert chooser.choose(logits, bias).ids[0].tolist() == [*range(router.chosen)]
    assert torch.equal(chooser.choose(logits[:2], bias).ids, router.choose(logits[:2], bias).ids)
    broken = chooser.choose(logits, bias)
    assert broken.ids[2].sort().values.unique().numel() == router.chosen
    assert broken.weights[2].isnan().all()


@torch.inference_mode()
def test_torch_computes_groups_and_other_dtypes() -> None:
    """A kernel that ignores the groups, or reads bfloat16 as float32."""
    kernels = Kernels(LIBRARY, LIBRARY.best(), 1)
    grouped = Router(experts=8, chosen=2, groups=4, chosen_groups=1, group_score=2)
    assert native_router(kernels, grouped) is grouped
    router = ROUTERS["renormed"]
    logits = logits_of(router, 4).bfloat16()
    got, wanted = native_router(kernels, router).choose(logits), router.choose(logits)
    assert torch.equal(got.ids, wanted.ids)
    assert torch.equal(got.weights, wanted.weights)
