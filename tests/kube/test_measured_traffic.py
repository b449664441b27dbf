"""On a real API server, with its own controllers: engines that report traffic are told the strategy for it.

The operator's clocks are the test's. Engines are HTTP servers with the product's own registries, and an admin
port that notes what it is told.
"""

import json
import secrets
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kube_life import FITS, READY, Life
from mamba_api import names
from mamba_kube.access import connected, load_access
from mamba_operator.autoscale.metrics_reader import MetricsReader
from mamba_operator.objects.indices import Indices, index_id
from mamba_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT, MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest, metadata
from mamba_operator.workload.measured_workload import MeasuredWorkload
from mamba_operator.workload.watch import WorkloadWatch
from metrics_of_pods import CountingEngine
from operator_process import running_operator
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
MINUTES = 5
"""From one look of the operator to the next."""


class Engine(CountingEngine):
    """One that is told a strategy as the product's is, at an address of its own."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self.address = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(254) + 1}.1"
        self.told: list[str] = []
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200 if self.path == "/metrics" else 404, engine.text())

            def do_PUT(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                known = self.path == "/admin/strategy" and self.headers["Authorization"].startswith("Bearer ")
                if known:
                    engine.told.append(body["strategy"])
                self._answer(200 if known else 401, "{}")

            def _answer(self, status: int, text: str) -> None:
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        for port in (names.HTTP_PORT, names.ADMIN_PORT):
            server = ThreadingHTTPServer((self.address, port), Handler)
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)


class World:
    """A deployment that serves agents: long prompts, nine tenths of which came by before."""

    def __init__(self, server: Any, key: Key, reader: MetricsReader, engine: Engine) -> None:
        self.engine, self._reader = engine, reader
        self.began = self.now = datetime.now(UTC)
        self.life = Life(server, key, now=lambda: self.now, measured=self._measured)
        self._indices = Indices()
        self.restart()

    def restart(self) -> None:
        """Start another operator."""
        self.watch = WorkloadWatch(self._indices, self._reader.read, lambda _: None, self._seconds)
        self.life.restart()

    def _seconds(self) -> float:
        return (self.now - self.began).total_seconds()

    def _measured(self, key: Key) -> MeasuredWorkload | None:
        return self.watch.measured(key).get("unified")

    async def begin(self, **spec: Any) -> None:
        given = {"memory": {"deviceMemory": "40Gi"}, "rollout": {"minReadyTime": "0s"}, **spec}
        await self.life.make(**given)
        [pod] = await self.life.until(lambda: self.life.pods("engine"))
        address = self.engine.address
        await self.life.set_pod_status(
            pod, phase="Running", podIP=address, podIPs=[{"ip": address}], conditions=[READY]
        )
        await self.life.ready("gateway")
        await self.life.becomes("Ready", "Serving")

    async def polls(self, count: int) -> None:
        """Let the operator look that often, with passes until there is nothing to do."""
        for _ in range(count):
            self.now += timedelta(minutes=MINUTES)
            self.engine.running = 8
            self.engine.serve(150, 16_000, 200, 0.9)
            self._indices.take({
                index_id(MAMBA_DEPLOYMENT): {self.life.key: [await self.life.owner()]},
                index_id(POD): {self.life.key: await self.life.pods("engine")},
            })  # fmt: skip
            await self.watch.poll()
            await self.life.settle()

    async def workload(self) -> Manifest:
        found: Manifest = ((await self.life.owner()).get("status") or {}).get("workload") or {}
        return found

    async def until_announced(self, most: int = 20) -> str:
        for _ in range(most):
            await self.polls(1)
            if (found := await self.life.condition("Planned"))[1] == "StrategyAnnounced":
                return found[2]
        raise AssertionError(f"nothing was announced: {await self.workload()}")

    async def serves(self) -> tuple[list[str], Any]:
        """Return the serving engines and the template of their pods."""
        pods = sorted(str(metadata(pod)["uid"]) for pod in await self.life.pods("engine"))
        engine = await self.life.child(DEPLOYMENT, "nano-engine")
        assert engine is not None
        return pods, engine["spec"]["template"]

    async def strategy(self) -> str:
        """Return the strategy with which later engines begin."""
        config = await self.life.child(CONFIG_MAP, "nano-engine")
        assert config is not None
        return str(json.loads(config["data"]["engine.json"])["strategy"])


@pytest.fixture
async def world(plane: ControlPlane, namespace: str) -> AsyncIterator[World]:
    with ExitStack() as stack:
        engine = Engine(stack)
        async with connected(await load_access(str(plane.kubeconfig))) as server, MetricsReader() as reader:
            yield World(server, Key(namespace, "nano"), reader, engine)


@pytest.mark.slow
async def test_engines_that_report_traffic_are_told_the_strategy_for_it_and_no_pod_is_replaced(
    world: World,
) -> None:
    await world.begin()
    before = await world.serves()
    assert await world.strategy() == "NoBuffer"

    said = await world.until_announced()
    shown = await world.workload()
    assert (shown["promptTokens"], shown["outputTokens"], shown["sharedPrefixRatio"]) == (16_000, 200, 0.9)
    assert shown["proposed"]["strategy"] == "ExtraBufferLazy"
    assert shown["proposed"]["takesEffect"] in said
    assert (world.engine.told, await world.strategy()) == ([], "NoBuffer")

    await world.polls(3)
    assert world.engine.told == ["ExtraBufferLazy"]
    assert await world.strategy() == "ExtraBufferLazy"
    assert (await world.life.owner())["status"]["strategy"] == "ExtraBufferLazy"
    assert await world.serves() == before
    assert (await world.life.condition("Ready"))[:2] == ("True", "Serving")

    writes = world.life.struck.writes
    await world.polls(3)
    assert world.life.struck.writes == writes, "what is as it was is written no more"

    # Pinned, it is taken back.
    await world.life.change(workloadSource="Declared")
    await world.life.settle()
    assert world.engine.told == ["ExtraBufferLazy", "NoBuffer"]
    assert await world.strategy() == "NoBuffer"
    assert await world.serves() == before


async def test_an_operator_that_starts_anew_between_announcement_and_change_carries_on(world: World) -> None:
    await world.begin()
    before = await world.serves()
    await world.until_announced()
    takes_effect = (await world.workload())["proposed"]["takesEffect"]

    world.restart()
    await world.life.settle()
    assert (await world.workload())["proposed"]["takesEffect"] == takes_effect
    await world.polls(3)

    assert world.engine.told == ["ExtraBufferLazy"]
    assert await world.serves() == before
    world.restart()
    await world.polls(2)
    assert await world.strategy() == "ExtraBufferLazy"
    assert set(world.engine.told) == {"ExtraBufferLazy"}, "told once more by who does not know, and no other"


async def test_what_is_pinned_to_the_declared_workload_shows_traffic_and_follows_none(world: World) -> None:
    await world.begin(workloadSource="Declared")
    before = await world.serves()
    await world.polls(14)

    shown = await world.workload()
    assert shown["promptTokens"] == 16_000
    assert "proposed" not in shown
    assert (world.engine.told, await world.strategy()) == ([], "NoBuffer")
    assert await world.serves() == before


@pytest.mark.slow
def test_the_operator_that_users_start_measures_traffic(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    with (
        running_operator(plane.kubeconfig, tmp_path / "log", ["--namespace", namespace]) as operator,
        ExitStack() as stack,
    ):
        engine = Engine(stack)
        plane.apply({"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "nano"},
                     "spec": FITS}, namespace)  # fmt: skip
        selector = ",".join(f"{key}={value}" for key, value in names.selector("nano", "engine").items())
        [pod] = plane.wait_for(lambda: plane.list("pods", namespace, selector), "the engine's pod")
        name, address = pod["metadata"]["name"], engine.address
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [READY]}
        plane.api.request(
            "PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status},
            content_type="application/merge-patch+json",
        )  # fmt: skip

        def shown() -> Any:
            # Whenever its looks are, requests come between them.
            engine.serve(50, 3000, 100, 0.25)
            return ((plane.get("mdep", "nano", namespace) or {}).get("status") or {}).get("workload")

        found = plane.wait_for(
            shown, f"traffic in the status; {operator.text[-3000:]}", timeout=150, every=1.0
        )
    assert (found["promptTokens"], found["outputTokens"], found["sharedPrefixRatio"]) == (3000, 100, 0.25)
