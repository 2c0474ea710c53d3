"""/live, /ready and /health: what each says in every state."""

from __future__ import annotations

import httpx

from serving import run, serving
from sluice.engine.heartbeat import LoadingPart, Phase
from sluice.http.app import create_app
from sluice.http.base.backend import Backend
from sluice.process.engine_state import Loading
from sluice.process.heartbeat import Reading

PATHS = ("/live", "/ready", "/health")


async def codes(http: httpx.AsyncClient) -> tuple[list[int], str]:
    answers = [await http.get(path) for path in PATHS]
    for answer in answers:
        assert (answer.status_code == 503) == ("retry-after" in answer.headers) or answer.url.path == "/live"
    return [answer.status_code for answer in answers], answers[-1].json()["status"]


def test_while_the_model_loads() -> None:
    """Alive, or an orchestrator kills it before it has loaded; not ready."""

    async def test() -> None:
        transport = httpx.ASGITransport(create_app(Backend()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            assert await codes(http) == ([200, 503, 503], "the model is loading")

    run(test)


def test_how_far_a_model_is_loaded_and_for_how_long() -> None:
    """Otherwise a model that loads for minutes looks as if it hung."""

    async def test() -> None:
        backend = Backend()
        transport = httpx.ASGITransport(create_app(backend))
        reading = Reading(0, Phase.LOADING, -1, 0, 0, LoadingPart.WEIGHTS, 300, 400)
        backend.engine.loading = Loading(reading, 12.34)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            assert await codes(http) == ([200, 503, 503], "the model is loading: weights, 75%, 12 s so far")
            engine = (await http.get("/health")).json()["engine"]
            assert engine["phase"] == "loading"
            loading = {"part": "weights", "done": 300, "total": 400, "seconds": 12.3, "seconds_left": None}
            assert engine["loading"] == loading
            backend.engine.loading = Loading(reading, 12.34, 4.06)
            status = "the model is loading: weights, 75%, 12 s so far, about 4 s left"
            assert await codes(http) == ([200, 503, 503], status)
            assert (await http.get("/health")).json()["engine"]["loading"]["seconds_left"] == 4.1
            assert "sluice:engine_loading_seconds{" in (await http.get("/metrics")).text
            backend.engine.loading = Loading(reading._replace(part=LoadingPart.MEMORY, loaded=0, to_load=0), 13.0)
            assert await codes(http) == ([200, 503, 503], "the model is loading: memory, 13 s so far")

    run(test)


def test_from_serving_to_the_end() -> None:
    async def test() -> None:
        async with serving() as server:
            engine = server.backend.engine
            assert await codes(server.http) == ([200, 200, 200], "ok")
            engine.away("the engine was killed by signal 9; another one is started")
            assert await codes(server.http) == ([200, 503, 503], engine.status)
            engine.serving(77, {})
            assert await codes(server.http) == ([200, 200, 200], "ok")
            server.backend.drain()
            assert await codes(server.http) == ([200, 503, 503], "the server is shutting down")
            server.backend.close("the engine was killed by signal 9")
            assert await codes(server.http) == ([503, 503, 503], "the engine was killed by signal 9")

    run(test)


def test_new_requests_are_refused_while_no_engine_can_be_started() -> None:
    """They would wait for minutes; a load balancer has other servers. Streams that run wait for the next engine."""

    async def test() -> None:
        async with serving() as server:
            server.backend.engine.cannot_start("the engine was killed by signal 9, and no other one can be started")
            for stream in (False, True):
                refused = await server.post("/v1/completions", prompt="a", stream=stream)
                assert refused.status_code == 503
                assert refused.headers["retry-after"] == "5"
                assert "no other one can be started" in refused.json()["error"]["message"]
            server.backend.engine.serving(77, {})
            assert (await server.post("/v1/completions", prompt="a", max_tokens=1)).status_code == 200

    run(test)


def test_health_tells_what_the_engine_is_at() -> None:
    async def test() -> None:
        async with serving() as server:
            engine = server.backend.engine
            engine.reading, engine.silent_seconds = Reading(5, Phase.DEVICE, 8, 7, 900), 1.23
            engine.stats.restarts = 2
            assert (await server.http.get("/health")).json()["engine"] == {
                "pid": engine.pid,
                "restarts": 2,
                "silent_seconds": 1.2,
                "phase": "device",
                "step": 8,
                "steps_done": 7,
                "tokens": 900,
            }

    run(test)


def test_a_server_that_shuts_down_takes_no_new_work_and_still_answers_questions() -> None:
    async def test() -> None:
        async with serving() as server:
            server.backend.drain()
            for stream in (False, True):
                refused = await server.post("/v1/completions", prompt="a", stream=stream)
                assert refused.status_code == 503
                assert "shutting down" in refused.json()["error"]["message"]
            assert (await server.http.get("/v1/models")).status_code == 200
            assert (await server.http.get("/server_info")).status_code == 200

    run(test)
