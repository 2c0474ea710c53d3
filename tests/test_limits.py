"""What a request may ask of a loaded model."""

from __future__ import annotations

import pytest

from sluice.limits import LimitError, Limits


@pytest.mark.parametrize("pool", [10, 100])
def test_room_is_what_the_smaller_limit_leaves(pool: int) -> None:
    limits = Limits(vocab_size=5, max_model_len=20, max_total_tokens=pool)
    smaller = min(20, pool)
    assert limits.check([4] * 7, None) == smaller - 7
    assert limits.check([4] * 7, smaller - 7) == smaller - 7
    assert limits.check([0] * (smaller - 1), 1) == 1


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param", "said"),
    [
        ([], 1, "prompt", ["empty"]),
        ([1, 5], 1, "prompt", ["token id 5", "0 to 4"]),
        ([-1, 1], 1, "prompt", ["token id -1", "0 to 4"]),
        ([1] * 20, None, "prompt", ["20 tokens", "context is 20"]),
        ([1] * 15, 6, "max_tokens", ["15", "6", "21", "context is 20"]),
    ],
)
def test_refusals_give_the_numbers(prompt: list[int], max_tokens: int | None, param: str, said: list[str]) -> None:
    with pytest.raises(LimitError) as refused:
        Limits(vocab_size=5, max_model_len=20, max_total_tokens=30).check(prompt, max_tokens)
    assert refused.value.param == param
    assert all(words in str(refused.value) for words in said), refused.value


def test_a_small_pool_is_named() -> None:
    """Blaming the model's context for a pool that the user made too small."""
    with pytest.raises(LimitError, match=r"KV pool is 8 tokens \(--max-total-tokens\)"):
        Limits(vocab_size=5, max_model_len=20, max_total_tokens=8).check([1] * 8, 1)
