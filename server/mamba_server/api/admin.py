"""The admin application, on a port of its own: plan, ledger, cache flush, strategy, drain, running requests.

Operations on the engine are relayed as AdminCall; draining is done here. Needs the token when one is set.
"""

import ipaddress
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from mamba_api.strategy import Strategy
from mamba_server.api.answers import encode
from mamba_server.api.api_keys import KeyFile
from mamba_server.api.errors import Forbidden
from mamba_server.api.front import Front
from mamba_server.api.request_body import parse_json_object, read_body, validate
from mamba_server.api.serving import Serving

_BODY_LIMIT = 1 << 16


class StrategyChange(BaseModel):
    """Body of `PUT /admin/strategy`."""

    model_config = ConfigDict(strict=True, frozen=True)

    strategy: Strategy
    trackInterval: int | None = Field(None, ge=1)  # noqa: N815 - the name in the public interface


def is_loopback(host: str) -> bool:
    """Whether an address is only reachable from this machine (or network namespace)."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(encode(body), status, media_type="application/json")


class Admin:
    """Handlers over one served model."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def _relay(self, verb: str, body: dict[str, Any] | None = None) -> Response:
        reply = await self._serving.engine.admin(verb, body or {})
        return _json(reply.body, reply.status)

    async def flush_cache(self, _: Request) -> Response:
        """Forget every checkpoint that nobody holds."""
        return await self._relay("flush_cache")

    async def plan(self, _: Request) -> Response:
        """The memory plan in force."""
        return await self._relay("plan")

    async def ledger(self, _: Request) -> Response:
        """Pages and slots by owner."""
        return await self._relay("ledger")

    async def requests(self, _: Request) -> Response:
        """What runs and waits."""
        return await self._relay("requests")

    async def strategy(self, request: Request) -> Response:
        """Change the strategy at the next step boundary."""
        raw = parse_json_object(await read_body(request, request.receive, _BODY_LIMIT))
        change = validate(StrategyChange, raw)
        answer = await self._relay("strategy", change.model_dump(exclude_none=True))
        if answer.status_code == 200:
            self._serving.on_strategy(change.strategy)
        return answer

    async def drain(self, _: Request) -> Response:
        """Refuse new requests, finish those under way."""
        self._serving.drain.draining = True
        return self._drain_state()

    async def undrain(self, _: Request) -> Response:
        """Welcome requests again."""
        self._serving.drain.draining = False
        return self._drain_state()

    def _drain_state(self) -> Response:
        drain = self._serving.drain
        return _json({"draining": drain.draining, "underWay": drain.under_way})


def make_admin(serving: Serving, token: KeyFile | None) -> ASGIApp:
    """The application. Without `token` the caller must bind it to loopback."""
    admin = Admin(serving)
    routes = [
        Route("/admin/flush_cache", admin.flush_cache, methods=["POST"]),
        Route("/admin/plan", admin.plan),
        Route("/admin/ledger", admin.ledger),
        Route("/admin/requests", admin.requests),
        Route("/admin/strategy", admin.strategy, methods=["PUT"]),
        Route("/admin/drain", admin.drain, methods=["POST"]),
        Route("/admin/undrain", admin.undrain, methods=["POST"]),
    ]
    known = {route.path for route in routes}

    def guard(_: str, headers: Headers) -> None:
        if token is not None:
            token.check(headers.get("authorization"))
        elif "origin" in headers:
            # A page in a browser on this machine can reach loopback, too.
            raise Forbidden("admin calls from a browser are not accepted")

    return Front(
        Router(routes, redirect_slashes=False),
        guard=guard,
        route_of=lambda path: path if path in known else "other",
        answered=serving.metrics.answered,
    )
