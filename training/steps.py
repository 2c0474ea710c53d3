"""One step of training: the loss of a batch that several processes share, its gradients, the optimizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch.nn import functional

from training.model import Qwen3
from training.muon import Muon

LEARNING_RATE = 0.006
EMBEDDING_RATE = 0.004


@dataclass(frozen=True, slots=True)
class Part:
    """Which rows of each batch a worker computes: every `of`-th, beginning with row `index`."""

    index: int
    of: int


WHOLE = Part(0, 1)


def add_up_gradients(model: Qwen3) -> None:
    """Give each worker the sum of all workers' gradients."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    for gradient, summed in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))


def optimizers_of(model: Qwen3, part: Part = WHOLE) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices within the network, AdamW for the embedding and the norms."""
    within = {name: weight.ndim == 2 and "embed" not in name for name, weight in model.named_parameters()}
    matrices = [weight for name, weight in model.named_parameters() if within[name]]
    others = [weight for name, weight in model.named_parameters() if not within[name]]
    return [
        Muon(matrices, LEARNING_RATE, part.index, part.of),
        torch.optim.AdamW(others, lr=EMBEDDING_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def mixed_precision() -> torch.autocast:
    """Compute products in bfloat16, where the processor has instructions for it; without them they are far slower."""
    return torch.autocast("cpu", torch.bfloat16, enabled=torch.cpu.get_capabilities()["avx512_bf16"])


def step_loss(
    forward: Callable[[Tensor], Tensor], model: Qwen3, tokens: Tensor, weights: Tensor, total_weight: Tensor
) -> Tensor:
    """Return the rows' part of a batch's loss, whose targets weigh `total_weight` together."""
    with mixed_precision():
        hidden = forward(tokens[:, :-1])
        wanted = weights[:, 1:].reshape(-1)
        kept = wanted.nonzero()[:, 0]
        logits = model.logits(hidden.reshape(-1, hidden.shape[-1])[kept])
    losses = functional.cross_entropy(logits.float(), tokens[:, 1:].reshape(-1)[kept], reduction="none")
    return (losses * wanted[kept]).sum() / total_weight
