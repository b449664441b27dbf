"""`Watch`: keeps a copy of some Kubernetes objects up to date, by name, as decoded JSON.

It lists the objects and then watches them. After a status 410 or a silent watch it lists them again; while
the API server cannot be reached, it tries again with growing delays. The last known objects stay valid
meanwhile. Used by `discovery`; knows nothing of the kind of objects.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import msgspec
import structlog

from mamba_kube.api_server import ApiServer, refusal
from mamba_kube.errors import short

log = structlog.get_logger("mambaserve.gateway")

WATCH_SECONDS = 240
"""Seconds after which the API server ends each watch. Bookmarks keep the version up to date in between."""
LONGEST_WATCH = WATCH_SECONDS + 30.0
"""Seconds after which a watch that has not ended counts as broken."""
SHORTEST_WATCH = 1.0
"""Minimum seconds between the beginnings of two watches, in case the server ends each of them at once."""
FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 30.0
Objects = Mapping[str, Mapping[str, Any]]


class WatchExpired(Exception):
    """The API server no longer has the version from which to watch, so the objects must be listed again."""


class Watch:
    """Keeps a copy of the Kubernetes objects that match one selector in one collection (`path`).

    `changed` is called with all objects, by name, after each change.
    """

    def __init__(
        self, server: ApiServer, path: str, selector: str, changed: Callable[[Objects], None]
    ) -> None:
        self._server, self._path, self._changed = server, path, changed
        self._selector = {"labelSelector": selector}
        self._objects: dict[str, dict[str, Any]] = {}

    async def follow(self, rng: Random) -> None:
        """Keep the objects up to date until the task is cancelled."""
        now = asyncio.get_running_loop().time
        backoff = FIRST_BACKOFF
        while True:
            try:
                version = await self.list()
                backoff = FIRST_BACKOFF
                while True:
                    begin = now()
                    version = await self.watch(version)
                    await asyncio.sleep(max(0.0, begin + SHORTEST_WATCH - now()))
            except WatchExpired as why:
                log.info("listing again", what=self._path, why=str(why))
                await asyncio.sleep(FIRST_BACKOFF * rng.uniform(0.5, 1.0))
            except Exception as error:
                # No error may end this loop, or the gateway would route by outdated engines for ever.
                wait = backoff * rng.uniform(0.5, 1.0)
                log.warning("trying again", what=self._path, error=short(error), seconds=round(wait, 2))
                await asyncio.sleep(wait)
                backoff = min(LONGEST_BACKOFF, backoff * 2)

    async def list(self) -> str:
        """Replace all objects by a new list; return the version to watch from."""
        body = await self._server.request("GET", self._path, query=self._selector)
        # This is read first, so that an answer without items is not taken for an empty list.
        version = str(body["metadata"]["resourceVersion"])
        self._objects = {item["metadata"]["name"]: item for item in body.get("items") or ()}
        self._changed(self._objects)
        return version

    async def watch(self, version: str) -> str:
        """Apply changes until the server ends the watch; return the version to continue from.

        Raises `WatchExpired`.
        """
        query = {
            **self._selector,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        response = await self._server.open("GET", self._path, query=query, timeout=LONGEST_WATCH)
        with contextlib.closing(response):
            if response.status == 410:
                raise WatchExpired("the version is gone")
            if response.status != 200:
                raise await refusal("GET", self._path, response)
            buffer = b""
            # A line may be longer than the reader's limit, so the lines are split here.
            async for chunk in response.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in filter(None, lines):
                    version = self._event(msgspec.json.decode(line, type=dict[str, Any]), version)
        return version

    def _event(self, event: dict[str, Any], version: str) -> str:
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            raise WatchExpired(f"{item.get('code')} {item.get('reason') or item.get('message')}")
        metadata = item["metadata"]
        if kind == "DELETED":
            self._objects.pop(metadata["name"], None)
        elif kind in ("ADDED", "MODIFIED"):
            self._objects[metadata["name"]] = item
        if kind != "BOOKMARK":
            self._changed(self._objects)
        return str(metadata.get("resourceVersion", version))
