"""Strategy and track interval reach running engines: no pod is replaced, refusals show."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from fake_cluster import FakeCluster, Watched
from mamba_api import names
from mamba_operator.children.admin_key import AdminKey, admin_key
from mamba_operator.children.engine_admin import EngineAccess
from mamba_operator.objects.errors import ClusterError, Forbidden
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.reconcile import PassSettings, Reconciler, Runtime
from mamba_operator.render.live_settings import LiveSettings, pending_updates
from operator_objects import NOW, UID, fitting_owner

KEY = Key("models", "nano")
OPERATORS = AdminKey(b"k" * 32)
OLD = (NOW - timedelta(days=1)).isoformat()
CHOICES = {"strategy": "NoBuffer", "stateDtype": "float32"}


class Engines:
    """Answers of engines, and the requests to them."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.answers: dict[str, tuple[int, str]] = {}

    async def put(self, address: str, token: str, body: Mapping[str, Any]) -> tuple[int, str]:
        self.requests.append((address, token, dict(body)))
        return self.answers.get(address, (200, "{}"))


class World:
    """A served deployment with an operator that has a key."""

    def __init__(self, **cache: Any) -> None:
        self.cluster = FakeCluster(fitting_owner(stateCache={**CHOICES, **cache}))
        self.engines = Engines()
        self.now = NOW
        self.again = self.operator()

    def operator(self) -> Reconciler:
        return Reconciler(
            self.cluster, OperatorMetrics(), PassSettings("test", resync=lambda: 300.0),
            indices=Watched(self.cluster), engines=EngineAccess(OPERATORS, self.engines.put),
            runtime=Runtime(now=lambda: self.now),
        )  # fmt: skip

    async def passes(self, count: int = 3) -> None:
        for _ in range(count):
            await self.again(KEY)

    def change(self, **cache: Any) -> None:
        old = self.cluster.find("MambaDeployment", "nano")
        assert old is not None
        self.cluster.put({**fitting_owner(stateCache={**CHOICES, **cache}), "status": old["status"]})
        self.now += timedelta(seconds=10)

    def engine(self, number: int, *, created: str = OLD, ready: bool = True, **labels: str) -> None:
        template = self.template["metadata"]["labels"]
        self.cluster.put(
            {
                "kind": "Pod",
                "metadata": {
                    "name": f"nano-engine-{number}", "namespace": "models", "creationTimestamp": created,
                    "labels": {**template, **labels},
                },
                "status": {
                    "phase": "Running", "podIP": f"10.0.0.{number}",
                    "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                    "containerStatuses": [{"name": "engine", "ready": ready, "restartCount": 0}],
                },
            }
        )  # fmt: skip

    @property
    def template(self) -> Manifest:
        found = self.cluster.find("Deployment", "nano-engine")
        assert found is not None
        template: Manifest = found["spec"]["template"]
        return template

    def condition(self, type_: str) -> tuple[str, str, str]:
        status = (self.cluster.find("MambaDeployment", "nano") or {})["status"]
        [one] = [one for one in status["conditions"] if one["type"] == type_]
        return one["status"], one["reason"], one["message"]


async def served(*numbers: int) -> World:
    world = World()
    await world.passes()
    for number in numbers:
        world.engine(number)
    for name in ("nano-engine", "nano"):
        child = world.cluster.find("Deployment", name)
        assert child is not None
        count = {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "observedGeneration": 1}
        world.cluster.put({**child, "status": count})
    await world.passes()
    return world


DEFAULTS = {
    "strategy": "NoBuffer", "trackInterval": 256, "maxCheckpointsPerPath": 4, "eviction": "RecomputeCost",
}  # fmt: skip
LAZY = {**DEFAULTS, "strategy": "ExtraBufferLazy"}


async def test_a_change_of_strategy_is_told_to_each_ready_engine_and_replaces_no_pod() -> None:
    world = await served(1, 2)
    template = world.template

    world.change(strategy="ExtraBufferLazy")
    await world.passes()

    token = OPERATORS.token(UID)
    assert world.engines.requests == [("10.0.0.1", token, LAZY), ("10.0.0.2", token, LAZY)]
    assert world.template == template
    config = world.cluster.find("ConfigMap", "nano-engine")
    assert config is not None
    assert json.loads(config["data"]["engine.json"])["strategy"] == "ExtraBufferLazy", "for engines to come"


@pytest.mark.parametrize(
    "change",
    [
        {"trackInterval": 512},
        {"strategy": "ExtraBuffer", "trackInterval": 128},
        {"maxCheckpointsPerPath": 2},
        {"eviction": "LRU"},
    ],
    ids=["interval", "both", "checkpoints", "eviction"],
)
async def test_engines_are_told_what_changed(change: dict[str, Any]) -> None:
    world = await served(1)

    world.change(**change)
    await world.passes()

    assert [body for _, _, body in world.engines.requests] == [{**DEFAULTS, **change}]


@pytest.mark.parametrize("change", [{"minCheckpointDepth": 64}, {"stateDtype": "float16"}])
async def test_what_engines_cannot_take_over_replaces_their_pods(change: dict[str, Any]) -> None:
    world = await served(1)
    revision = world.template["metadata"]["labels"][names.LABEL_REVISION]

    world.change(**change)
    await world.passes()

    assert world.template["metadata"]["labels"][names.LABEL_REVISION] != revision
    assert world.engines.requests == []


async def test_nobody_is_told_before_anything_changed_nor_twice() -> None:
    world = await served(1)
    world.again = world.operator()
    await world.passes()
    assert world.engines.requests == [], "a restart of the operator is no change"

    world.change(strategy="ExtraBufferLazy")
    await world.passes(6)
    assert len(world.engines.requests) == 1


async def test_an_operator_that_restarts_after_a_change_tells_it_once_more() -> None:
    world = await served(1)
    world.change(strategy="ExtraBufferLazy")
    await world.passes()

    world.again = world.operator()
    await world.passes()

    assert [body for _, _, body in world.engines.requests] == [LAZY, LAZY]


async def test_engines_that_are_not_ready_are_told_when_they_are_and_later_ones_have_read_it() -> None:
    world = await served()
    world.engine(1, ready=False)
    world.change(strategy="ExtraBufferLazy")
    world.engine(2, created=(NOW + timedelta(seconds=60)).isoformat())
    world.engine(3, created=(NOW + timedelta(seconds=600)).isoformat())
    world.engine(4, **{names.LABEL_REVISION: "an older one"})
    await world.passes()
    assert [address for address, _, _ in world.engines.requests] == ["10.0.0.2"], (
        "its file may have been older"
    )

    world.engine(1)
    await world.passes()
    assert [address for address, _, _ in world.engines.requests] == ["10.0.0.2", "10.0.0.1"]


async def test_a_container_that_starts_again_is_told_again() -> None:
    world = await served(1)
    world.change(strategy="ExtraBufferLazy")
    await world.passes()
    pod = world.cluster.find("Pod", "nano-engine-1")
    assert pod is not None
    pod["status"]["containerStatuses"][0]["restartCount"] = 1

    await world.passes()

    assert len(world.engines.requests) == 2


async def test_a_refusal_is_a_condition_with_its_numbers_until_the_engine_takes_it() -> None:
    world = await served(1, 2)
    said = "ExtraBuffer needs 12 more tracking slots; 3 are free"
    world.engines.answers["10.0.0.2"] = (409, said)
    world.change(strategy="ExtraBuffer")
    await world.passes()

    assert world.condition("Degraded")[:2] == ("True", "StrategyRefused")
    assert said in world.condition("Degraded")[2]
    assert world.condition("UpToDate")[:2] == ("False", "SwitchingStrategy")
    assert await world.again(KEY) == 5.0, "it is asked again soon"

    world.engines.answers.clear()
    await world.passes()
    assert world.condition("Degraded")[1] == "AsExpected"
    assert world.condition("Progressing")[1] != "SwitchingStrategy"


async def test_an_engine_that_does_not_answer_is_told_again_and_is_no_fault() -> None:
    world = await served(1)
    world.engines.answers["10.0.0.1"] = (0, "no route to host")
    world.change(strategy="ExtraBuffer")
    await world.passes()

    assert world.condition("Degraded")[:2] == ("False", "AsExpected")
    assert world.condition("Progressing")[:2] == ("True", "SwitchingStrategy")
    assert "nano-engine-1: no route to host" in world.condition("Progressing")[2]


async def test_without_a_key_a_change_of_strategy_replaces_the_pods() -> None:
    world = World()
    without = Reconciler(
        world.cluster, OperatorMetrics(), PassSettings("test"), engines=EngineAccess(put=world.engines.put),
        runtime=Runtime(now=lambda: NOW, new_token=lambda: "t"),
    )  # fmt: skip
    await without(KEY)
    revision = world.template["metadata"]["labels"][names.LABEL_REVISION]
    world.change(strategy="ExtraBuffer")
    await without(KEY)

    assert world.template["metadata"]["labels"][names.LABEL_REVISION] != revision


def test_engines_that_chose_for_themselves_keep_their_strategy() -> None:
    tuned = LiveSettings({"strategy": "Auto", "track_interval": 512}, NOW.isoformat())

    assert tuned.body() == {"trackInterval": 512}
    assert pending_updates([{"metadata": {}}, {}], tuned, "r", {}) == ()


async def test_the_key_is_made_once_and_found_again() -> None:
    cluster = FakeCluster()

    first, second = (await admin_key(cluster, "system", "key"), await admin_key(cluster, "system", "key"))

    assert first is not None
    assert first == second
    assert cluster.calls == ["create Secret/key"]
    assert first.token("a") != first.token("b")
    assert AdminKey(b"other" * 8).id != first.id


async def test_who_may_not_read_its_key_goes_on_without() -> None:
    cluster = FakeCluster()
    cluster.fault = lambda *_: Forbidden("no", status=403)

    assert await admin_key(cluster, "system", "key") is None


@pytest.mark.parametrize("data", [None, {}, {"key": "short"}, {"key": 5}, {"key": "c2hvcnQ="}, []])
async def test_a_key_that_somebody_damaged_is_an_error_that_says_what_to_do(data: Any) -> None:
    broken = {"kind": "Secret", "metadata": {"name": "key", "namespace": "system"}, "data": data}

    with pytest.raises(ClusterError, match="delete the Secret"):
        await admin_key(FakeCluster(broken), "system", "key")
