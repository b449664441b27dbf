"""The feed of an engine's checkpoints, which gateways read when there is no Redis between them."""

import asyncio
import contextlib
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from mamba_prefix.change_log import ChangeLog
from mamba_prefix.messages import Feed, pack

MAX_BATCHES = 256
MAX_WAIT_SECONDS = 30.0
CONTENT_TYPE = "application/msgpack"


class PrefixFeed:
    """The handler of `GET /v1/prefix_changes` over one engine's change log."""

    def __init__(self, changes: ChangeLog) -> None:
        self._log = changes

    async def prefix_changes(
        self,
        incarnation: Annotated[str, Query(max_length=64)] = "",
        since: Annotated[int, Query(ge=0)] = 0,
        wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0.0,
    ) -> Response:
        """Return the changes after batch `since` of `incarnation`, or a snapshot if they are no longer kept.

        Waits up to `wait` seconds for the first change.
        """
        log = self._log
        if (incarnation, since) == (log.incarnation, log.seq):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await log.changed()
        changes = log.since(incarnation, since, MAX_BATCHES) if log.page_size else []
        snapshot = log.snapshot() if changes is None else None
        return Response(pack(Feed(log.heartbeat(), snapshot, changes or [])), media_type=CONTENT_TYPE)
