"""`UnreadExports`: states that a prefill engine holds and that no engine will come for any more.

The relay names them when a request has ended before an engine that answers had its state. Nobody waits for
the call, and a call that fails costs nothing but the rest of the lease.
"""

import asyncio
from contextlib import suppress

from mamba_edge.exchange.hand_over_headers import RELEASE, release_header
from mamba_gateway.relay.attempts import HandedOver
from mamba_gateway.upstream.connection import ConnectionLost, EngineUnreachable, IdleTimeout
from mamba_gateway.upstream.connector import UpstreamConnector, UpstreamRequest

RELEASE_SECONDS = 5.0
"""Longest time, in seconds, of one call."""
MAX_CALLS = 64
"""Number of calls at once. Further exports end with their leases."""


class UnreadExports:
    """Lets prefill engines free the states that no engine will fetch any more, with one call for each."""

    def __init__(self, connector: UpstreamConnector) -> None:
        self._connector, self._loop = connector, connector.loop
        self._calls: set[asyncio.Task[None]] = set()

    def release(self, state: HandedOver, request: UpstreamRequest) -> None:
        """Begin to free the export of a request that has ended, unless its lease is over."""
        if self._loop.time() >= state.until or len(self._calls) >= MAX_CALLS:
            return
        headers = [pair for pair in request.headers if pair[0] == b"authorization"]
        headers.append(release_header(state.hand_over.export))
        call = self._loop.create_task(self._call(state.prefill.decision.endpoint.url, headers))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(self, url: str, headers: list[tuple[bytes, bytes]]) -> None:
        with suppress(EngineUnreachable, ConnectionLost, IdleTimeout, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                answer, _ = await self._connector.send(url, f"POST {RELEASE}", headers, b"")
                answer.close()
