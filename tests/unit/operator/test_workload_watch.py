"""The watch asks engines what they served, goes on from what the status shows, and wakes who has news."""

from typing import Any

import pytest

from mamba_api import names
from mamba_operator.objects.indices import Indices, index_id
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.workload.watch import FRESH_SECONDS, TRAFFIC_POLL_SECONDS, WorkloadWatch
from mamba_operator.workload.workload_status import SELDOM, workload_status
from metrics_of_pods import CountingEngine
from operator_objects import NOW, fitting_owner

KEY = Key("models", "nano")


def pod(name: str, component: Any = "engine", *, ready: bool = True, **meta: Any) -> Manifest:
    return {
        "metadata": {"name": name, "namespace": "models", "labels": names.labels("nano", component), **meta},
        "status": {
            "phase": "Running", "podIP": name,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }  # fmt: skip


class World:
    """Contents of the watches, and engines that count."""

    def __init__(self, *pods: Manifest, **spec: Any) -> None:
        self.owner = fitting_owner(**spec)
        self.pods = list(pods)
        self.engines = {str(one["metadata"]["name"]): CountingEngine() for one in pods}
        self.silent: set[str] = set()
        self.asked: list[str] = []
        self.woken: list[Key] = []
        self.now = 0.0
        self.indices = Indices()
        self.restart()

    def restart(self) -> None:
        self.watch = WorkloadWatch(self.indices, self._read, self.woken.append, lambda: self.now)

    async def _read(self, address: str) -> str | None:
        self.asked.append(address)
        return None if address in self.silent else self.engines[address].text()

    async def polls(
        self, count: int, *, requests: int = 20, prompt: int = 1000, shared: float | None = 0.5
    ) -> None:
        for _ in range(count):
            for engine in self.engines.values():
                engine.serve(requests, prompt, 200, shared)
            by_id = {index_id(MAMBA_DEPLOYMENT): {KEY: [self.owner]}, index_id(POD): {KEY: self.pods}}
            self.indices.take(by_id)
            await self.watch.poll()
            self.now += TRAFFIC_POLL_SECONDS


@pytest.mark.parametrize(
    "scaling",
    [{}, {"minReplicas": 1, "maxReplicas": 4}, {"mode": "External"}, {"minReplicas": 0}],
    ids=["a number", "by load", "by another", "to zero"],
)
async def test_traffic_is_measured_whoever_decides_on_the_number_of_engines(scaling: dict[str, Any]) -> None:
    world = World(pod("a"), pod("b"), scaling=scaling)
    await world.polls(3)
    assert world.watch.measured(KEY).get("unified") is None, "too few"

    await world.polls(10)

    found = world.watch.measured(KEY).get("unified")
    assert found is not None
    assert (found.prompt_tokens, found.output_tokens) == pytest.approx((1000, 200))
    assert found.shared_prefix_ratio == pytest.approx(0.5)


async def test_only_engines_that_serve_are_asked() -> None:
    world = World(
        pod("a"), pod("loads", ready=False), pod("ends", deletionTimestamp="2026-01-02T12:00:00Z"),
        pod("door", "gateway"),
    )  # fmt: skip
    await world.polls(1)

    assert world.asked == ["a"]


async def test_what_no_engine_tells_any_more_is_soon_not_measured() -> None:
    world = World(pod("a"))
    await world.polls(30)
    assert world.watch.measured(KEY).get("unified") is not None

    world.silent = {"a"}
    await world.polls(int(FRESH_SECONDS / TRAFFIC_POLL_SECONDS) - 1)
    assert world.watch.measured(KEY).get("unified") is not None
    await world.polls(2)
    assert world.watch.measured(KEY).get("unified") is None


async def test_requests_during_a_silence_count_and_those_of_an_engine_that_went_are_left() -> None:
    world = World(pod("a"), pod("b"))
    await world.polls(1)
    world.silent = {"a"}
    await world.polls(20)
    world.silent = set()
    await world.polls(1)
    both = world.watch.measured(KEY).get("unified")
    assert both is not None
    assert both.requests > 700

    world.pods = [pod("b")]
    await world.polls(1)
    world.pods = [pod("a"), pod("b")]
    await world.polls(1, requests=0)
    after = world.watch.measured(KEY).get("unified")
    assert after is not None
    assert after.requests < both.requests + 30, "nobody knows over which time it counted"


async def test_another_operator_goes_on_with_what_is_shown() -> None:
    world = World(pod("a"))
    await world.polls(40)
    before = world.watch.measured(KEY).get("unified")
    shown = workload_status(None, before, NOW)
    assert before is not None
    assert shown is not None
    world.owner["status"] = {"workload": shown.manifest()}

    world.restart()
    await world.polls(2)

    after = world.watch.measured(KEY).get("unified")
    assert after is not None
    assert after.requests == pytest.approx(before.requests, rel=0.2)
    assert after.concurrency == pytest.approx(max(before.concurrency, 1), abs=1)


@pytest.mark.parametrize("status", [None, {}, {"workload": 3}, {"workload": {"requests": "many"}}, 7])
async def test_a_status_that_somebody_broke_is_begun_anew(status: Any) -> None:
    world = World(pod("a"))
    world.owner["status"] = status
    await world.polls(30)

    assert world.watch.measured(KEY).get("unified") is not None


async def test_only_what_matters_wakes_and_seldom() -> None:
    world = World(pod("a"))
    await world.polls(16)
    assert world.woken == []
    await world.polls(3)
    assert world.woken == [KEY], "the first that there is to show"

    world.woken.clear()
    steady = int(4 * SELDOM / TRAFFIC_POLL_SECONDS)
    await world.polls(steady)
    assert len(world.woken) <= 2, "more requests, the same traffic"
    world.woken.clear()
    await world.polls(int(SELDOM / TRAFFIC_POLL_SECONDS) * 3, prompt=9000)
    assert 1 <= len(world.woken) <= 3


async def test_a_deployment_that_went_is_forgotten_and_one_that_breaks_keeps_no_other() -> None:
    world = World(pod("a"))
    await world.polls(30)
    world.pods = []
    world.indices.take({index_id(MAMBA_DEPLOYMENT): {}, index_id(POD): {}})
    await world.watch.poll()
    assert world.watch.measured(KEY).get("unified") is None

    broken, other = pod("x"), Key("models", "other")
    broken["status"]["conditions"] = 3
    world.engines, world.pods = {"a": CountingEngine()}, [pod("a")]
    for _ in range(30):
        world.engines["a"].serve(20, 1000, 200, 0.5)
        world.indices.take({
            index_id(MAMBA_DEPLOYMENT): {other: [world.owner], KEY: [world.owner]},
            index_id(POD): {other: [broken], KEY: world.pods},
        })  # fmt: skip
        await world.watch.poll()
        world.now += TRAFFIC_POLL_SECONDS
    assert world.watch.measured(KEY).get("unified") is not None


async def test_each_of_two_pools_has_a_measurement_of_its_own() -> None:
    pods = [pod("p"), pod("d")]
    for each, role in zip(pods, ("prefill", "decode"), strict=True):
        each["metadata"]["labels"] = {**each["metadata"]["labels"], names.LABEL_ROLE: role}
    world = World(*pods, disaggregation={})
    for _ in range(20):
        world.engines["p"].serve(20, 8000, 0, 0.0)
        world.engines["d"].serve(20, 2000, 300, 0.0)
        await world.polls(1, requests=0)
    found = world.watch.measured(KEY)

    assert sorted(found) == ["decode", "prefill"]
    assert (found["prefill"].prompt_tokens, found["prefill"].output_tokens) == pytest.approx((8000, 0))
    assert (found["decode"].prompt_tokens, found["decode"].output_tokens) == pytest.approx((2000, 300))
