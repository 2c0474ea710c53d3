"""`GET /docs`: the API as a page to read and to try out, all of whose parts come from this server.

The page is Swagger UI over `/openapi.json`. Its files are those of the package `mkdocs-swagger-ui-tag`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response

from sluice.http.base.errors import ApiError
from sluice.http.base.routes import Routes

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Sluice: the API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
"""Paths are relative, so that the page works below another path of a proxy."""
START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  validatorUrl: null,
  deepLinking: true,
});
"""
FILES: Mapping[str, str] = MappingProxyType(
    {"swagger-ui.css": "stylesheets/swagger-ui.css", "swagger-ui-bundle.js": "javascripts/swagger-ui-bundle.js"}
)
"""Files of the page by name -> where the package has them."""
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-security-policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
            " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
)
"""Nothing may be loaded from, or sent to, anywhere else, and no script or style may stand in the page itself."""


def add_docs_page(routes: Routes) -> None:
    """Add the page and its files."""

    @routes.add("GET", "/docs", summary="This document as a page", media_type="text/html")
    async def page(request: Request) -> Response:
        return HTMLResponse(PAGE, headers=HEADERS)

    @routes.add("GET", "/docs/{name}", summary="A file of the page", is_documented=False)
    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name == "start.js":
            return Response(START, headers=HEADERS, media_type="text/javascript")
        if name not in FILES:
            raise ApiError(404, f"the page has no file {name!r}; it has start.js, {', '.join(FILES)}")
        return FileResponse(_folder() / FILES[name], headers=HEADERS)


def _folder() -> Path:
    return Path(str(files("mkdocs_swagger_ui_tag"))) / "swagger-ui"
