"""A model's own sampling settings: they fill what a request leaves open, on every route."""

from __future__ import annotations

from typing import Any

import pytest

from serving import Server, run, serving
from sluice.engine.messages import Submit
from sluice.types import SamplingDefaults, SamplingParams

DEFAULTS = SamplingDefaults(temperature=0.0, top_k=7, repetition_penalty=1.5, max_tokens=9)
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
ROUTES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "/v1/completions": ({"prompt": "hello"}, {"prompt": "hello", "temperature": 0.5, "top_k": None}, 16),
    CHAT: ({"messages": MESSAGES}, {"messages": MESSAGES, "temperature": 0.5, "top_k": None}, 9),
    "/generate": ({"text": "hello"}, {"text": "hello", "sampling_params": {"temperature": 0.5, "top_k": None}}, 128),
}
"""Route -> a body that leaves all open, one that sets the temperature, and the tokens that both ask for."""


async def sampling_of(server: Server, route: str, body: dict[str, Any]) -> SamplingParams:
    """Return what the engine is asked for."""
    answer = await server.http.post(route, json=body)
    assert answer.status_code == 200, answer.text
    return [message for message in server.sent if isinstance(message, Submit)][-1].sampling


@pytest.mark.parametrize("route", ROUTES)
def test_they_fill_what_is_open(route: str) -> None:
    everything_open, with_temperature, max_tokens = ROUTES[route]

    async def test() -> None:
        async with serving(sampling_defaults=DEFAULTS) as server:
            first = await sampling_of(server, route, everything_open)
            second = await sampling_of(server, route, with_temperature)
        assert (first.temperature, first.top_k, first.repetition_penalty) == (0.0, 7, 1.5)
        assert (second.temperature, second.top_k, second.repetition_penalty) == (0.5, 7, 1.5)
        assert first.max_tokens == second.max_tokens == max_tokens

    run(test)


def test_the_length_of_an_answer_stays_within_the_context() -> None:
    """The client did not ask for it, so a prompt that leaves less room is not refused, and `min_tokens` hold."""

    async def test() -> None:
        async with serving(sampling_defaults=SamplingDefaults(max_tokens=1 << 20)) as server:
            await sampling_of(server, CHAT, {"messages": MESSAGES})
        async with serving(sampling_defaults=DEFAULTS) as server:
            sampling = await sampling_of(server, CHAT, {"messages": MESSAGES, "min_tokens": 12})
            assert sampling.max_tokens == 12

    run(test)


def test_without_settings_the_defaults_are_openais() -> None:
    async def test() -> None:
        async with serving() as server:
            sampling = await sampling_of(server, "/v1/completions", {"prompt": "hello"})
        plain = SamplingParams()
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (plain.temperature, plain.top_k, plain.top_p)

    run(test)
