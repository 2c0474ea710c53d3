"""Routers by the compiled kernels: one call instead of some eight operations of torch in each layer."""

from __future__ import annotations

import torch

from sluice.kernels.cpu.abi import RouteCall
from sluice.kernels.cpu.library import Kernels
from sluice.models.router import Choice, Chooser, Router, Score

SOFTMAX, SIGMOID, CHOSEN_SOFTMAX = range(3)
"""Numbers in `kernels/cpu/abi.h`."""


def native_router(kernels: Kernels, router: Router) -> Chooser:
    """Return what chooses as a router does; the router itself if it has groups, which the kernel has not."""
    return router if router.groups > 1 else NativeRouter(kernels, router)


class NativeRouter:
    """A router without groups, for logits in float32; torch computes others."""

    def __init__(self, kernels: Kernels, router: Router) -> None:
        self._kernels, self._router = kernels, router
        score = SOFTMAX if router.score is Score.SOFTMAX else SIGMOID
        self._call = RouteCall(
            experts=router.experts,
            choices=router.chosen,
            score=CHOSEN_SOFTMAX if router.chooses_first else score,
            is_renormed=router.renorm_eps is not None,
            eps=router.renorm_eps or 0.0,
            scale=router.scale,
        )

    def choose(self, logits: torch.Tensor, select_bias: torch.Tensor | None = None) -> Choice:
        """Choose the experts of each token, as `Router.choose`."""
        if logits.dtype != torch.float32 or (select_bias is not None and select_bias.dtype != torch.float32):
            return self._router.choose(logits, select_bias)
        logits, rows = logits.contiguous(), len(logits)
        size = (rows, self._router.chosen)
        ids, weights = torch.empty(size, dtype=torch.int64), torch.empty(size, dtype=torch.float32)
        call = self._call
        call.logits, call.rows = logits.data_ptr(), rows
        call.select_bias = None if select_bias is None else select_bias.data_ptr()
        call.ids, call.weights = ids.data_ptr(), weights.data_ptr()
        self._kernels.route(call)
        return Choice(ids, weights)
