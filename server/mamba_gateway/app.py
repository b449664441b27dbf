"""The ASGI application: routes, models, health and metrics, and what every response carries.

Built once by `server`; the relayed routes are in `proxy`. The engines' admin API has no route here.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from importlib.metadata import version
from random import Random
from typing import Any

import aiohttp
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mamba_gateway.admission import Admission
from mamba_gateway.auth import KeyFile
from mamba_gateway.body import Receive
from mamba_gateway.endpoints import Pool
from mamba_gateway.errors import Draining, GatewayError, NoEndpoint, UnknownModel, UnknownRoute, WrongMethod
from mamba_gateway.headers import request_id
from mamba_gateway.metrics import GatewayMetrics
from mamba_gateway.proxy_endpoint import ProxyEndpoint, error_headers
from mamba_gateway.relay import Send

Asgi = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
PROBE = aiohttp.ClientTimeout(total=10)


class LocalRoutes:
    """The routes that the gateway answers itself."""

    def __init__(
        self,
        pool: Pool,
        admission: Admission,
        metrics: GatewayMetrics,
        session: aiohttp.ClientSession,
        keys: KeyFile | None,
    ) -> None:
        self._pool, self._admission, self._metrics = pool, admission, metrics
        self._session, self._keys = session, keys

    async def models(self, request: Request) -> Response:
        """GET /v1/models: those of all endpoints, one entry for each name."""
        self._check(request)
        return _json({"object": "list", "data": self._pool.model_entries()})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/{id}."""
        self._check(request)
        name = request.path_params["model"]
        for entry in self._pool.model_entries():
            if entry["id"] == name:
                return _json(entry)
        raise UnknownModel(f"the model {name!r} does not exist", param="model")

    async def live(self, _request: Request) -> Response:
        """GET /livez and /health: the process answers."""
        return _json({"status": "ok"})

    async def ready(self, _request: Request) -> Response:
        """GET /readyz: takes requests. Engines may be absent: a request then waits for one for a while."""
        snapshot = self._pool.snapshot()
        body = {
            "status": "ready",
            "endpoints": {"known": len(snapshot), "ready": sum(e.ready and not e.draining for e in snapshot)},
            "reasons": self._pool.reasons(),
        }
        if self._admission.draining:
            raise Draining("draining", retry_after=1)
        if not self._pool.synced:
            raise NoEndpoint("loading: the list of engines has not been read yet", retry_after=1)
        return _json(body)

    async def metrics(self, _request: Request) -> Response:
        """GET /metrics: Prometheus text."""
        self._metrics.in_flight.set(self._admission.in_flight)
        self._metrics.queued.set(self._admission.queued)
        return Response(self._metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def version(self, _request: Request) -> Response:
        """GET /version."""
        return _json({"version": version("mambaserve"), "component": "gateway"})

    async def openapi(self, _request: Request) -> Response:
        """GET /openapi.json: an engine's own document, so that it never differs from what is served."""
        for endpoint in self._pool.snapshot():
            if not endpoint.ready:
                continue
            try:
                async with self._session.get(f"{endpoint.url}/openapi.json", timeout=PROBE) as answer:
                    if answer.status == 200:
                        return Response(await answer.read(), media_type="application/json")
            except (aiohttp.ClientError, TimeoutError, OSError):
                continue
        raise NoEndpoint("the document comes from an engine, and none is ready; retry later", retry_after=2)

    def _check(self, request: Request) -> None:
        if self._keys:
            self._keys.check(request.scope["headers"])


class Identified:
    """Gives every request an identifier and every response the header that tells it."""

    def __init__(self, app: Asgi, rng: Random) -> None:
        self._app, self._rng = app, rng

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identifier = scope["request_id"] = request_id(scope["headers"], self._rng)

        async def named(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", identifier)]
            await send(message)

        await self._app(scope, receive, named)


def build(local_routes: LocalRoutes, proxy: ProxyEndpoint, rng: Random) -> Asgi:
    """The whole application."""
    get = ["GET"]
    routes = [
        Route("/v1/completions", proxy, methods=["POST"]),
        Route("/v1/chat/completions", proxy, methods=["POST"]),
        Route("/v1/models", local_routes.models, methods=get),
        Route("/v1/models/{model:path}", local_routes.model, methods=get),
        Route("/health", local_routes.live, methods=get),
        Route("/livez", local_routes.live, methods=get),
        Route("/readyz", local_routes.ready, methods=get),
        Route("/metrics", local_routes.metrics, methods=get),
        Route("/version", local_routes.version, methods=get),
        Route("/openapi.json", local_routes.openapi, methods=get),
    ]
    handlers: dict[Any, Any] = {GatewayError: _refuse, HTTPException: _http, Exception: _broken}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False  # as at an engine: such a path is unknown
    return Identified(app, rng)


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


async def _refuse(_request: Request, error: GatewayError) -> Response:
    headers = {key.decode(): value.decode() for key, value in error_headers(error)}
    return Response(error.envelope(), error.status, headers=headers)


async def _http(request: Request, error: HTTPException) -> Response:
    where = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        wrong = WrongMethod(f"{where}: the method is not allowed here")
        wrong.allow = (error.headers or {}).get("Allow", "")
        return await _refuse(request, wrong)
    return await _refuse(request, UnknownRoute(f"{where}: nothing is served here"))


async def _broken(request: Request, _error: Exception) -> Response:
    return await _refuse(request, GatewayError("the gateway failed on this request; its log says more"))
