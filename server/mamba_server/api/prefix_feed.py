"""What an engine tells a gateway of its checkpoints when there is no Redis between them."""

import asyncio
import contextlib
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from mamba_prefix.change_log import ChangeLog
from mamba_prefix.messages import Feed, pack

MOST_BATCHES = 256
LONGEST_WAIT = 30.0
CONTENT_TYPE = "application/msgpack"


class PrefixFeed:
    """The handler over one engine's log."""

    def __init__(self, changes: ChangeLog) -> None:
        self._log = changes

    async def prefix_changes(
        self,
        incarnation: Annotated[str, Query(max_length=64)] = "",
        since: Annotated[int, Query(ge=0)] = 0,
        wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT)] = 0.0,
    ) -> Response:
        """Changes after batch `since` of `incarnation`, or a snapshot where that is too long ago.

        Waits up to `wait` seconds for the first.
        """
        log = self._log
        if (incarnation, since) == (log.incarnation, log.seq):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await log.wait_for_change()
        changes = log.since(incarnation, since, MOST_BATCHES) if log.page_size else []
        snapshot = log.snapshot() if changes is None else None
        return Response(pack(Feed(log.heartbeat(), snapshot, changes or [])), media_type=CONTENT_TYPE)
