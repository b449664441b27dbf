"""The feed of an engine's checkpoints, which gateways read when there is no Redis between them.

Only gateways may read it: with its page hashes, a client could test guesses of other clients' prompts.
"""

import asyncio
import contextlib
from typing import Annotated

from fastapi import Query
from fastapi.security import HTTPAuthorizationCredentials
from starlette.requests import HTTPConnection
from starlette.responses import Response

from mamba_api.names import GATEWAY_KEY
from mamba_edge.api_keys import KeyFile
from mamba_edge.app.application import KeyGuard
from mamba_edge.exchange.request_context import context_of
from mamba_prefix.change_log import ChangeLog
from mamba_prefix.messages import Feed, pack
from mamba_server.api.requests.errors import Forbidden

MAX_BATCHES = 256
MAX_WAIT_SECONDS = 30.0
CONTENT_TYPE = "application/msgpack"


class PrefixFeed:
    """Answers `GET /v1/prefix_changes` from one engine's change log."""

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
                    await log.wait_for_change()
        changes = log.since(incarnation, since, MAX_BATCHES) if log.page_size else []
        snapshot = log.snapshot() if changes is None else None
        return Response(pack(Feed(log.heartbeat(), snapshot, changes or [])), media_type=CONTENT_TYPE)


class GatewayGuard(KeyGuard):
    """Guard of routes for gateways: requires the key named `gateway`, or the only key of the key file.

    Without a key file, every call passes.
    """

    def __init__(self, keys: KeyFile | None, description: str) -> None:
        super().__init__(keys, description)
        self._accepted = keys

    async def __call__(self, request: HTTPConnection) -> HTTPAuthorizationCredentials | None:
        """Check the key. Raises Unauthorized or Forbidden."""
        passed = await super().__call__(request)
        name = context_of(request.scope).key_name
        if self._accepted is not None and name != GATEWAY_KEY and self._accepted.names != {name}:
            raise Forbidden(
                f"this path is for gateways and needs the key named {GATEWAY_KEY!r}: send the KEY of a line "
                f"'KEY {GATEWAY_KEY}' in --api-key-file"
            )
        return passed
