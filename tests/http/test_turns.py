"""Long work on the event loop leaves room for everything else. Passes of the loop are counted, not seconds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from serving import run
from sluice.http.base.turns import PIECE_BYTES, BegunInTurns, JsonList, Turns, fragments, in_turns, json_of, pieces


def test_json_made_while_it_is_written_equals_json_made_at_once() -> None:
    def lazy(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: lazy(item) for name, item in value.items()}
        return JsonList(map(lazy, value)) if isinstance(value, list) else value

    values: list[Any] = [[], {}, 5, 'é"\n', [1, [2, []], {"a": [None, {"b": []}]}], {"x": [1.5, True], "y": "z"}]
    for value in values:
        assert json.loads(b"".join(fragments(lazy(value)))) == value
        assert b"".join(fragments(value)) == json_of(value)
    mixed = {"outer": [{"inner": JsonList([1, 2])}, 3]}
    assert json.loads(b"".join(fragments(mixed))) == {"outer": [{"inner": [1, 2]}, 3]}


def test_long_answers_leave_room_between_their_pieces() -> None:
    """16 answers of 10 MB were each made in one call of the loop, for which health checks waited."""

    async def test() -> None:
        turns, made, passes = Turns(), [], 0

        def parts(number: int) -> Iterator[bytes]:
            for _ in range(3):
                made.append((passes, number))
                yield b"x" * PIECE_BYTES

        async def answer(number: int) -> int:
            made = pieces(parts(number))
            first, _ = next(made)
            return sum([len(piece) async for piece in in_turns(turns, made)], len(first))

        async def count() -> None:
            nonlocal passes
            while True:
                passes += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        sizes = await asyncio.gather(*map(answer, range(5)))
        counting.cancel()
        assert sizes == [3 * PIECE_BYTES] * 5
        later = made[5:]  # each answer makes its first piece when it can
        assert len({moment for moment, _ in later}) == len(later) == 10, "one piece in each pass of the loop"
        assert [number for _, number in later[:5]] == [0, 1, 2, 3, 4], "the answers take turns"

    run(test)


def test_a_health_check_does_not_wait_for_all_requests_that_came_with_it() -> None:
    async def test() -> None:
        begun: list[str] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            begun.append(scope["method"])

        async def receive() -> Message:
            raise AssertionError

        async def send(message: Message) -> None:
            raise AssertionError

        server = BegunInTurns(app)
        methods = ["POST"] * 20 + ["GET"]
        await asyncio.gather(*(server({"type": "http", "method": method}, receive, send) for method in methods))
        assert begun.count("POST") == 20
        assert begun.index("GET") <= 1

    run(test)
