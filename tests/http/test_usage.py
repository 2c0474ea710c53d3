"""Usage has the tiers of cached tokens if there is more than one."""

from __future__ import annotations

from sluice.http.generation import Usage
from sluice.types import CachedTokens


def test_tokens_that_were_loaded_are_counted_by_tier() -> None:
    usage = Usage(20, CachedTokens(16, host=8, disk=4), 3).as_json()
    assert usage["prompt_tokens_details"] == {
        "cached_tokens": 16,
        "cached_tokens_details": {"device": 4, "host": 8, "disk": 4},
    }


def test_without_tiers_usage_is_openais() -> None:
    """Clients that check what they get against OpenAI's schema."""
    assert Usage(20, CachedTokens(16), 3).as_json()["prompt_tokens_details"] == {"cached_tokens": 16}
