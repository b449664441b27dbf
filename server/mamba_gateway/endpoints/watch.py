"""Watch: keeps a copy of some Kubernetes objects up to date, by name, as plain decoded JSON.

List, then watch from there; a 410 or a silent watch leads to a new list, an unreachable API server to waiting
with back-off. What was known stays in force meanwhile. Used by `discovery`; knows nothing of what it watches.
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
"""Time after which the server ends each watch; bookmarks keep the version fresh in between."""
LONGEST_WATCH = WATCH_SECONDS + 30.0
"""Time after which a server that is still silent counts as gone."""
SHORTEST_WATCH = 1.0
"""Shortest time between two watches, for a server that ends each of them at once."""
FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 30.0
Objects = Mapping[str, Mapping[str, Any]]


class WatchExpired(Exception):
    """The watch cannot go on from this version: list again."""


class Watch:
    """The objects of one selector in one collection (`path`)."""

    def __init__(
        self, server: ApiServer, path: str, selector: str, changed: Callable[[Objects], None]
    ) -> None:
        self._server, self._path, self._changed = server, path, changed
        self._selector = {"labelSelector": selector}
        self._objects: dict[str, dict[str, Any]] = {}

    async def follow(self, rng: Random) -> None:
        """Keep the objects up to date for ever; ends only by cancellation."""
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
                # Whatever it is: without this loop the gateway would route by a picture of the past for ever.
                wait = backoff * rng.uniform(0.5, 1.0)
                log.warning("trying again", what=self._path, error=short(error), seconds=round(wait, 2))
                await asyncio.sleep(wait)
                backoff = min(LONGEST_BACKOFF, backoff * 2)

    async def list(self) -> str:
        """Replace all objects by a new list; return the version to watch from."""
        body = await self._server.request("GET", self._path, query=self._selector)
        # Read first: an answer that is no list must not pass for an empty one.
        version = str(body["metadata"]["resourceVersion"])
        self._objects = {item["metadata"]["name"]: item for item in body.get("items") or ()}
        self._changed(self._objects)
        return version

    async def watch(self, version: str) -> str:
        """Follow changes until the server ends the watch; return the version to go on from.

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
            # Lines may be longer than the reader's limit for one line: split here.
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
