"""Heads that look at fixed distances when the training begins.

To find a fact, a layer must see which words came just before each token, and which words stand around it. Heads that do
so appear late in training, and little is learned before. Biases of queries and keys give such heads from the beginning:
rotary positions turn the two by angles that grow with their distance, and the score is the sum of the cosines. Some
heads look one token so far back, others at all of the last tokens alike, which is a bag of the words of a sentence.
Training is free to change them.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from training.model import Qwen3, Shape, rotary

HEADS = (
    (range(1, 2), range(2, 3), range(3, 4), range(4, 5), range(8), range(20)),
    (range(1, 2), range(2, 3), range(8), range(20), range(32)),
)
"""How many tokens back the first heads of the first layers look."""
FARTHEST = 4096
"""The heads are made for texts of so many tokens."""
PENALTY = 3e-4
"""Of the squared scores: greater ones would leave training less to change."""
ITERATIONS = 400
SHARPNESS = 1.35
"""The gain of the norms of queries and keys in these layers: the greatest score is its square times sqrt(head_dim)."""
CONTENT = 0.3
"""What remains of the weights of these heads, so that the tokens themselves hardly count."""


@torch.no_grad()
def initialise_offsets(model: Qwen3) -> None:
    """Set the biases and scale the weights of the heads of `HEADS`; the model's layers need biases."""
    biases = {distances: offset_biases(model.shape, distances) for distances in {*chain(*HEADS)}}
    for layer, heads in zip(model.layers, HEADS, strict=False):
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            norm.weight.fill_(SHARPNESS)
        for head, distances in enumerate(heads):
            rows = slice(head * model.shape.head_dim, (head + 1) * model.shape.head_dim)
            query, key = biases[distances]
            for projection, bias in ((layer.self_attn.q_proj, query), (layer.self_attn.k_proj, key)):
                projection.weight[rows] *= CONTENT
                projection.bias[rows] = bias


def offset_biases(shape: Shape, distances: range) -> tuple[Tensor, Tensor]:
    """Return the biases of a query and of a key, [head_dim] each, that look so many tokens back.

    Their sizes are those of the fit, of which the norms of queries and keys leave the direction alone.
    """
    cosines, sines = fitted(shape, distances).chunk(2)
    size = (cosines.square() + sines.square()).sqrt().clamp_min(1e-9)
    key = torch.cat((size.sqrt(), torch.zeros_like(size)))
    query = torch.cat((cosines, -sines)) / size.sqrt().repeat(2)
    return query, key


@torch.enable_grad()
def fitted(shape: Shape, distances: range) -> Tensor:
    """Return the weights of the cosines and sines of a score, [head_dim], by the least cross-entropy of attention."""
    wanted = torch.zeros(FARTHEST)
    wanted[distances.start : distances.stop] = 1 / len(distances)
    waves = score_waves(shape)
    weights = torch.zeros(shape.head_dim, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        attended = torch.log_softmax(waves @ weights, dim=0)
        total = PENALTY * weights.square().sum() - (wanted * attended).sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)
    return weights.detach()


def score_waves(shape: Shape) -> Tensor:
    """Return what each pair of a head adds to the score at each distance, [FARTHEST, head_dim]: cosine and sine."""
    cosines, sines = (wave[:, : shape.head_dim // 2] for wave in rotary(shape, FARTHEST))
    return torch.cat((cosines, sines), dim=1) * shape.head_dim**-0.5
