"""`GET /` in a browser: a page with a chat, all of whose parts come from this server.

Its files are in `web/` as they are served: there is no build.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from sluice.http.base.errors import ApiError
from sluice.http.base.routes import Routes
from sluice.http.observe.docs_page import HEADERS as DOCS_HEADERS

GREETING = "Sluice is running"
"""What Ollama's clients look for."""
INDEX = "index.html"
MEDIA_TYPES: Mapping[str, str] = MappingProxyType(
    {"html": "text/html", "css": "text/css", "js": "text/javascript", "json": "application/json"}
)
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        **DOCS_HEADERS,
        # Beside the rules of /docs: no script may make elements of text, so what a model writes stays text.
        "content-security-policy": DOCS_HEADERS["content-security-policy"]
        + "; require-trusted-types-for 'script'; trusted-types 'none'",
        "cross-origin-opener-policy": "same-origin",
        "cache-control": "no-cache",
    }
)


class File(NamedTuple):
    """A file of the page."""

    content: bytes
    media_type: str
    tag: str
    """Entity tag of the file: browsers keep it until this changes."""


def page_files() -> Mapping[str, File]:
    """Return the files of the page, by name."""
    found = {}
    for path in files("sluice.http").joinpath("web").iterdir():
        kind = MEDIA_TYPES.get(path.name.rpartition(".")[2])
        if kind is not None:
            content = path.read_bytes()
            found[path.name] = File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return MappingProxyType(found)


def add_greeting(routes: Routes) -> None:
    """Add what stands at `/` without a page."""

    @routes.add("GET", "/", summary="Whether there is a server (Ollama)", media_type="text/plain")
    async def greet(request: Request) -> Response:
        return PlainTextResponse(GREETING)


def add_page(routes: Routes) -> None:
    """Add the page and its files. Clients that do not ask for HTML get the greeting."""
    found = page_files()

    @routes.add(
        "GET", "/", summary="The page, for browsers; whether there is a server (Ollama)", media_type="text/plain"
    )
    async def page(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            response = _answer(found[INDEX], request)
        else:
            response = PlainTextResponse(GREETING)
        response.headers["vary"] = "accept"
        return response

    @routes.add("GET", "/page/{name}", summary="A file of the page", is_documented=False)
    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in found:
            raise ApiError(404, f"the page has no file {name!r}")
        return _answer(found[name], request)


def _answer(file: File, request: Request) -> Response:
    headers = {**HEADERS, "etag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
