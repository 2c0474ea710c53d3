"""A link, a crawler or a prefetch must not change anything: they send GETs."""

from __future__ import annotations

from starlette.routing import Route

from serving import MODEL, Server, run, serving
from sluice.engine.messages import QueryStats

READ_ONLY = {"GET", "HEAD", "OPTIONS"}


def routes(server: Server) -> list[Route]:
    found = [route for route in server.app.routes if isinstance(route, Route)]
    assert len(found) == len(server.app.routes) > 15
    return found


def methods(route: Route) -> set[str]:
    assert route.methods is not None
    return route.methods


def test_no_get_has_an_effect() -> None:
    async def test() -> None:
        async with serving() as server:
            await server.complete(prompt="a" * 40, max_tokens=1)
            before = (await server.http.get("/server_info")).json()
            sent = len(server.sent)
            for route in routes(server):
                if "GET" in methods(route):
                    answer = await server.http.get(route.path.replace("{name:path}", MODEL))
                    assert answer.status_code == 200, route.path
            assert {type(message) for message in server.sent[sent:]} <= {QueryStats}
            after = (await server.http.get("/server_info")).json()
            assert before["cached_pages"] > 0
            assert before == after

    run(test)


def test_other_routes_refuse_a_get() -> None:
    """A browser follows any link: a GET to a route that acts says which method acts."""

    async def test() -> None:
        async with serving() as server:
            acting = [route for route in routes(server) if not methods(route) & READ_ONLY]
            assert "/flush_cache" in {route.path for route in acting}
            for route in acting:
                answer = await server.http.get(route.path)
                assert answer.status_code == 405, route.path
                assert answer.headers["allow"] == "POST"
                assert "not for this method" in answer.json()["error"]["message"]
            assert server.sent == []

    run(test)
