"""What all keys of a head have in common because of their bias: pages of int8 hold them without it.

The bias of some models has channels that are far larger than what a text adds to them (Qwen2). A softmax does not
change if the same vector is subtracted from all keys. Positions rotate the bias, but its large channels are in the
pairs that turn slowest, which hardly turn in some thousand tokens. So what is subtracted is the mean of the rotated
bias over the first positions: nearly the bias in those pairs, and nearly nothing in those that turn often.
"""

from __future__ import annotations

from functools import cache

import torch

from sluice.models.rope import Rope

POSITIONS = range(0, 8192, 16)
"""Over which the mean is taken. Behind them the difference grows slowly with each pair's angle."""


def key_offset(bias: torch.Tensor, rope: Rope | None, head_dim: int) -> torch.Tensor:
    """Return what to subtract from the keys, after their rotation.

    Args:
        bias: [kv_heads * head_dim] of the layer that computes the keys; pair i of a head is elements i and
            i + head_dim / 2.
        rope: None: keys are not rotated.

    Returns:
        [kv_heads, head_dim] float32, on the CPU.
    """
    of_heads = bias.detach().cpu().double().view(-1, head_dim)
    if rope is None:
        return of_heads.float()
    cos, sin = _mean_angles(rope, head_dim)
    first, second = of_heads.chunk(2, 1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), 1).float()


@cache
def _mean_angles(rope: Rope, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean cosine and sine of each pair, [head_dim / 2] float64."""
    positions = torch.tensor(POSITIONS, dtype=torch.float64, device="cpu")
    angles = positions[:, None] * rope.inverse_frequencies(head_dim, torch.float64)
    return angles.cos().mean(0) * rope.attention_factor, angles.sin().mean(0) * rope.attention_factor
