"""The public HTTP application of the gateway: the handler of each path, and the OpenAPI document.

Relayed routes are plain ASGI and bypass FastAPI, whose overhead each request would pay. FastAPI lists them in
the document and answers wrong methods. The admin API of the engines has no route here.
"""

from collections.abc import Awaitable

from fastapi import Depends, FastAPI, Security
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mamba_api.dialects.paths import RELAYED
from mamba_api.dialects.routes import BODIES, EVENTS, ROUTES
from mamba_api.openai_examples import request_examples
from mamba_api.serving_status import ServingStatus
from mamba_edge.api_keys import KeyFile
from mamba_edge.app.application import (
    BAD_QUERY,
    NO_MODEL,
    TEXT,
    UNAUTHORIZED,
    KeyGuard,
    Responses,
    error_responses,
    generation_errors,
    in_form_of,
    make_application,
    publish,
)
from mamba_edge.exchange.request_body import BodyBudget
from mamba_edge.exchange.request_middleware import RequestMiddleware
from mamba_edge.history.history_routes import HISTORY_BODIES, HistoryEndpoints, add_history_routes
from mamba_edge.history.response_history import ResponseHistory
from mamba_edge.status_page import add_status_page
from mamba_gateway.api.local_routes import (
    DecisionList,
    GatewayModelCard,
    GatewayModelList,
    GatewayReadiness,
    LocalRoutes,
)
from mamba_gateway.api.serving_status import StatusEndpoint
from mamba_gateway.usage.usage_ledger import UsageLedger
from mamba_gateway.usage.usage_report import UsageReport
from mamba_telemetry.tracing import OFF, Tracing

_NOT_READY: Responses = {503: {"model": GatewayReadiness, "description": "Loading or draining"}}
FORBIDDEN = error_responses(e403="The key may not use the model, if there is one of this name")
_RELAY_ERRORS = generation_errors(
    e403="The key may not use the model, if there is one of this name",
    e500="A defect of the gateway or of the engine",
    e502="The engine broke off before it answered",
    e503="No engine can take the request, or the gateway drains; see Retry-After",
    e504="The engine was silent, or the request took, too long",
)


class _AsgiResponse(Response):
    """Response that an ASGI application writes, for a route whose body FastAPI must not read."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def make_app(
    routes: LocalRoutes,
    status: StatusEndpoint,
    proxy: ASGIApp,
    keys: KeyFile | None,
    bodies: BodyBudget | None = None,
    tracing: Tracing = OFF,
    history: ResponseHistory | None = None,
    ledger: UsageLedger | None = None,
) -> ASGIApp:
    """Return the application. With `keys`, all paths below /v1/ require a key; `proxy` checks keys itself.

    Without `history` or `ledger`, the application has no routes for kept responses or for `/v1/usage`.
    """
    guard = KeyGuard(keys, "One of the keys in `--api-key-file`; without that option nobody needs one.")
    app = make_application(
        "mambaserve gateway",
        guard=guard,
        guarded="/v1/",
        description="OpenAI-compatible API in front of one or more engines.",
    )
    _add_relayed(app, proxy, guard)
    if history is not None:
        endpoints = HistoryEndpoints(history, lambda context: context.key_name or "")
        add_history_routes(app, endpoints, guard)
    _add_local(app, routes, guard)
    app.add_api_route(
        "/v1/status", status.status, operation_id="status", summary="What gateway and engines do",
        response_model=ServingStatus, dependencies=[Security(guard), Depends(routes.check_sees_all)],
        responses=UNAUTHORIZED | FORBIDDEN,
    )  # fmt: skip
    if ledger is not None:
        app.add_api_route(
            "/v1/usage", ledger.usage, operation_id="usage", summary="Use of the engines by key and day",
            response_model=UsageReport, dependencies=[Security(guard)],
            responses=UNAUTHORIZED
            | BAD_QUERY
            | error_responses(
                e400="A day that the ledger does not keep", e503="The Redis of the ledger does not answer"
            ),
        )  # fmt: skip
    add_status_page(app)
    route_of = publish(
        app,
        key_needed=keys is not None,
        events=EVENTS,
        bodies=BODIES if history is None else {**BODIES, **HISTORY_BODIES},
        examples=request_examples(),
    )

    def dispatch(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        relayed = scope["path"] in RELAYED and scope["method"] == "POST"
        return (proxy if relayed else app)(scope, receive, send)

    return RequestMiddleware(
        dispatch, route_of=route_of, answered=_counted_elsewhere, bodies=bodies,
        tracing=tracing, traced=RELAYED,
    )  # fmt: skip


def _counted_elsewhere(_route: str, _status: int) -> None:
    """Count nothing: the proxy counts relayed requests by model, and probes and scrapes are not counted."""


def _add_relayed(app: FastAPI, proxy: ASGIApp, guard: KeyGuard) -> None:
    async def relayed(_: Request) -> Response:
        return _AsgiResponse(proxy)

    for path, route in ROUTES.items():
        app.add_api_route(
            path, relayed, methods=["POST"], operation_id=route.name, summary=route.summary,
            response_model=route.answer,
            description="Relayed byte for byte to the engine that is expected to answer first.",
            dependencies=[Security(guard)], responses=in_form_of(path, _RELAY_ERRORS),
            response_description=route.answer_summary,
        )  # fmt: skip


def _add_local(app: FastAPI, routes: LocalRoutes, guard: KeyGuard) -> None:
    keyed = [Security(guard)]
    app.add_api_route(
        "/v1/models", routes.models, operation_id="models", summary="Models of all engines",
        response_model=GatewayModelList, dependencies=keyed, responses=UNAUTHORIZED,
    )  # fmt: skip
    app.add_api_route(
        "/v1/models/{name:path}", routes.model, operation_id="model", summary="One model",
        response_model=GatewayModelCard, dependencies=keyed, responses=UNAUTHORIZED | FORBIDDEN | NO_MODEL,
    )  # fmt: skip
    app.add_api_route(
        "/v1/routing/decisions", routes.decisions, operation_id="decisions",
        summary="Why engines were chosen", response_model=DecisionList,
        dependencies=[*keyed, Depends(routes.check_sees_all)], responses=UNAUTHORIZED | FORBIDDEN | BAD_QUERY,
    )  # fmt: skip
    for path, operation, summary in (
        ("/readyz", "readyz", "Whether requests are welcome"),
        ("/health", "health", "Same as /readyz"),
    ):
        app.add_api_route(
            path, routes.readyz, operation_id=operation, summary=summary, response_model=GatewayReadiness,
            responses=_NOT_READY,
        )  # fmt: skip
    app.add_api_route("/livez", routes.livez, operation_id="livez", summary="Whether the process lives")
    app.add_api_route(
        "/metrics", routes.metrics, operation_id="metrics", summary="Prometheus metrics",
        response_class=Response, responses=TEXT,
    )  # fmt: skip
    app.add_api_route("/version", routes.version, operation_id="version", summary="Version of mambaserve")
