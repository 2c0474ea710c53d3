"""What a request may ask of a loaded model."""

from __future__ import annotations

import pytest

from sluice.types import SamplingParams
from sluice.types.request_limits import LimitError, Limits


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


def test_a_small_tier_is_named_with_the_bytes_it_lacks_and_a_short_model_before_it() -> None:
    """How large must the file be? And no file is large enough for more positions than the model has."""
    limits = Limits(vocab_size=9, max_model_len=5000, max_total_tokens=100, max_offloaded_tokens=2000, token_bytes=10)
    assert limits.check([1] * 1990, None) == 10
    with pytest.raises(LimitError, match="has 20000 bytes for 2000 tokens, and these need 20010"):
        limits.check([1] * 1990, 11)
    with pytest.raises(LimitError, match="the model's context is 5000 tokens"):
        limits.check([1] * 1990, 3011)


def test_what_sampling_asks_of_the_model() -> None:
    """A bias or a stop token beyond the vocabulary, which would be an index error in the runner or silently nothing."""
    limits = Limits(vocab_size=5, max_model_len=20, max_total_tokens=30)
    assert limits.check_sampling([1] * 15, SamplingParams(max_tokens=None, min_tokens=5, logit_bias={4: 1})) == 5
    for params, param, said in [
        (SamplingParams(max_tokens=5, logit_bias={5: 1}), "logit_bias", "token id 5 in logit_bias"),
        (SamplingParams(max_tokens=5, stop_token_ids=[9]), "stop_token_ids", "token id 9 in stop_token_ids"),
        (SamplingParams(max_tokens=None, min_tokens=6), "min_tokens", "min_tokens 6, but the model's context is 20"),
    ]:
        with pytest.raises(LimitError, match=said) as refused:
            limits.check_sampling([1] * 15, params)
        assert refused.value.param == param


def test_a_small_pool_names_what_would_serve_a_longer_request() -> None:
    """A user who does not know that a disk serves longer contexts makes the prompt shorter."""
    limits = Limits(vocab_size=5, max_model_len=200, max_total_tokens=8, token_bytes=10)
    with pytest.raises(LimitError, match=r"at least 90 bytes there \(--kv-disk and --kv-disk-bytes, or"):
        limits.check([1] * 8, 1)
    of_blocks = Limits(vocab_size=5, max_model_len=200, max_total_tokens=8, token_bytes=10, block_size=4)
    with pytest.raises(LimitError, match=r"\(--max-total-tokens\)$"):
        of_blocks.check([1] * 8, 1)
