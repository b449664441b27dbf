"""The admin application, on its own port: plan, ledger, cache flush, strategy, drain, running requests.

Operations on the engine are relayed as AdminCall; draining is done here. Calls need the token if one is set.
"""

import ipaddress
from typing import Any
from urllib.parse import urlsplit

import msgspec
from fastapi import FastAPI, Security
from fastapi.security import HTTPAuthorizationCredentials
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp

from mamba_api.choices import Eviction, Strategy
from mamba_api.openai_responses import Explanations
from mamba_edge.api_keys import KeyFile
from mamba_edge.app.application import (
    JsonResponse,
    KeyGuard,
    Responses,
    error_responses,
    make_application,
    publish,
)
from mamba_edge.errors import InvalidRequest
from mamba_edge.exchange.request_middleware import RequestMiddleware
from mamba_server.api.explanations import ExplanationEndpoints
from mamba_server.api.prompt_state import KeptStates
from mamba_server.api.requests.errors import AdminRefused, Forbidden
from mamba_server.api.requests.request_body import limited_route
from mamba_server.api.serving import Serving
from mamba_server.api.sessions import FORM, SessionEndpoints
from mamba_settings.adapter_settings import check_name

_BODY_LIMIT = 1 << 16


class StrategyChange(BaseModel):
    """Body of `PUT /admin/strategy`; omitted fields keep their values."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", json_schema_extra={"minProperties": 1}
    )

    trackInterval: int | None = Field(None, ge=1, le=2**31 - 1)  # noqa: N815 - the name in the public interface
    maxCheckpointsPerPath: int | None = Field(None, ge=1, le=1024)  # noqa: N815 - as above
    eviction: Eviction | None = None
    strategy: Strategy | None = Field(None, validate_default=True)

    @field_validator("strategy")
    @classmethod
    def _require_a_change(cls, strategy: Strategy | None, info: ValidationInfo) -> Strategy | None:
        others = ("trackInterval", "maxCheckpointsPerPath", "eviction")
        if strategy is None and all(info.data.get(name) is None for name in others):
            raise PydanticCustomError(
                "nothing_given", f"give a strategy, {', '.join(others[:-1])} or {others[-1]}"
            )
        return strategy


class SpeculationChange(BaseModel):
    """Body of `PUT /admin/speculation`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    on: bool


class SpeculationState(BaseModel):
    """Response body of `/admin/speculation`. `reason`: why steps have no drafts; empty while they may."""

    on: bool
    reason: str


class DrainState(BaseModel):
    """Response body of `POST /admin/drain` and `POST /admin/undrain`."""

    draining: bool
    underWay: int  # noqa: N815 - the name in the public interface


class AdapterLoad(BaseModel):
    """Body of `POST /admin/load_lora_adapter`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True)

    lora_name: str
    """Name that requests give as `model`. A loaded adapter of this name is replaced."""
    lora_path: str = Field(min_length=1)
    """Directory that PEFT wrote, as the engine sees it."""

    @field_validator("lora_name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return check_name(name)


class AdapterUnload(BaseModel):
    """Body of `POST /admin/unload_lora_adapter`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True)

    lora_name: str
    """Name of a loaded adapter."""


class AdminGuard(KeyGuard):
    """Lets only calls with the token into the admin API; without a token, all but calls from web pages."""

    def __init__(self, token: KeyFile | None) -> None:
        super().__init__(token, "The token in `--admin-token-file`. Without that option, no token is needed.")
        self._open = token is None

    async def __call__(self, request: HTTPConnection) -> HTTPAuthorizationCredentials | None:
        """Check the token, or the origin of the call if no token is set. Raises Unauthorized or Forbidden."""
        if self._open and "origin" in request.headers:
            # A web page in a browser on this machine can reach loopback addresses.
            raise Forbidden("admin calls from a browser are not accepted")
        if self._open and not _is_address(request.headers.get("host", "localhost")):
            # DNS rebinding: the host name of a web page may come to resolve to this machine.
            raise Forbidden(
                "without an admin token, the Host header must be an IP address or localhost; to call by "
                "another name, set --admin-token-file"
            )
        return await super().__call__(request)


def _is_address(host: str) -> bool:
    """Return whether a Host header holds an IP address, or a name that resolves without a name server."""
    try:
        name = "" if "@" in host else urlsplit(f"//{host}").hostname
        return name == "localhost" or bool(ipaddress.ip_address(name or ""))
    except ValueError:
        return False


class AdminEndpoints:
    """Answers the requests to the admin API of one served model."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def _relay(self, verb: str, body: dict[str, Any] | None = None) -> Response:
        """Send an operation to the engine and return its reply. Raises AdminRefused."""
        reply = await self._serving.engine.admin(verb, body or {})
        if reply.status >= 400:
            raise AdminRefused(reply)
        return JsonResponse(reply.body, reply.status)

    async def flush_cache(self) -> Response:
        """Evict every checkpoint that no running sequence uses."""
        return await self._relay("flush_cache")

    async def plan(self) -> Response:
        """Return the memory plan in force."""
        return await self._relay("plan")

    async def ledger(self) -> Response:
        """Return the numbers of pages and slots by owner."""
        return await self._relay("ledger")

    async def requests(self) -> Response:
        """List the running and waiting sequences."""
        return await self._relay("requests")

    async def audits(self) -> Response:
        """List the last audits of answers that resumed or had drafts, the newest first."""
        return await self._relay("audits")

    async def speculation(self) -> Response:
        """Say whether steps may have drafts, and if not, why."""
        return await self._relay("speculation")

    async def switch_speculation(self, change: SpeculationChange) -> Response:
        """Switch drafts on or off. An audit that finds a wrong answer switches them off, too."""
        return await self._relay("speculation", change.model_dump())

    async def strategy(self, change: StrategyChange) -> Response:
        """Change checkpoint strategy and eviction at the next step boundary."""
        answer = await self._relay("strategy", change.model_dump(exclude_none=True))
        if change.strategy is not None:
            self._serving.on_strategy(change.strategy)
        return answer

    async def lora_adapters(self) -> dict[str, Any]:
        """List the loaded adapters."""
        return {
            "adapters": [msgspec.to_builtins(adapter) for adapter in self._serving.adapters.loaded],
            "places": self._serving.settings.lora_places,
            "maxRank": self._serving.settings.max_lora_rank,
        }

    async def load_lora_adapter(self, body: AdapterLoad) -> dict[str, Any]:
        """Load an adapter, or replace the one of its name; running requests end with the earlier one."""
        if body.lora_name == self._serving.model_name:
            raise InvalidRequest(
                f"lora_name: {body.lora_name} is the name of the model; choose another one", param="lora_name"
            )
        adapter = await self._serving.adapters.load(body.lora_name, body.lora_path)
        answer: dict[str, Any] = msgspec.to_builtins(adapter)
        return answer

    async def unload_lora_adapter(self, body: AdapterUnload) -> dict[str, Any]:
        """Accept no further request for an adapter; its place is free when the running ones have ended."""
        await self._serving.adapters.unload(body.lora_name)
        return {"name": body.lora_name}

    async def drain(self) -> DrainState:
        """Refuse new requests and finish running ones."""
        self._serving.drain.draining = True
        return self._drain_state()

    async def undrain(self) -> DrainState:
        """Accept new requests again."""
        self._serving.drain.draining = False
        return self._drain_state()

    def _drain_state(self) -> DrainState:
        drain = self._serving.drain
        return DrainState(draining=drain.draining, underWay=drain.under_way)


_ERRORS = error_responses(
    e401="The token is missing or wrong",
    e403="The call comes from a web page, or names the host by a name that needs a token",
    e503="The model is not ready, or the engine process ended; see Retry-After",
    e504="The engine did not answer in time",
)
_BODY_ERRORS = error_responses(
    e400="The body is invalid", e408="The body did not arrive in time",
    e409="The change conflicts with running sequences; try again later",
    e413="The body is too large", e415="The body is not JSON",
)  # fmt: skip


_FILE: Responses = {200: {"content": {FORM: {"schema": {"type": "string", "format": "binary"}}}}}
_SESSION_ERRORS = error_responses(
    e408="The body did not arrive in time",
    e409="The file is of another model or layout",
    e413="The body is too large, or the session does not fit the arena",
    e422="The file is damaged",
    e429="Another session is being moved; see Retry-After",
    e507="The file cannot be written or read here",
)


WITH_BODIES = ("strategy", "handover", "load_lora_adapter", "unload_lora_adapter")
"""Operations whose calls have a body."""
_UNKNOWN_ADAPTER = {"unload_lora_adapter": error_responses(e404="No adapter of that name is loaded")}


def _add_speculation(app: FastAPI, admin: AdminEndpoints, guard: AdminGuard) -> None:
    none = error_responses(e409="The engine has no speculation")
    for method, name, handler, errors in (
        ("GET", "speculation", admin.speculation, none),
        ("PUT", "switchSpeculation", admin.switch_speculation, _BODY_ERRORS | none),
    ):
        app.add_api_route(
            "/admin/speculation",
            handler,
            methods=[method],
            operation_id=name,
            dependencies=[Security(guard)],
            response_model=SpeculationState,
            responses=_ERRORS | errors,
        )


def _add_sessions(app: FastAPI, sessions: SessionEndpoints, guard: AdminGuard) -> None:
    for method, name, summary, handler, answers in (
        ("POST", "saveSession", "Save a conversation as a file", sessions.save, _FILE | _BODY_ERRORS),
        ("PUT", "loadSession", "Install a saved conversation", sessions.load, {}),
    ):
        app.add_api_route(
            "/admin/session",
            handler,
            methods=[method],
            operation_id=name,
            summary=summary,
            response_class=Response if method == "POST" else JsonResponse,
            dependencies=[Security(guard)],
            responses=_ERRORS | answers | _SESSION_ERRORS,
            openapi_extra=_body_of(method),
        )
    app.add_api_route(
        "/admin/session/depth",
        sessions.depth,
        methods=["POST"],
        operation_id="sessionDepth",
        summary="Say how much of a conversation is cached",
        response_model=dict[str, Any],
        dependencies=[Security(guard)],
        responses=_ERRORS | _BODY_ERRORS,
        openapi_extra=_body_of("POST"),
    )


def _add_explanations(app: FastAPI, explanations: ExplanationEndpoints, guard: AdminGuard) -> None:
    app.add_api_route(
        # An X-Request-Id may have slashes.
        "/admin/explanations/{name:path}",
        explanations.recent,
        methods=["GET"],
        operation_id="recentExplanation",
        summary="Explain what a recent request resumed",
        response_model=Explanations,
        dependencies=[Security(guard)],
        responses=_ERRORS | error_responses(e404="No explanation of that request is kept"),
    )
    app.add_api_route(
        "/admin/explain",
        explanations.dry_run,
        methods=["POST"],
        operation_id="explain",
        summary="Explain what a prompt would resume",
        response_model=Explanations,
        dependencies=[Security(guard)],
        responses=_ERRORS | _BODY_ERRORS,
        openapi_extra=_body_of("POST"),
    )


def _body_of(method: str) -> dict[str, Any]:
    """Return the OpenAPI description of the body: for PUT a session file, otherwise a conversation.

    The handlers read the body themselves, so FastAPI does not know its form.
    """
    content: dict[str, Any]
    if method == "PUT":
        content = {FORM: {"schema": {"type": "string", "format": "binary"}}}
    else:
        fields = {"messages": {"type": "array", "items": {"type": "object"}}, "prompt": {}}
        content = {"application/json": {"schema": {"type": "object", "properties": fields}}}
    return {"requestBody": {"required": True, "content": content}}


def make_admin(serving: Serving, token: KeyFile | None) -> ASGIApp:
    """Build the admin application. Without `token`, the caller must bind it to a loopback address."""
    admin, guard = AdminEndpoints(serving), AdminGuard(token)
    app = make_application(
        "mambaserve admin",
        guard=guard,
        guarded="/",
        description="Operations on one engine. They need the admin token if one is set.",
    )
    app.router.route_class = limited_route(_BODY_LIMIT, guard)
    for method, name, handler, answer in (
        ("POST", "flush_cache", admin.flush_cache, dict[str, Any]),
        ("GET", "plan", admin.plan, dict[str, Any]),
        ("GET", "ledger", admin.ledger, dict[str, Any]),
        ("GET", "requests", admin.requests, dict[str, Any]),
        ("GET", "audits", admin.audits, dict[str, Any]),
        ("PUT", "strategy", admin.strategy, dict[str, Any]),
        ("GET", "lora_adapters", admin.lora_adapters, dict[str, Any]),
        ("POST", "load_lora_adapter", admin.load_lora_adapter, dict[str, Any]),
        ("POST", "unload_lora_adapter", admin.unload_lora_adapter, dict[str, Any]),
        ("POST", "handover", KeptStates(serving).release, dict[str, Any]),
        ("POST", "drain", admin.drain, DrainState),
        ("POST", "undrain", admin.undrain, DrainState),
    ):
        app.add_api_route(
            f"/admin/{name}",
            handler,
            methods=[method],
            operation_id=name,
            dependencies=[Security(guard)],
            response_model=answer,
            responses=_ERRORS
            | (_BODY_ERRORS if name in WITH_BODIES else {})
            | _UNKNOWN_ADAPTER.get(name, {}),
        )
    _add_speculation(app, admin, guard)
    _add_sessions(app, SessionEndpoints(serving), guard)
    _add_explanations(app, ExplanationEndpoints(serving), guard)
    return RequestMiddleware(
        app, route_of=publish(app, key_needed=token is not None), answered=serving.metrics.answered
    )
