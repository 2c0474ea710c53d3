"""Heads that look a fixed distance back when the training begins.

To find a fact, a layer must see which words came just before each token. Heads that look one, two or three tokens back
appear late in training, and little is learned before. Biases of queries and keys give such heads from the beginning:
rotary positions turn the two by an angle that grows with their distance, and the score is greatest where the angles
cancel out. Training is free to change them.
"""

from __future__ import annotations

import torch

from training.model import Llama, Shape

OFFSETS = ((1, 2, 3, 4, 5, 6), (1, 2, 4, 8))
"""Of the first heads of the first layers, in tokens."""
FARTHEST = 40
GAP = 4.0
"""The score at the offset is greater by so much than that at any other distance up to the farthest one."""
SLOWEST = 0.06
"""Pairs that turn by less than this for a token are left out: they hardly tell one distance from the next."""
CONTENT = 0.3
"""What remains of the weights of these heads, so that the tokens themselves hardly count."""


@torch.no_grad()
def initialise_offsets(model: Llama) -> None:
    """Set the biases and scale the weights of the heads of `OFFSETS`; the model's layers need biases."""
    for layer, offsets in zip(model.layers, OFFSETS, strict=False):
        for head, offset in enumerate(offsets):
            rows = slice(head * model.shape.head_dim, (head + 1) * model.shape.head_dim)
            query, key = offset_biases(model.shape, offset)
            for projection, bias in ((layer.self_attn.q_proj, query), (layer.self_attn.k_proj, key)):
                projection.weight[rows] *= CONTENT
                projection.bias[rows] = bias


def offset_biases(shape: Shape, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the biases of a query and of a key, [head_dim] each, that look `offset` tokens back."""
    angles = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim)
    used = (angles > SLOWEST).float()
    scores = torch.stack([(used * (angles * (distance - offset)).cos()).sum() for distance in range(FARTHEST)])
    scores = scores * shape.head_dim**-0.5
    best = scores[offset].item()
    scores[offset] = float("-inf")
    size = (GAP / (best - scores.max().item())) ** 0.5
    key = torch.cat((size * used, torch.zeros_like(used)))
    query = torch.cat((size * used * (angles * offset).cos(), -size * used * (angles * offset).sin()))
    return query, key
