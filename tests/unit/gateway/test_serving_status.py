"""`/v1/status` of a gateway: what its engines say of themselves, and of silent ones what the pool knows."""

from typing import Any

import aiohttp
import pytest
from aiohttp import web

from mamba_api.serving_status import EngineStatus, ServingStatus
from mamba_gateway.admission.admission import Admission
from mamba_gateway.api.local_routes import LocalRoutes
from mamba_gateway.api.serving_status import (
    MAX_STATUS_BYTES,
    EngineStatusClient,
    StatusEndpoint,
    StatusUnavailable,
)
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.routing.decision import RoutingLog

READY = ProbeReport(ready=True, models=({"id": "m"},), running=3, waiting=1, kv_usage=0.5)
SAID = EngineStatus(name="as it calls itself", status="ready", model="m", slots={"live": 2})


async def asked(pool: Pool, ask: Any) -> ServingStatus:
    admission, metrics = Admission(4, 4, 1.0, lambda: 0.0), GatewayMetrics(pool.snapshot)
    routes = LocalRoutes(pool, admission, metrics, RoutingLog())
    metrics.held.set(2)
    with admission.admit():
        body = (await StatusEndpoint(pool, admission, metrics, routes.readiness, ask).status()).body
    return ServingStatus.model_validate_json(bytes(body))


def pool_of(**reports: ProbeReport) -> Pool:
    pool = Pool()
    pool.set_targets(Target(f"http://{name}", name) for name in reports)
    for name, report in reports.items():
        pool.report(f"http://{name}", report)
    return pool


async def test_engines_are_listed_by_the_names_that_the_gateway_knows_them_by() -> None:
    async def ask(url: str) -> EngineStatus:
        return SAID

    pool = pool_of(b=READY, a=READY)
    pool.begin("http://a")
    found = await asked(pool, ask)
    assert [(one.name, one.in_flight, one.slots) for one in found.engines] == [
        ("a", 1, {"live": 2}), ("b", 0, {"live": 2}),
    ]  # fmt: skip
    assert found.gateway is not None
    assert (found.gateway.in_flight, found.gateway.queued, found.gateway.held) == (0, 1, 2)
    assert (found.status, found.component) == ("ready", "gateway")


async def test_requests_are_counted_by_served_model_and_what_became_of_them() -> None:
    metrics = GatewayMetrics(pool_of(a=READY).snapshot)
    for model, code, times in (("m", "200", 5), ("m", "503", 2), ("m", "429", 1), ("unknown", "404", 9)):
        metrics.request("/v1/chat/completions", model, code, "").inc(times)
    for seconds in (0.5, 1.5):
        metrics.first_byte_of("m").observe(seconds)
    [traffic] = metrics.traffic()
    assert traffic.model_dump() == {
        "model": "m", "requests": 8, "failed": 2, "refused": 1, "first_bytes": 2, "first_byte_seconds": 2.0,
    }  # fmt: skip


async def test_an_engine_that_does_not_say_is_shown_as_the_pool_knows_it() -> None:
    async def ask(url: str) -> EngineStatus:
        raise StatusUnavailable("/v1/status answered 404")

    gone = ProbeReport(ready=False, reason="refused the connection")
    found = await asked(pool_of(other=READY, gone=gone, going=ProbeReport(ready=False, draining=True)), ask)
    shown = {one.name: (one.status, one.running, one.model) for one in found.engines}
    assert shown["other"] == ("ready", 3, "m")
    assert (shown["gone"][0], shown["going"][0]) == ("unreachable", "draining")
    assert next(one.reason for one in found.engines if one.name == "gone") == "refused the connection"


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (401, b"{}", "answered 401"),
        (200, b"not json", "not the status of an engine"),
        (200, b"[]", "not the status of an engine"),
        (200, b'{"component": "engine", "version": "1", "status": "ready", "reason": "", "engines": []}',
         "not the status of an engine"),
        (200, b" " * (MAX_STATUS_BYTES + 1), f"more than {MAX_STATUS_BYTES} bytes"),
    ],
)  # fmt: skip
async def test_whatever_an_engine_answers_only_costs_its_own_numbers(
    status: int, body: bytes, why: str
) -> None:
    shown: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        shown.append(request.headers.get("authorization", ""))
        return web.Response(status=status, body=body)

    app = web.Application()
    app.add_routes([web.get("/v1/status", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(StatusUnavailable, match=why):
                await EngineStatusClient(session, lambda: b"inner").fetch(
                    f"http://127.0.0.1:{runner.addresses[0][1]}"
                )
            with pytest.raises(StatusUnavailable):
                await EngineStatusClient(session).fetch("http://127.0.0.1:1")
    finally:
        await runner.cleanup()
    assert shown == ["Bearer inner"]
