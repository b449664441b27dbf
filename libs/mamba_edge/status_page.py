"""`/ui`: a page that shows the contents of `GET /v1/status` live, with a small chat; and that answer's cache.

Plain files of this package, without a build and without any other machine, served by `web_page`. The page is
open to everybody and holds no data: it fetches everything with the key that its reader types in.
"""

import asyncio
import importlib.resources
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic, TypeVar

from fastapi import FastAPI
from starlette.responses import Response

from mamba_edge.web_page import add_web_page, redirect

Value = TypeVar("Value")
KEPT_SECONDS = 0.5
"""Largest age of a cached answer in seconds: below the interval at which pages poll."""
_FOLDER = Path(str(importlib.resources.files("mamba_edge"))) / "ui"


def add_status_page(app: FastAPI) -> None:
    """Serve the page and its files, and redirect `/` to the page for users who know only the host."""

    async def bare_address() -> Response:
        return redirect("ui")

    files = {path.name: path for path in _FOLDER.iterdir() if path.suffix in (".css", ".js")}
    app.add_api_route("/", bare_address, include_in_schema=False)
    add_web_page(app, "/ui", _FOLDER / "index.html", files)


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
