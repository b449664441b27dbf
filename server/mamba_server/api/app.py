"""The public HTTP application: its routes, and how the OpenAPI document describes them."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Security
from prometheus_client import CollectorRegistry
from starlette.responses import Response
from starlette.types import ASGIApp

from mamba_api.dialects.paths import (
    CHAT_COMPLETIONS,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    RELAYED,
    RERANK,
    RERANK_V2,
    RESPONSES,
    SCORE,
    TOKENIZE,
)
from mamba_api.dialects.routes import EVENTS, ROUTES
from mamba_api.openai_examples import request_examples
from mamba_api.openai_responses import ModelCard, ModelList, Readiness
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
from mamba_edge.app.cors import with_cors
from mamba_edge.exchange.hand_over_headers import RELEASE
from mamba_edge.exchange.request_body import BodyBudget
from mamba_edge.exchange.request_middleware import RequestMiddleware
from mamba_edge.history.history_routes import HISTORY_BODIES, HistoryEndpoints, add_history_routes
from mamba_edge.status_page import add_status_page
from mamba_server.api.embeddings import EmbeddingsEndpoint
from mamba_server.api.endpoints import GenerationEndpoints
from mamba_server.api.info import InfoEndpoints
from mamba_server.api.prefix_feed import CONTENT_TYPE, GatewayGuard, PrefixFeed
from mamba_server.api.prompt_state import KeptStates
from mamba_server.api.ranking import RankingEndpoints
from mamba_server.api.requests.request_body import limited_route
from mamba_server.api.serving import Serving
from mamba_server.api.serving_status import StatusEndpoint
from mamba_server.api.tokens import TokenEndpoints
from mamba_server.api.usage.usage_feed import UsageFeedEndpoint

_MSGPACK: Responses = {200: {"content": {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}}}
_FEED: Responses = {200: {"content": {"application/json": {"schema": {"type": "object"}}}}}
_READINESS: Responses = {503: {"model": Readiness, "description": "The engine loads, restarts or drains"}}
_ARCHIVE: Responses = {
    200: {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}},
    304: {"description": "The client already has these files: If-None-Match names their ETag"},
    **error_responses(e503="The tokenizer is not loaded yet; see Retry-After"),
}
_GENERATION_ERRORS = generation_errors(
    e500="The server failed",
    e503="The model is not ready, the server drains, or the engine process ended; see Retry-After",
)


def make_app(serving: Serving, registry: CollectorRegistry, keys: KeyFile | None) -> ASGIApp:
    """Build the application. With `keys`, everything below /v1/ needs an API key."""
    settings = serving.settings
    about_keys = "One of the keys in `--api-key-file`. Without that option, no key is needed."
    guard = KeyGuard(keys, about_keys)
    app = make_application(
        "mambaserve",
        guard=guard,
        guarded="/v1/",
        description="OpenAI-compatible API of one engine. Fields beyond the OpenAI reference are described "
        "like the others; unknown fields are ignored.",
    )

    app.router.route_class = limited_route(
        settings.max_body_bytes, guard, serving.drain.request, seconds=settings.body_timeout
    )
    _add_generation(app, serving, guard)
    add_history_routes(app, HistoryEndpoints(serving.history, lambda context: context.client), guard)
    _add_info(app, InfoEndpoints(serving, registry), guard)
    app.add_api_route(
        "/v1/prefix_changes",
        PrefixFeed(serving.engine.changes).prefix_changes,
        operation_id="prefixChanges",
        summary="Changes of this engine's prefix cache, for gateways",
        response_class=Response,
        dependencies=[Security(GatewayGuard(keys, about_keys))],
        responses=UNAUTHORIZED
        | _MSGPACK
        | BAD_QUERY
        | error_responses(e403="The key is not that of gateways"),
    )

    app.add_api_route(
        "/v1/usage_changes",
        UsageFeedEndpoint(serving.usage).usage_changes,
        operation_id="usageChanges",
        summary="What requests have used of this engine by key, for gateways",
        response_class=Response,
        dependencies=[Security(GatewayGuard(keys, about_keys))],
        responses=UNAUTHORIZED | _FEED | BAD_QUERY | error_responses(e403="The key is not that of gateways"),
    )
    app.add_api_route(
        RELEASE,
        KeptStates(serving).release,
        methods=["POST"],
        operation_id="releaseState",
        summary="End a hand-over that no engine has fetched, for gateways",
        response_model=dict[str, Any],
        dependencies=[Security(GatewayGuard(keys, about_keys))],
        responses=UNAUTHORIZED
        | error_responses(
            e400="The header names no export",
            e403="The key is not that of gateways",
            e503="The model is not ready, or the engine process ended; see Retry-After",
            e504="The engine did not answer in time",
        ),
    )
    app.add_api_route(
        "/v1/status",
        StatusEndpoint(serving).status,
        operation_id="status",
        summary="Status of this engine",
        response_model=ServingStatus,
        dependencies=[Security(guard)],
        responses=UNAUTHORIZED,
    )
    add_status_page(app)

    route_of = publish(
        app,
        key_needed=keys is not None,
        events=EVENTS,
        bodies=HISTORY_BODIES,
        examples=request_examples(serving.model_name),
    )
    answering = RequestMiddleware(
        app,
        route_of=route_of,
        answered=serving.metrics.answered,
        bodies=BodyBudget.with_room_for_one(settings.max_held_body_bytes, settings.max_body_bytes),
        tracing=serving.tracing,
        traced=RELAYED,
    )
    return with_cors(answering, settings.cors_origin)


def _add_generation(app: FastAPI, serving: Serving, guard: KeyGuard) -> None:
    generation, tokens = GenerationEndpoints(serving), TokenEndpoints(serving)
    ranking = RankingEndpoints(serving)
    endpoints: dict[str, Callable[..., Any]] = {
        COMPLETIONS: generation.completions,
        CHAT_COMPLETIONS: generation.chat_completions,
        MESSAGES: generation.messages,
        COUNT_TOKENS: generation.count_tokens,
        RESPONSES: generation.responses,
        EMBEDDINGS: EmbeddingsEndpoint(serving).embeddings,
        RERANK: ranking.rerank,
        RERANK_V2: ranking.rerank,
        SCORE: ranking.score,
        TOKENIZE: tokens.tokenize,
        DETOKENIZE: tokens.detokenize,
    }
    for path, route in ROUTES.items():
        app.add_api_route(
            path,
            endpoints[path],
            methods=["POST"],
            dependencies=[Security(guard)],
            response_description=route.answer_summary,
            responses=in_form_of(path, _GENERATION_ERRORS),
            response_model=route.answer,
            operation_id=route.name,
            summary=route.summary,
        )


def _add_info(app: FastAPI, info: InfoEndpoints, guard: KeyGuard) -> None:
    keyed = [Security(guard)]
    app.add_api_route(
        "/v1/models",
        info.models,
        operation_id="models",
        summary="Served models",
        response_model=ModelList,
        dependencies=keyed,
        responses=UNAUTHORIZED,
    )
    app.add_api_route(
        "/v1/models/{name:path}",
        info.model,
        operation_id="model",
        summary="One model",
        response_model=ModelCard,
        dependencies=keyed,
        responses=UNAUTHORIZED | NO_MODEL,
    )
    app.add_api_route(
        "/v1/tokenizer",
        info.tokenizer,
        operation_id="tokenizer",
        summary="Tokenizer and chat template, for gateways",
        response_class=Response,
        dependencies=keyed,
        responses=UNAUTHORIZED | _ARCHIVE,
    )
    for path, operation, summary in (
        ("/readyz", "readyz", "Whether new requests are accepted"),
        ("/health", "health", "Same as /readyz"),
    ):
        app.add_api_route(
            path,
            info.readyz,
            operation_id=operation,
            summary=summary,
            response_model=Readiness,
            responses=_READINESS,
        )
    app.add_api_route("/livez", info.livez, operation_id="livez", summary="Whether the process is alive")
    app.add_api_route(
        "/metrics",
        info.metrics,
        operation_id="metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses=TEXT,
    )
    app.add_api_route("/version", info.version, operation_id="version", summary="Version of mambaserve")
