"""The probe server says what is wrong, and only what a restart would mend counts."""

import socket

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from fake_cluster import FakeCluster
from mamba_operator.main import Operator
from mamba_operator.objects.kinds import SERVICE
from mamba_operator.process.liveness import MAX_LAG_SECONDS, LoopLag, liveness_server
from mamba_operator.process.settings import OperatorSettings
from operator_objects import fitting_owner


async def get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_a_healthy_operator_says_so_and_a_broken_one_says_why() -> None:
    problems: list[str] = []
    async with liveness_server(
        "127.0.0.1", 0, checks=lambda: problems, ready=lambda: None, registry=CollectorRegistry()
    ) as port:
        assert await get(port, "/healthz") == (200, "ok")
        problems += ["a watch is stale", "a pass hangs"]
        assert await get(port, "/healthz") == (500, "a watch is stale\na pass hangs")
        assert (await get(port, "/livez"))[0] == 500


@pytest.mark.parametrize("ipv6", [True, False])
async def test_every_address_is_one_of_ipv4_too(ipv6: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not ipv6:
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    async with liveness_server(
        "::", 0, checks=list, ready=lambda: None, registry=CollectorRegistry()
    ) as port:
        assert await get(port, "/healthz") == (200, "ok")


async def test_who_is_not_ready_says_why_and_is_alive() -> None:
    async with liveness_server(
        "127.0.0.1", 0, checks=list, ready=lambda: "no lease", registry=CollectorRegistry()
    ) as port:
        assert await get(port, "/readyz") == (503, "no lease")
        assert await get(port, "/healthz") == (200, "ok")


async def test_metrics_are_prometheus_text() -> None:
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc()
    async with liveness_server("127.0.0.1", 0, checks=list, ready=lambda: None, registry=registry) as port:
        assert "things_total 1.0" in (await get(port, "/metrics"))[1]


async def test_a_port_that_is_taken_is_an_error_at_the_start() -> None:
    async with liveness_server(
        "127.0.0.1", 0, checks=list, ready=lambda: None, registry=CollectorRegistry()
    ) as port:
        with pytest.raises(OSError, match="in use"):
            async with liveness_server(
                "127.0.0.1", port, checks=list, ready=lambda: None, registry=CollectorRegistry()
            ):
                pass


def test_a_blocked_event_loop_is_seen() -> None:
    now = [0.0]
    lag = LoopLag(clock=lambda: now[0])
    assert lag.check() is None

    now[0] = MAX_LAG_SECONDS + 5

    assert "lags" in (lag.check() or "")


def operator(**settings: float) -> Operator:
    return Operator(OperatorSettings(liveness_port=0, **settings), FakeCluster())  # type: ignore[arg-type]


async def test_a_stale_watch_fails_the_liveness_of_the_leader_alone() -> None:
    subject = operator(stale_after=10)
    one = fitting_owner()
    subject._on_listed(SERVICE, one, 0.0)
    subject._on_listed(SERVICE, one, 100.0)
    assert subject._problems() == []

    subject._leadership.holds = True
    assert "stale" in subject._problems()[0]

    subject._on_delivered(SERVICE, one, False)
    assert subject._problems() == []
