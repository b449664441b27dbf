"""The gateway's own OpenAPI document: it describes all that is served, and answers stay within it."""

import time
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from mamba_api.serving_status import EngineStatus
from mamba_edge.error_forms import form_of
from mamba_edge.errors import InvalidRequest
from mamba_edge.history.memory_history import MemoryHistory
from mamba_edge.history.response_history import ResponseHistory
from mamba_gateway.admission.admission import Admission
from mamba_gateway.admission.rate_limiter import RateLimiter
from mamba_gateway.api.app import make_app
from mamba_gateway.api.local_routes import LocalRoutes, OneModel
from mamba_gateway.api.serving_status import StatusEndpoint, StatusUnavailable
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.key_limits import KeyLimits, KeyLimitTable
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.relay.proxy_endpoint import ProxyEndpoint
from mamba_gateway.relay.request_lane import RequestLane
from mamba_gateway.routing.decision import RoutingLog
from mamba_gateway.upstream.connector import UpstreamRequest
from matrix_size import LARGE

CARD = {
    "id": "m", "object": "model", "created": 1, "owned_by": "mambaserve", "root": "/m", "max_model_len": 64,
}  # fmt: skip
OPERATIONS = [
    ("/v1/completions", "POST"),
    ("/v1/chat/completions", "POST"),
    ("/v1/messages", "POST"),
    ("/v1/messages/count_tokens", "POST"),
    ("/v1/responses", "POST"),
    ("/v1/responses/{id}", "GET"),
    ("/v1/responses/{id}", "DELETE"),
    ("/v1/responses/{id}/input_items", "GET"),
    ("/v1/conversations", "POST"),
    ("/v1/conversations/{id}", "GET"),
    ("/v1/conversations/{id}", "POST"),
    ("/v1/conversations/{id}", "DELETE"),
    ("/v1/conversations/{id}/items", "GET"),
    ("/v1/conversations/{id}/items", "POST"),
    ("/v1/embeddings", "POST"),
    ("/v1/rerank", "POST"),
    ("/v2/rerank", "POST"),
    ("/v1/score", "POST"),
    ("/tokenize", "POST"),
    ("/detokenize", "POST"),
    ("/v1/models", "GET"),
    ("/v1/models/{name}", "GET"),
    ("/readyz", "GET"),
    ("/health", "GET"),
    ("/v1/routing/decisions", "GET"),
    ("/v1/status", "GET"),
    ("/livez", "GET"),
    ("/metrics", "GET"),
    ("/version", "GET"),
    ("/openapi.json", "GET"),
]


class RefusingRelay:
    """In the place of the engines: refuses whatever reaches it, as one does that knows better."""

    cancelling, loop = False, None  # whichever runs

    async def run(self, request: UpstreamRequest, send: Send) -> None:
        headers = [(b"content-type", b"application/json")]
        start: Message = {"type": "http.response.start", "status": 400, "headers": headers}
        await send(start)
        refusal = form_of(request.path).envelope(InvalidRequest("no", param="n"), "r")
        await send({"type": "http.response.body", "body": refusal})


async def no_engine(_url: str) -> EngineStatus:
    raise StatusUnavailable("away")


def application() -> Any:
    pool = Pool()
    pool.set_targets([Target("http://e", "e")])
    pool.report("http://e", ProbeReport(ready=True, models=(CARD,)))
    metrics = GatewayMetrics(pool.snapshot)
    made: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if not made:  # admission belongs to the loop that serves
            admission = Admission(8, 8, 5.0, time.monotonic)
            limiter = RateLimiter(KeyLimitTable(KeyLimits(), {}), metrics, time.monotonic)
            proxy = ProxyEndpoint(
                RequestLane(RefusingRelay(), admission, limiter, None, None),  # type: ignore[arg-type]
                admission, metrics, None, max_body_bytes=100_000,
                body_timeout=5.0, comment_interval=0.0,
            )  # fmt: skip
            routes = LocalRoutes(pool, admission, metrics, OneModel(pool, RoutingLog()))
            status = StatusEndpoint(pool, admission, metrics, routes.readiness, no_engine)
            history = ResponseHistory(MemoryHistory(60, 10_000, time.monotonic), 10_000)
            made.append(make_app(routes, status, proxy, None, history=history))
        await made[0](scope, receive, send)

    return app


APP = application()
EXAMPLES = 30 if LARGE else 4
"""Number of generated bodies for each operation that takes one."""


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_answers_stay_within_the_document(path: str, method: str) -> None:
    from openapi_examples import stay_within_the_document

    stay_within_the_document(APP, path, method, EXAMPLES if method == "POST" else 2)


def document() -> dict[str, Any]:
    from openapi_examples import document_of

    raw: dict[str, Any] = document_of(APP).raw_schema
    return raw


def test_the_document_names_every_route_and_nothing_else() -> None:
    named = {(path, method.upper()) for path, item in document()["paths"].items() for method in item}
    assert named == set(OPERATIONS)


def test_relayed_routes_are_described_with_the_body_that_engines_take() -> None:
    found = document()
    for path, name in (("/v1/completions", "Completion"), ("/v1/chat/completions", "ChatCompletion")):
        operation = found["paths"][path]["post"]
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": f"#/components/schemas/{name}Request"}
        examples = operation["requestBody"]["content"]["application/json"]["examples"]
        # The gateway may serve several models, and by none whichever is there is meant.
        assert examples
        assert all("model" not in example["value"] for example in examples.values())
        assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
        assert {"429", "502", "503", "504"} <= set(operation["responses"])
        assert "prompt" in found["components"]["schemas"]["CompletionRequest"]["properties"]
