"""Relay: choose an engine, send the request, pass its answer on; elsewhere again while nothing has been sent.

JSON and server-sent events pass through unparsed and unbuffered: a slow client slows the engine's socket.
Called by the exchange inside an admitted place; cancelling the call closes the connection to the engine.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import replace
from random import Random
from typing import Any

import aiohttp
import structlog

from mamba_gateway.endpoints import Endpoint, Pool
from mamba_gateway.errors import (
    Draining,
    GatewayError,
    NoEndpoint,
    TookTooLong,
    UnknownModel,
    UpstreamDied,
    UpstreamSilent,
)
from mamba_gateway.events import EventAligner
from mamba_gateway.headers import to_client
from mamba_gateway.metrics import GatewayMetrics
from mamba_gateway.route.choose import Ask, Nothing, choose
from mamba_gateway.upstream import Call, Died, Silent, Unreachable, attempt, outcomes

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
log = structlog.get_logger("mambaserve.gateway")

ELSEWHERE = frozenset((502, 503))
"""Statuses with which an engine says that another one may do better."""


GOODBYE_SECONDS = 3.0
"""How long an error event may wait for the client's socket."""


class Truncated(Exception):
    """The answer broke off and its framing has no room for an error: the connection has to be closed."""


class Relay:
    """The relay of one gateway."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        pool: Pool,
        metrics: GatewayMetrics,
        rng: Random,
        *,
        hold_timeout: float,
        max_attempts: int,
        request_timeout: float,
        wanted: Callable[[], None],
    ) -> None:
        self._session, self._pool, self._metrics, self._rng = session, pool, metrics, rng
        self._hold_timeout, self._max_attempts = hold_timeout, max_attempts
        self._request_timeout, self._wanted = request_timeout, wanted
        self.cutting = False
        """The drain's time is over: a cancelled stream still ends with an error event."""

    async def run(self, call: Call, send: Send) -> None:
        """Answer the request through `send`, within its longest life.

        Raises a `GatewayError` for the client (a stream that has begun carries it already), `Truncated` if a
        non-stream answer broke off.
        """
        life = asyncio.timeout(self._request_timeout)
        try:
            async with life:
                await self._attempts(call, send, life)
        except TimeoutError:
            raise self._too_long() from None

    async def _attempts(self, call: Call, send: Send, life: asyncio.Timeout) -> None:
        ask = Ask(call.model)
        deadline = asyncio.get_running_loop().time() + self._hold_timeout
        for number in range(1, self._max_attempts + 1):
            last = number == self._max_attempts
            endpoint = await self._endpoint(ask, deadline)
            self._pool.begin(endpoint.url)
            try:
                async with attempt(self._session, endpoint.url, call) as (response, first):
                    if response.status not in ELSEWHERE or last:
                        await self._pass_on(response, first, send, endpoint, life)
                        return
                reason, said = "refused", f"it answered {response.status}"
            except Unreachable as error:
                reason, said = "unreachable", str(error)
                if last:
                    raise NoEndpoint("no engine could be reached", retry_after=2) from error
            except Died as error:
                reason, said = "died", str(error)
                if last or ask.tried:
                    # A request that takes engines down with it must not go round the whole pool.
                    raise UpstreamDied("the engine closed the connection before it answered") from error
                ask = replace(ask, tried=(endpoint.url,))
            except Silent as error:
                raise UpstreamSilent("the engine sent nothing for too long") from error
            finally:
                self._pool.end(endpoint.url)
            self._pool.suspect(endpoint.url, said)
            self._metrics.retries.labels(reason).inc()
            log.warning("attempt failed", endpoint=endpoint.name, reason=reason, said=said, attempt=number)

    async def _endpoint(self, ask: Ask, deadline: float) -> Endpoint:
        # Choose, or wait until an endpoint is ready: a rollout or a wake-up from zero takes a moment.
        found = choose(self._pool.snapshot(), ask, self._rng)
        if isinstance(found, Endpoint):
            return found
        with self._metrics.held.track_inprogress():
            while not isinstance(found, Endpoint):
                self._wanted()
                if found is Nothing.MODEL_UNKNOWN:
                    raise UnknownModel(f"the model {ask.model!r} does not exist", param="model")
                if found is Nothing.ALL_TRIED:
                    raise UpstreamDied("the engine closed the connection before it answered")
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._pool.changed()
                except TimeoutError:
                    raise NoEndpoint(_why(found, self._pool.reasons()), retry_after=2) from None
                found = choose(self._pool.snapshot(), ask, self._rng)
        return found

    async def _pass_on(
        self,
        response: aiohttp.ClientResponse,
        first: bytes,
        send: Send,
        endpoint: Endpoint,
        life: asyncio.Timeout,
    ) -> None:
        headers = to_client(response.raw_headers)
        events = response.content_type == "text/event-stream" and "Content-Encoding" not in response.headers
        aligner = EventAligner() if events else None
        if events:  # a declared length would leave no room for an error event
            headers = [pair for pair in headers if pair[0] != b"content-length"]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        try:
            chunk = first
            while chunk:
                if out := aligner.feed(chunk) if aligner else chunk:
                    await send({"type": "http.response.body", "body": out, "more_body": True})
                with outcomes():
                    chunk = await response.content.readany()
        except (Died, Unreachable, Silent) as error:
            self._metrics.broken.inc()
            log.warning("answer broke off", endpoint=endpoint.name, said=str(error))
            silent = isinstance(error, Silent)
            cause = UpstreamSilent("the engine sent nothing for too long") if silent else UpstreamDied(
                "the engine closed the connection before its answer was complete"
            )  # fmt: skip
            await _break_off(aligner, cause, send)
        except asyncio.CancelledError:
            if life.expired():
                await _break_off(aligner, self._too_long(), send)
            elif self.cutting:
                await _break_off(
                    aligner, Draining("the gateway stopped before the answer was complete"), send
                )
            raise
        else:
            rest = aligner.rest() if aligner else b""
            await send({"type": "http.response.body", "body": rest, "more_body": False})

    def _too_long(self) -> TookTooLong:
        return TookTooLong(f"the request took longer than {self._request_timeout:g} s")


async def _break_off(aligner: EventAligner | None, error: GatewayError, send: Send) -> None:
    if aligner is None:
        raise Truncated from error
    try:
        async with asyncio.timeout(GOODBYE_SECONDS):
            await send({"type": "http.response.body", "body": aligner.cut(error), "more_body": False})
    except TimeoutError:
        # A client that has stopped reading does not get to keep the request.
        raise Truncated from error


def _why(nothing: Nothing, reasons: dict[str, str]) -> str:
    listed = "; ".join(f"{name}: {reason}" for name, reason in list(reasons.items())[:3])
    return f"{nothing.value}; retry later" + (f" ({listed})" if listed else "")
