"""Whether a prompt is computed apart from the streams."""

from __future__ import annotations

import pytest

from routed import Asked, text
from sluice.routing.dispatch import Dispatcher
from sluice.routing.occupancy import ObservedOccupancy
from sluice.routing.policies import PrefixAware
from sluice.routing.split import PrefillSplit, SplitLimits


def sides(prefill: str = "ab", decode: str = "cd") -> tuple[Dispatcher, Dispatcher]:
    return Dispatcher(PrefixAware(10_000, 16), prefill), Dispatcher(PrefixAware(10_000, 16), decode)


def test_long_prompts_go_apart_by_what_is_not_cached() -> None:
    """The last turn of a long conversation is a short prompt, where its pages are."""
    prefill, decode = sides()
    split = PrefillSplit(prefill, decode, SplitLimits(least_tokens=200))
    assert split.is_apart(Asked(text(1, 300)))
    assert not split.is_apart(Asked(text(2, 150)))
    decode.route(0, Asked(text(1, 300)))
    assert not split.is_apart(Asked(text(1, 300) + text(3, 50)))
    assert split.is_apart(Asked(text(1, 300) + text(3, 50), "salt"))
    assert split.is_apart(Asked(text(1, 300) + text(3, 250)))


def test_a_prompt_that_is_too_short_is_not_hashed() -> None:
    """Hashing takes long, and all streams of the ingress wait for it."""

    class Unhashed(Asked):
        def digests(self, page_size: int) -> list[bytes]:
            raise AssertionError("its length says it")

    split = PrefillSplit(*sides(), SplitLimits(least_tokens=200))
    assert not split.is_apart(Unhashed(text(1, 199)))
    assert split.is_apart(Asked(text(1, 200)))


def test_a_prompt_goes_where_its_first_token_comes_sooner_by_far() -> None:
    """Prefill replicas with long queues are of no use to replicas that could help."""
    prefill, decode = sides("a", "c")
    split = PrefillSplit(prefill, decode, SplitLimits(patience=2.0))
    prefill.route(0, Asked(text(1, 300)))
    assert split.is_apart(Asked(text(2, 400)))
    prefill.route(1, Asked(text(2, 400)))
    assert not split.is_apart(Asked(text(3, 400)))
    decode.route(2, Asked(text(4, 300)))
    assert split.is_apart(Asked(text(5, 400)))
    prefill.update("a", ObservedOccupancy(0, 0, 0, 9999, 0.001), 1.0)
    decode.update("c", ObservedOccupancy(0, 0, 0, 9999, 0.0004), 1.0)
    assert not split.is_apart(Asked(text(6, 400)), 1.0), "replicas that decode are faster"


def test_where_one_kind_is_missing_there_is_no_choice() -> None:
    """A fleet goes on when its last prefill replica has gone."""
    prefill, decode = sides("", "c")
    assert not PrefillSplit(prefill, decode, SplitLimits()).is_apart(Asked(text(1, 300)))
    assert PrefillSplit(decode, prefill, SplitLimits()).is_apart(Asked(text(1, 300)))


@pytest.mark.parametrize("values", [{"least_tokens": -1}, {"patience": 0.0}, {"patience": float("nan")}])
def test_limits_that_cannot_be_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="least_tokens must be at least 0 and patience above 0"):
        SplitLimits(**values)  # type: ignore[arg-type]
