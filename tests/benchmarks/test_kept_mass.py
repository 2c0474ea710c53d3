"""The share of the attention that policies keep."""

from __future__ import annotations

import torch

from benchmarks.long_context.kept_mass import KeptMass, page_weights
from sluice.runner.offload.sparse import Window


def test_weights_of_pages_are_those_of_their_keys() -> None:
    """Heads that are counted with another head's keys: 3 query heads of each KV head, token for token."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 6, 8, generator=generator)
    k = torch.randn(5, 4, 2, 8, generator=generator)
    found = page_weights(q, k)[0]
    for head in range(6):
        weights = torch.softmax(k[:, :, head // 3].flatten(0, 1) @ q[0, head] / 8**0.5, 0)
        torch.testing.assert_close(found[head], weights.view(5, 4).sum(1))


def test_the_kept_share_is_that_of_the_selected_pages() -> None:
    """A policy that looks better than it is: page 2 has all of the weight, and a window leaves it out."""
    policy, k, q = KeptMass(4), torch.zeros(6, 4, 1, 8), torch.zeros(1, 2, 8)
    policy.policies = {"window": Window(1, 1), "three": Window(1, 2)}
    k[2, 1, 0, 0], q[0, 0, 0] = 1e3, 1e3
    policy.pages_left(0, 0, range(3), k[:3])
    policy.pages_left(0, 0, range(3, 6), k[3:])
    assert list(policy.select(0, 0, 6, q)) == list(range(6))
    ((_, (found, other)),) = policy.shares()["window"].values()
    assert found == 0
    assert abs(other - 2 / 6) < 1e-6  # the other head sees all keys alike
    assert abs(policy.shares()["three"][0].heads[1] - 3 / 6) < 1e-6
