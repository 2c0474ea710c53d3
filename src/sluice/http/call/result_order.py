"""The order of tool results in a conversation.

A client that runs tools in parallel sends their results as they come, each with the id of its call. Most chat templates
write results without ids (50 of 57 published ones, `findings/results_without_ids.sh`), so that the model would take
each for the answer to the call in the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def in_order_of_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the tool results behind each assistant's message in the order of its calls.

    Results that name none of these calls, and one call's several results, keep their order, behind the others and among
    themselves.

    Args:
        messages: as chat templates take them, with `role`, `tool_calls` and `tool_call_id`.
    """
    ordered: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    results: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(message)
            continue
        ordered += _sorted(results, places)
        ordered.append(message)
        calls = message.get("tool_calls", ())
        places, results = {call["id"]: place for place, call in enumerate(calls) if "id" in call}, []
    return ordered + _sorted(results, places)


def _sorted(results: list[dict[str, Any]], places: dict[str, int]) -> list[dict[str, Any]]:
    return sorted(results, key=lambda result: places.get(result.get("tool_call_id", ""), len(places)))
