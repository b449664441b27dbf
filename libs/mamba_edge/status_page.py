"""`/ui`: a page that shows what `GET /v1/status` says, as it moves, with a small chat.

Plain files of this package, without a build and without any other machine. All addresses in them are
relative, so the page works behind a prefix of a proxy's. The page is open to everybody and holds nothing:
what it shows it asks for with the key that its reader types in.
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
"""How old an answer may be: below the pace at which pages poll."""
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
    # A new version is seen at once; files that are the same are not sent again.
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

    # What people type who were told host and port alone.
    app.add_api_route("/", leads_to("ui"), include_in_schema=False)
    # The page's relative addresses would lead elsewhere from there.
    app.add_api_route("/ui/", leads_to("../ui"), include_in_schema=False)
    app.add_api_route("/ui", page, include_in_schema=False)
    app.add_api_route("/ui/{name}", file, include_in_schema=False)


class CachedValue(Generic[Value]):
    """`make` is run for the first who asks; those who come meanwhile and shortly after get the same."""

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
        """The answer, at most `seconds` old. Raises what `make` raises, and then keeps nothing."""
        async with self._lock:
            if self._cached is None or self._clock() >= self._cached[1]:
                self._cached = None
                self._cached = (await self._make(), self._clock() + self._seconds)
            return self._cached[0]
