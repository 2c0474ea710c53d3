"""A link, a crawler or a prefetch must not change anything: they send GETs."""

from __future__ import annotations

from starlette.routing import Route

from serving import MODEL, Server, run, serving
from sluice.engine.messages import QueryStats


def routes(server: Server) -> list[Route]:
    found = [route for route in server.app.routes if isinstance(route, Route)]
    assert len(found) == len(server.app.routes) > 15
    return found


async def a_response(server: Server) -> str:
    """The id of a stored response."""
    answer = await server.post("/v1/responses", input="hi", max_output_tokens=1)
    return str(answer.json()["id"])


def path_of(route: Route, stored: str) -> str:
    """A path that exists."""
    named = route.path.replace("{name:path}", MODEL).replace("{name}", "start.js")
    return named.replace("{response_id}", stored)


def methods(route: Route) -> set[str]:
    assert route.methods is not None
    return route.methods


def test_no_get_has_an_effect() -> None:
    async def test() -> None:
        async with serving() as server:
            await server.complete(prompt="a" * 40, max_tokens=1)
            stored = await a_response(server)
            before = (await server.http.get("/server_info")).json()
            sent = len(server.sent)
            for route in routes(server):
                if "GET" in methods(route):
                    answer = await server.http.get(path_of(route, stored))
                    assert answer.status_code == 200, route.path
            assert {type(message) for message in server.sent[sent:]} <= {QueryStats}
            after = (await server.http.get("/server_info")).json()
            assert before["cached_pages"] > 0
            assert before == after

    run(test)


def test_a_head_is_answered_like_a_get() -> None:
    """Probes send HEAD, and take 405 for a server that is not well. (uvicorn leaves the body out.)"""

    async def test() -> None:
        async with serving() as server:
            stored = await a_response(server)
            for route in routes(server):
                if "GET" in methods(route):
                    path = path_of(route, stored)
                    head = await server.http.head(path)
                    got = await server.http.get(path)
                    assert (head.status_code, got.status_code) == (200, 200), path
                    assert head.headers["content-type"] == got.headers["content-type"]
            server.backend.close("the end")
            assert (await server.http.head("/health")).status_code == 503
            assert (await server.http.head("/owl")).status_code == 404

    run(test)


def test_other_routes_refuse_a_get() -> None:
    """A browser follows any link: a GET to a route that acts says which method acts."""

    async def test() -> None:
        async with serving() as server:
            read = {route.path for route in routes(server) if "GET" in methods(route)}
            read.add("/v1/responses/input_tokens")  # a GET asks for the response of this id
            acting = [route for route in routes(server) if route.path not in read]
            assert "/flush_cache" in {route.path for route in acting}
            for route in acting:
                for method in ("GET", "HEAD"):
                    answer = await server.http.request(method, route.path)
                    assert answer.status_code == 405, route.path
                    assert {answer.headers["allow"]} == methods(route) <= {"POST", "DELETE"}
                told = (await server.http.get(route.path)).text
                assert "not for this method; it takes " in told
                assert all(method in told for method in methods(route))
            assert server.sent == []

    run(test)
