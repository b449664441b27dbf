"""`add_web_page`: a page of a server with its files, under one policy for browsers.

`/ui` and `/docs` are such pages. The policy lets a page load files of its own server alone and run no script
that is not such a file. Addresses in a page are relative, so it works behind a path prefix that a proxy
strips. A browser asks for every file again and gets its contents only if they have changed: a new version
shows at once. Nothing here knows what a page shows.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import FileResponse, Response

from mamba_edge.errors import NotFound

_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src {styles}; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page_headers(*, inline_styles: bool = False) -> dict[str, str]:
    """Return the headers of a page and its files.

    `inline_styles` says whether scripts of the page write styles into its elements.
    """
    return {
        "content-security-policy": _POLICY.format(styles="'self'" + " 'unsafe-inline'" * inline_styles),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
    }


def add_web_page(
    app: FastAPI, path: str, page: Path, files: Mapping[str, Path], *, inline_styles: bool = False
) -> None:
    """Serve a page at `path` and its files below it.

    Args:
        app: the application.
        path: path of the page, such as `/ui`; a request with a slash at the end is redirected to it.
        page: the HTML file.
        files: the files below `path`, by name.
        inline_styles: whether scripts of the page write styles into its elements.
    """
    headers = page_headers(inline_styles=inline_styles)

    async def whole_page(request: Request) -> Response:
        return _file_response(page, headers, request)

    async def file(name: str, request: Request) -> Response:
        if (contents := files.get(name)) is None:
            raise NotFound("there is nothing at this path; see /openapi.json")
        return _file_response(contents, headers, request)

    async def without_slash() -> Response:
        # The page's relative addresses would be wrong below this path.
        return redirect(f"..{path}")

    app.add_api_route(f"{path}/", without_slash, include_in_schema=False)
    app.add_api_route(path, whole_page, include_in_schema=False)
    app.add_api_route(f"{path}/{{name}}", file, include_in_schema=False)


def redirect(location: str) -> Response:
    """Return the response that sends a browser to a relative address."""
    return Response(status_code=307, headers={"location": location})


def _file_response(path: Path, headers: Mapping[str, str], request: Request) -> Response:
    """Return the file, or status 304 if the client has these contents."""
    kind = _TYPES[path.suffix]
    response = FileResponse(path, media_type=kind, headers=headers, stat_result=os.stat(path))
    tag = response.headers["etag"]
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={**headers, "etag": tag})
    return response
