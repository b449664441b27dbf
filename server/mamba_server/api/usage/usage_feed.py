"""The feed of what requests have used of this engine, which gateways read into their ledgers.

Only gateways may read it: it names API keys.
"""

import asyncio
import contextlib
from typing import Annotated

import msgspec
from fastapi import Query
from starlette.responses import Response

from mamba_server.api.usage.usage_totals import UsageTotals

MAX_WAIT_SECONDS = 30.0
GATHER_SECONDS = 0.25
"""Time for which changes are gathered once there is one: a busy engine has hundreds in a second."""


class UsageFeedEndpoint:
    """Answers `GET /v1/usage_changes`, by which gateways read the use of the engine."""

    def __init__(self, totals: UsageTotals) -> None:
        self._totals = totals

    async def usage_changes(
        self,
        incarnation: Annotated[str, Query(max_length=64)] = "",
        since: Annotated[int, Query(ge=0)] = 0,
        wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0.0,
    ) -> Response:
        """Return the totals that changed after revision `since` of `incarnation`; wait for the first one."""
        totals = self._totals
        if wait and incarnation == totals.incarnation and since >= totals.revision:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await totals.wait_beyond(since)
                    await totals.settle(min(wait, GATHER_SECONDS))
        feed = totals.feed(incarnation, since)
        return Response(msgspec.json.encode(feed), media_type="application/json")
