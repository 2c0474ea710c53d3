"""`POST /sleep`, `POST /wake_up` and `GET /is_sleeping`, with vLLM's names."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sluice.http.base.backend import Backend
from sluice.http.base.errors import bad_request, unavailable
from sluice.http.base.routes import Routes, json_answer
from sluice.process.sleep import Sleep

LEVELS = ("1", "2")
FLAGS = {"true": True, "1": True, "false": False, "0": False}


class Sleeping(msgspec.Struct):
    is_sleeping: bool


def _flag(request: Request, name: str) -> bool:
    value = request.query_params.get(name, "false")
    if value.lower() not in FLAGS:
        raise bad_request(f"{name} must be true or false, got {value!r}", param=name)
    return FLAGS[value.lower()]


def add_sleep(routes: Routes, backend: Backend, sleep: Sleep) -> None:
    """Add the routes, each of which answers when what was asked for has happened."""

    def state() -> Response:
        return json_answer(Sleeping(backend.engine.is_asleep))

    @routes.add("POST", "/sleep", summary="End the engine, and refuse requests (vLLM)", answer=Sleeping)
    async def put_to_sleep(request: Request) -> Response:
        level = request.query_params.get("level", "1")
        if level not in LEVELS:
            raise bad_request(f"level must be 1 or 2, which are the same here, got {level!r}", param="level")
        backend.service()
        sleep.ask()
        await sleep.until_asleep()
        return _settled(state())

    @routes.add("POST", "/wake_up", summary="Start the engine (vLLM)", answer=Sleeping)
    async def wake_up(request: Request) -> Response:
        if tags := request.query_params.getlist("tags"):
            shown = ", ".join(map(repr, tags))
            message = f"tags are not supported, got {shown}: the engine wakes up as a whole; leave them out"
            raise bad_request(message, param="tags")
        backend.service()
        sleep.wake(new_weights=_flag(request, "new_weights"))
        await sleep.until_awake()
        return _settled(state())

    @routes.add("GET", "/is_sleeping", summary="Whether the engine was ended by sleep (vLLM)", answer=Sleeping)
    async def is_sleeping(request: Request) -> Response:
        return state()

    def _settled(response: Response) -> Response:
        if backend.engine.has_given_up:
            raise unavailable(backend.status)
        return response
