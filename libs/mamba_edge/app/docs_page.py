"""`/docs`: Swagger UI over `/openapi.json`, light or dark as the system is. `publish` adds it.

The library's files are those of an installed package and the page's own are of this one, so the page works
without the internet; the browser refuses every other machine, and every script that is no file. Addresses
are relative, as those of `/ui`.
"""

import importlib.resources
from html import escape
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import FileResponse, HTMLResponse, Response

from mamba_edge.errors import NotFound

_LIBRARY = Path(str(importlib.resources.files("fastapi_offline"))) / "static"
_OWN = Path(str(importlib.resources.files("mamba_edge"))) / "api_docs"
_FILES = {
    "swagger-ui.css": (_LIBRARY, "text/css"),
    "swagger-ui-bundle.js": (_LIBRARY, "text/javascript"),
    "page.css": (_OWN, "text/css"),
    "page.js": (_OWN, "text/javascript"),
}
"""Folder and type of each file that the page loads."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Swagger UI writes styles into its elements."""
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="stylesheet" href="docs/page.css">
</head>
<body>
<div id="swagger-ui"></div>
<noscript>This page needs JavaScript; <a href="openapi.json">the document</a> describes the same.</noscript>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/page.js"></script>
</body>
</html>
"""


def add_docs_page(app: FastAPI) -> None:
    """Serve the page and its files."""
    headers = {"content-security-policy": _POLICY, "referrer-policy": "no-referrer"}
    page = HTMLResponse(_PAGE.format(title=escape(f"{app.title}: API")), headers=headers)

    async def docs() -> Response:
        return page

    async def file(name: str) -> Response:
        if name not in _FILES:
            raise NotFound("there is nothing at this path; see /openapi.json")
        folder, kind = _FILES[name]
        return FileResponse(folder / name, media_type=kind)

    app.add_api_route("/docs", docs, include_in_schema=False)
    app.add_api_route("/docs/{name}", file, include_in_schema=False)
