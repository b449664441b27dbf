"""Answers of the gateway itself: routes, models, readiness, and the envelope of everything else."""

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from asgi import Asked, ask
from mamba_api.serving_status import EngineStatus
from mamba_edge.api_keys import KeyFile
from mamba_gateway.admission.admission import Admission
from mamba_gateway.api.app import make_app
from mamba_gateway.api.local_routes import LocalRoutes, OneModel
from mamba_gateway.api.serving_status import StatusEndpoint, StatusUnavailable
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.routing.router import Router


async def relayed(_scope: Any, _receive: Any, send: Any) -> None:
    """Stand in for the relayed routes."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-relayed", b"yes")]})
    await send({"type": "http.response.body", "body": b""})


async def no_engine(_url: str) -> EngineStatus:
    """Return no status of any engine."""
    raise StatusUnavailable("away")


class Local:
    """The application over a pool that the test fills."""

    def __init__(self, keys: Path | None = None) -> None:
        self.pool = Pool()
        self.admission = Admission(4, 4, 1.0, time.monotonic)
        self.metrics = GatewayMetrics(self.pool.snapshot, serves=self.pool.serves)
        self.router = Router(self.pool, self.metrics, Random(1))
        routes = LocalRoutes(self.pool, self.admission, self.metrics, OneModel(self.pool, self.router.log))
        status = StatusEndpoint(self.pool, self.admission, self.metrics, routes.readiness, no_engine)
        self.app = make_app(routes, status, relayed, KeyFile(keys, "--api-key-file") if keys else None)

    async def ask(self, method: str, path: str, **more: Any) -> Asked:
        return await ask(self.app, method, path, **more).done()

    def engines(self, **reports: ProbeReport) -> None:
        self.pool.set_targets(Target(f"http://{name}", name) for name in reports)
        for name, report in reports.items():
            self.pool.report(f"http://{name}", report)


@pytest.fixture
async def local() -> Local:
    return Local()


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/completions", {"POST"}),
        ("PUT", "/v1/chat/completions", {"POST"}),
        ("OPTIONS", "/v1/chat/completions", {"POST"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("DELETE", "/v1/models/m", {"GET", "HEAD"}),
        ("POST", "/readyz", {"GET", "HEAD"}),
    ],
)
async def test_a_wrong_method_is_told_with_the_right_ones(
    local: Local, method: str, path: str, allow: set[str]
) -> None:
    asked = await local.ask(method, path)
    assert (asked.status, asked.error["code"]) == (405, "method_not_allowed")
    assert f"{method} {path}" in asked.error["message"]
    assert set(asked.headers["allow"].split(", ")) == allow


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/completions/", "/readyz/", "/metrics/", "/v1/chat", "/admin/drain", "//readyz"]
)
async def test_any_other_path_is_unknown_and_leads_nowhere_else(local: Local, path: str) -> None:
    for method in ("GET", "POST"):
        asked = await local.ask(method, path)
        assert (asked.status, asked.error["code"]) == (404, "not_found")
        assert "location" not in asked.headers


async def test_the_bare_address_leads_to_the_status_page(local: Local) -> None:
    asked = await local.ask("GET", "/")
    assert (asked.status, asked.headers["location"]) == (307, "ui")


async def test_every_answer_carries_the_request_s_identifier(local: Local) -> None:
    for path, status in (("/livez", 200), ("/nowhere", 404), ("/readyz", 503), ("/v1/models", 200)):
        asked = await local.ask("GET", path, headers=[("X-Request-Id", "mine-7")])
        assert (asked.status, asked.headers["x-request-id"]) == (status, "mine-7")


async def test_an_identifier_is_made_for_each_request_that_brings_none(local: Local) -> None:
    made = {(await local.ask("GET", "/livez")).headers["x-request-id"] for _ in range(5)}
    assert len(made) == 5


@pytest.mark.parametrize("path", ["/readyz", "/health"])
async def test_before_the_engines_are_known_it_is_not_ready(path: str, local: Local) -> None:
    asked = await local.ask("GET", path)
    assert (asked.status, asked.json["status"]) == (503, "loading")
    assert int(asked.headers["retry-after"]) >= 1
    assert (await local.ask("GET", "/livez")).status == 200


async def test_readiness_counts_the_endpoints_and_says_why_the_others_are_not(local: Local) -> None:
    local.engines(
        a=ProbeReport(ready=True),
        b=ProbeReport(ready=False, reason="loading"),
        c=ProbeReport(ready=True, draining=True),
    )
    asked = await local.ask("GET", "/readyz")
    assert (asked.status, asked.json["status"]) == (200, "ready")
    assert asked.json["endpoints"] == {"known": 3, "ready": 1}
    assert asked.json["reasons"] == {"b": "loading"}


@pytest.mark.parametrize("path", ["/readyz", "/health"])
async def test_a_drain_comes_before_every_other_reason(path: str, local: Local) -> None:
    local.admission.draining = True
    asked = await local.ask("GET", path)
    assert (asked.status, asked.json["status"]) == (503, "draining")
    assert asked.headers["connection"] == "close"
    assert int(asked.headers["retry-after"]) >= 1


async def test_models_of_engines_that_are_away_stay_listed_once(local: Local) -> None:
    local.engines(
        a=ProbeReport(ready=False, models=({"id": "m", "owned_by": "a"}, {"no": "id"})),
        b=ProbeReport(ready=True, models=({"id": "m", "owned_by": "b"}, {"id": "org/x"})),
        c=ProbeReport(ready=True),
    )
    listed = (await local.ask("GET", "/v1/models")).json
    assert (listed["object"], [entry["id"] for entry in listed["data"]]) == ("list", ["m", "org/x"])
    assert (await local.ask("GET", "/v1/models/org/x")).json == {"id": "org/x"}
    missing = await local.ask("GET", "/v1/models/")
    assert (missing.status, missing.error["param"]) == (404, "model")


async def test_with_keys_models_need_one_and_probes_do_not(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key-1\n")
    local = Local(tmp_path / "keys")
    local.engines(a=ProbeReport(ready=True, models=({"id": "m"},)))
    for path in ("/v1/models", "/v1/models/m", "/v1/models/other", "/v1/routing/decisions"):
        asked = await local.ask("GET", path)
        assert (asked.status, asked.error["code"]) == (401, "invalid_api_key")
    for path in ("/livez", "/health", "/readyz", "/metrics", "/version", "/openapi.json", "/docs"):
        assert (await local.ask("GET", path)).status == 200


async def test_a_defect_is_an_envelope_that_tells_nothing_of_the_inside(local: Local, monkeypatch) -> None:
    def broken() -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(local.pool, "model_entries", broken)
    asked = await local.ask("GET", "/v1/models")
    assert (asked.status, asked.error["code"], asked.error["type"]) == (500, "internal_error", "server_error")
    assert b"secret" not in asked.body
    assert "x-request-id" in asked.headers


async def test_series_of_an_endpoint_go_with_it_and_a_client_s_model_is_no_label(local: Local) -> None:
    assert local.metrics.model_label("m") == "unknown"
    local.engines(a=ProbeReport(ready=True, models=({"id": "m"},), running=3), b=ProbeReport(ready=False))
    local.pool.begin("http://a")
    text = (await local.ask("GET", "/metrics")).body.decode()
    assert 'mambaserve_gateway_endpoint_ready{endpoint="a",role="unified"} 1.0' in text
    assert 'mambaserve_gateway_endpoint_ready{endpoint="b",role="unified"} 0.0' in text
    assert 'mambaserve_gateway_endpoint_in_flight{endpoint="a"} 1.0' in text
    assert 'mambaserve_gateway_endpoint_load{endpoint="a"} 4.0' in text
    local.engines(b=ProbeReport(ready=True, draining=True))
    text = (await local.ask("GET", "/metrics")).body.decode()
    assert 'endpoint="a"' not in text
    assert 'mambaserve_gateway_endpoint_draining{endpoint="b"} 1.0' in text
    assert local.metrics.model_label("of a client") == "unknown"
    assert local.metrics.model_label(None) == "unknown"


async def test_requests_are_counted_for_the_model_that_was_served_while_no_engine_runs(local: Local) -> None:
    local.engines(a=ProbeReport(ready=True, models=({"id": "m"},)))
    assert local.metrics.model_label("m") == "m"
    local.engines()
    assert local.metrics.model_label("m") == "m"
    local.engines(c=ProbeReport(ready=False, models=({"id": "n"},)))
    assert local.metrics.model_label("n") == "n"
    assert local.metrics.model_label("m") == "unknown"


async def test_a_model_that_nobody_asked_for_while_its_engine_ran_is_known_as_well(local: Local) -> None:
    local.engines(a=ProbeReport(ready=True, models=({"id": "m"},)))
    local.engines()
    local.engines(b=ProbeReport(ready=False))
    local.engines()
    assert local.metrics.model_label("m") == "m"


async def test_what_is_not_http_is_none_of_the_identifier_s_business(local: Local) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await local.app({"type": "websocket", "path": "/v1/completions", "headers": []}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


async def test_the_last_decisions_are_told_newest_first_with_all_that_was_weighed(local: Local) -> None:
    local.engines(
        a=ProbeReport(ready=True, models=({"id": "m"},), running=9),
        b=ProbeReport(ready=True, models=({"id": "m"},)),
        c=ProbeReport(ready=True, draining=True),
    )
    assert (await local.ask("GET", "/v1/routing/decisions")).json == {"object": "list", "data": []}
    prompt = PromptPrefix.of(range(1000))
    for number in range(3):
        local.router.decide("m", prompt if number == 2 else None, body_bytes=400, request_id=f"r{number}")

    shown = (await local.ask("GET", "/v1/routing/decisions", query="limit=2")).json["data"]

    assert [one["requestId"] for one in shown] == ["r2", "r1"]
    newest, older = shown
    assert (newest["tokenized"], newest["promptTokens"]) == (True, 1000)
    assert (older["tokenized"], older["promptTokens"]) == (False, 100)
    assert older["engine"] == "b"
    assert [one["engine"] for one in older["considered"]] == ["b", "a"]
    assert older["considered"][1]["queue"] > older["considered"][0].get("queue", 0)
    assert older["dropped"] == {"c": "draining"}
    for wrong in ("0", "257", "many"):
        refused = await local.ask("GET", "/v1/routing/decisions", query=f"limit={wrong}")
        assert (refused.status, refused.error["param"]) == (400, "limit")
