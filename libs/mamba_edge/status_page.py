"""`/ui`: a page that shows the contents of `GET /v1/status` live, with a small chat; and that answer's cache.

Plain files of this package, without a build and without any other machine. All addresses in them are
relative, so the page works behind a path prefix of a proxy. The page is open to everybody and holds no data:
it fetches everything with the key that its reader types in.
"""

import asyncio
import importlib.resources
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic, TypeVar

from fastapi import FastAPI
from starlette.responses import FileResponse, Response

from mamba_edge.errors import NotFound

Value = TypeVar("Value")
KEPT_SECONDS = 0.5
"""Largest age of a cached answer in seconds: below the interval at which pages poll."""
_FOLDER = Path(str(importlib.resources.files("mamba_edge"))) / "ui"
_TYPES = {".css": "text/css", ".js": "text/javascript"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # A new version is visible at once, and unchanged files are not sent again.
    "cache-control": "no-cache",
}


def add_status_page(app: FastAPI) -> None:
    """Serve the page and its files."""
    files = {path.name: path for path in _FOLDER.iterdir() if path.suffix in _TYPES}

    async def page() -> Response:
        return FileResponse(_FOLDER / "index.html", media_type="text/html", headers=_HEADERS)

    async def file(name: str) -> Response:
        if (path := files.get(name)) is None:
            raise NotFound("there is nothing at this path; see /openapi.json")
        return FileResponse(path, media_type=_TYPES[path.suffix], headers=_HEADERS)

    def leads_to(location: str) -> Callable[[], Awaitable[Response]]:
        async def redirect() -> Response:
            return Response(status_code=307, headers={"location": location})

        return redirect

    # The address of a user who only knows host and port.
    app.add_api_route("/", leads_to("ui"), include_in_schema=False)
    # The page's relative addresses would be wrong below this path.

    app.add_api_route("/ui/", leads_to("../ui"), include_in_schema=False)
    app.add_api_route("/ui", page, include_in_schema=False)
    app.add_api_route("/ui/{name}", file, include_in_schema=False)


class CachedValue(Generic[Value]):
    """An answer that many clients poll, computed once for all of them.

    `make` computes it for the first caller; callers in the meantime and shortly afterwards get the same
    value, so that polling does not slow down serving. `seconds` is how long a value is used.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[Value]],
        *,
        seconds: float = KEPT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._seconds, self._clock = make, seconds, clock
        self._lock = asyncio.Lock()
        self._cached: tuple[Value, float] | None = None

    async def get(self) -> Value:
        """Return the value, at most `seconds` old. An error of `make` is raised and not cached."""
        async with self._lock:
            if self._cached is None or self._clock() >= self._cached[1]:
                self._cached = None
                self._cached = (await self._make(), self._clock() + self._seconds)
            return self._cached[0]
