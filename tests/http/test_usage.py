"""Usage has the tiers of cached tokens if there is more than one, and what became of guessed tokens."""

from __future__ import annotations

from typing import Any

import msgspec

from serving import expected_text, run, serving
from sluice.http.call.generation import Usage
from sluice.http.call.usage import usage_json
from sluice.types import CachedTokens, Drafted


def spelled(usage: Usage) -> dict[str, Any]:
    """The JSON value that an answer holds."""
    content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(usage_json(usage)))
    return content


def test_tokens_that_were_loaded_are_counted_by_tier() -> None:
    usage = spelled(Usage(20, CachedTokens(16, host=8, disk=4), 3))
    assert usage["prompt_tokens_details"] == {
        "cached_tokens": 16,
        "cached_tokens_details": {"device": 4, "host": 8, "disk": 4},
    }


def test_without_tiers_usage_is_openais() -> None:
    """Clients that check what they get against OpenAI's schema."""
    assert spelled(Usage(20, CachedTokens(16), 3))["prompt_tokens_details"] == {"cached_tokens": 16}


def test_guessed_tokens_are_counted_as_openai_does() -> None:
    usage = spelled(Usage(20, CachedTokens(), 9, drafted=Drafted(tokens=8, accepted=5)))
    assert usage["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 5,
        "rejected_prediction_tokens": 3,
    }
    assert "completion_tokens_details" not in spelled(Usage(20, CachedTokens(), 9))


def test_the_guesses_of_a_server_are_seen() -> None:
    """In the usage of an answer, of all samples together, and in the metrics; the answer is that of one that does not
    guess."""

    async def test() -> None:
        async with serving(speculative_algorithm="ngram", speculative_num_steps=4) as server:
            for _ in range(2):  # the second is guessed from the first
                answer = await server.complete(prompt="abc", max_tokens=40, ignore_eos=True, seed=3)
            assert answer["choices"][0]["text"] == expected_text("abc", 40, seed=3)
            details = answer["usage"]["completion_tokens_details"]
            assert details["accepted_prediction_tokens"] > 10
            page = (await server.http.get("/metrics")).text
            drafted = counted(page, "vllm:spec_decode_num_draft_tokens_total")
            accepted = counted(page, "vllm:spec_decode_num_accepted_tokens_total")
            rows = counted(page, "vllm:spec_decode_num_drafts_total")
            assert drafted >= accepted >= details["accepted_prediction_tokens"]
            assert drafted - accepted >= details["rejected_prediction_tokens"]
            by_position = [
                counted(page, "vllm:spec_decode_num_accepted_tokens_per_pos_total", f'position="{position}"')
                for position in range(4)
            ]
            assert sum(by_position) == accepted
            assert rows >= by_position[0] >= by_position[1] >= by_position[3] > 0
            assert counted(page, "sluice:request_acceptance_length_count") >= 1
            info = (await server.http.get("/server_info")).json()
            assert info["last_step"]["drafted"] >= info["last_step"]["accepted"] >= 0

    run(test)


def counted(page: str, name: str, label: str = "") -> float:
    """The value of a metric."""
    (line,) = (line for line in page.splitlines() if line.startswith(f"{name}{{") and label in line)
    return float(line.rpartition(" ")[2])
