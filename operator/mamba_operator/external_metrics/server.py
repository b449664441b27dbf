"""HTTPS server of the external metrics API. Only the holder of the lease, which has the metrics, runs it.

The API server is its only client. The API server authenticates by its certificate and names a user, whose
access the API server then reviews.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import structlog
from aiohttp import web

from mamba_operator.autoscale.scaling_metrics import ScalingMetrics
from mamba_operator.external_metrics import documents
from mamba_operator.external_metrics.access_review import AccessReview
from mamba_operator.external_metrics.front_proxy import FrontProxy, UserInfo
from mamba_operator.external_metrics.label_selector import SelectorInvalid, selector
from mamba_operator.objects.errors import ClusterError
from mamba_operator.process.liveness import listen

log = structlog.get_logger(__name__)
MAX_AGE_SECONDS = 120.0
"""Largest age of a sample that is served: twice the longest time between polls."""
ROOT = f"/apis/{documents.GROUP}"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ExternalMetrics:
    """Handlers of the API's requests, independent of the listening socket.

    Args:
        metrics: latest samples of the autoscaler.
        review: authorization of users.
        proxy: authentication of the API server.
        now: the clock of the autoscaler.
        wall: the time of day.
    """

    def __init__(
        self,
        metrics: ScalingMetrics,
        review: AccessReview,
        proxy: FrontProxy,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._metrics, self._review, self._proxy = metrics, review, proxy
        self._now, self._wall = now, wall

    def app(self) -> web.Application:
        """Return the application with its routes."""

        @web.middleware
        async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except web.HTTPNotFound:
                return _refused(404, "NotFound", "the server could not find the requested resource")
            except web.HTTPMethodNotAllowed:
                return _refused(405, "MethodNotAllowed", f"{request.method} is not supported")
            except ClusterError as error:
                log.warning("access_not_reviewed", error=str(error))
                return _refused(503, "ServiceUnavailable", f"your access could not be reviewed: {error}")

        app = web.Application(middlewares=[answer_errors])
        app.add_routes(
            [
                web.get(ROOT, self._group),
                web.get(f"{ROOT}/{documents.VERSION}", self._resources),
                web.get(f"{ROOT}/{documents.VERSION}/namespaces/{{namespace}}/{{metric}}", self._values),
            ]
        )
        return app

    async def _group(self, request: web.Request) -> web.Response:
        return await self._discovery(request) or web.json_response(documents.group())

    async def _resources(self, request: web.Request) -> web.Response:
        return await self._discovery(request) or web.json_response(documents.resources())

    async def _discovery(self, request: web.Request) -> web.Response | None:
        """Return the refusal of a discovery request; None when it is allowed."""
        user_info = self._user_info(request)
        if user_info is None:
            return _unauthorized()
        if await self._review.may(user_info, "nonResourceAttributes", path=request.path, verb="get"):
            return None
        return _refused(403, "Forbidden", f"user {user_info.user!r} may not get {request.path}")

    async def _values(self, request: web.Request) -> web.Response:
        namespace, metric = request.match_info["namespace"], request.match_info["metric"]
        user_info = self._user_info(request)
        if user_info is None:
            return _unauthorized()
        allowed = await self._review.may(
            user_info, "resourceAttributes", group=documents.GROUP, version=documents.VERSION,
            resource=metric, namespace=namespace, verb="list",
        )  # fmt: skip
        if not allowed:
            return _refused(
                403, "Forbidden",
                f"user {user_info.user!r} may not list {metric} of {documents.GROUP}"
                f" in namespace {namespace}",
            )  # fmt: skip
        if metric not in documents.NAMES:
            available = ", ".join(documents.NAMES)
            return _refused(404, "NotFound", f"no external metric {metric}: available are {available}")
        try:
            selected = selector(request.query.get("labelSelector", ""))
        except SelectorInvalid as error:
            return _refused(400, "BadRequest", str(error))
        now, wall = self._now(), self._wall()
        samples = (
            (name, wall - timedelta(seconds=now - time), sample)
            for name, time, sample in self._metrics.last(namespace, documents.NAMES[metric])
            if now - time <= MAX_AGE_SECONDS
        )
        return web.json_response(documents.values(metric, samples, selected))

    def _user_info(self, request: web.Request) -> UserInfo | None:
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        return self._proxy.user_info(certificate, request.headers)


def _unauthorized() -> web.Response:
    return _refused(401, "Unauthorized", "only the API server has access, for a user that it names")


def _refused(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(documents.refusal(code, reason, message), status=code)


@asynccontextmanager
async def serving(app: web.Application, host: str, port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """Serve for the length of the block, and yield the port."""
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        site = web.SockSite(runner, listen(host, port), ssl_context=context)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        # Running requests finish; idle connections are closed.
        await asyncio.shield(runner.cleanup())
