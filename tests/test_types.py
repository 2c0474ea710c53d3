"""Sampling parameters: what is refused, and how they are resolved."""

from __future__ import annotations

import pytest

from sluice.types import SamplingParams


@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", -3, "at least 1"),
        ("max_tokens", 1.5, "an integer"),
        ("max_tokens", True, "an integer"),
        ("temperature", -0.1, "at least 0"),
        ("temperature", float("nan"), "finite"),
        ("temperature", float("inf"), "finite"),
        ("temperature", "1", "number"),
        ("temperature", 1 << 1024, "finite"),
        ("top_p", 0, r"\(0, 1\]"),
        ("top_p", 1.01, r"\(0, 1\]"),
        ("top_k", -2, "0 or -1 for off"),
        ("top_k", 1.0, "integer"),
        ("min_p", -0.01, r"\[0, 1\]"),
        ("min_p", 1.1, r"\[0, 1\]"),
        ("seed", 1 << 64, "64 bits"),
        ("seed", -(1 << 63) - 1, "64 bits"),
        ("seed", "x", "64 bits"),
        ("stop", "", "non-empty"),
        ("stop", ("a", ""), "non-empty"),
        ("stop", (1,), "non-empty string"),
        ("stop_token_ids", (-1,), "token ids"),
        ("stop_token_ids", ("a",), "token ids"),
        ("ignore_eos", 1, "true or false"),
        ("logprobs", -1, "0 to 20"),
        ("logprobs", 21, "0 to 20"),
        ("logprobs", True, "an integer"),
        ("prompt_logprobs", -1, "0 to 20"),
        ("prompt_logprobs", 21, "0 to 20"),
        ("prompt_logprobs", 1.0, "an integer"),
        ("min_tokens", -1, "at least 0 and at most 16"),
        ("min_tokens", 17, "at least 0 and at most 16"),
        ("min_tokens", True, "an integer"),
        ("presence_penalty", 2.1, "-2 to 2"),
        ("frequency_penalty", -2.1, "-2 to 2"),
        ("frequency_penalty", float("nan"), "-2 to 2"),
        ("repetition_penalty", 0, "0.01"),
        ("repetition_penalty", 101, "100"),
        ("logit_bias", {3: 101}, "-100 to 100"),
        ("logit_bias", {3: True}, "-100 to 100"),
        ("logit_bias", ((3, 1), (3, 2)), "one number for each"),
        ("logit_bias", 7, "by token id"),
        ("logit_bias", (1, 2), "by token id"),
    ],
)
def test_a_bad_value_is_named_with_what_is_accepted(field: str, value: object, accepted: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be .*{accepted}") as caught:
        SamplingParams(**{field: value})
    assert repr(value) in str(caught.value) or repr((value,)) in str(caught.value)


@pytest.mark.parametrize(
    "good",
    [
        {"max_tokens": None},
        {"max_tokens": 1},
        {"temperature": 0},
        {"top_p": 1},
        {"top_k": -1},
        {"top_k": 1},
        {"min_p": 0},
        {"min_p": 1.0},
        {"seed": -(1 << 63)},
        {"seed": (1 << 64) - 1},
        {"logprobs": 0},
        {"logprobs": 20},
        {"prompt_logprobs": 0},
        {"prompt_logprobs": 20},
        {"max_tokens": 5, "min_tokens": 5},
        {"max_tokens": None, "min_tokens": 5000},
        {"presence_penalty": -2, "frequency_penalty": 2.0},
        {"repetition_penalty": 0.01},
        {"repetition_penalty": 100},
        {"logit_bias": {0: -100, 7: 100.0}},
    ],
)
def test_the_ends_of_the_ranges_are_accepted(good: dict) -> None:
    assert SamplingParams(**good)


def test_one_stop_string_may_stand_alone() -> None:
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_resolving_fills_what_is_open_and_nothing_else() -> None:
    params = SamplingParams(max_tokens=None, stop=["x"], stop_token_ids=[7]).resolved(eos_ids=[2, 3], room=40, seed=9)
    assert (params.max_tokens, params.seed, params.stop, params.stop_token_ids) == (40, 9, (), (2, 3, 7))
    params = SamplingParams(max_tokens=5, seed=1, ignore_eos=True, stop_token_ids=[7])
    params = params.resolved(eos_ids=[2], room=40, seed=9)
    assert (params.max_tokens, params.seed, params.stop_token_ids) == (5, 1, (7,))


@pytest.mark.parametrize("token", [-1, 2**31, "5", 1.0])
def test_a_bias_is_by_token_id(token: object) -> None:
    with pytest.raises(ValueError, match="logit_bias must be by token id"):
        SamplingParams(logit_bias={token: 1})
