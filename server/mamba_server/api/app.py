"""The public HTTP application: which path is answered by whom."""

from prometheus_client import CollectorRegistry
from starlette.datastructures import Headers
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from mamba_server.api.api_keys import KeyFile
from mamba_server.api.front import Front
from mamba_server.api.generate import ChatCompletions, Completions
from mamba_server.api.info import Info
from mamba_server.api.serving import Serving


def make_app(serving: Serving, registry: CollectorRegistry, keys: KeyFile | None) -> ASGIApp:
    """The application. With `keys`, everything below /v1/ needs one."""
    info = Info(serving, registry)
    routes = [
        Route("/v1/completions", Completions(serving), methods=["POST"]),
        Route("/v1/chat/completions", ChatCompletions(serving), methods=["POST"]),
        Route("/v1/models", info.models),
        Route("/v1/models/{name:path}", info.model),
        Route("/livez", info.livez),
        Route("/readyz", info.readyz),
        Route("/health", info.readyz),
        Route("/metrics", info.metrics),
        Route("/version", info.version),
        Route("/openapi.json", info.openapi),
    ]
    known = {route.path for route in routes}

    def guard(path: str, headers: Headers) -> None:
        if keys is not None and path.startswith("/v1/"):
            keys.check(headers.get("authorization"))

    def route_of(path: str) -> str:
        if path.startswith("/v1/models/"):
            return "/v1/models/{name}"
        return path if path in known else "other"

    router = Router(routes, redirect_slashes=False)
    return Front(router, guard=guard, route_of=route_of, answered=serving.metrics.answered)
