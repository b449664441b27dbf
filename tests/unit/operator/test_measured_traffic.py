"""Engines are told another strategy for the traffic they measure: late, announced, and without new pods."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from fake_cluster import FakeCluster, Watched
from mamba_api import names
from mamba_operator.children.admin_key import AdminKey
from mamba_operator.children.engine_admin import EngineAccess
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.observation.snapshot import Sources
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.reconcile import PassSettings, Reconciler, Runtime
from mamba_operator.workload.measured_workload import MeasuredWorkload
from matrix_size import LARGE
from operator_objects import NOW, fitting_owner

KEY = Key("models", "nano")
OPERATORS = AdminKey(b"k" * 32)
CHOSEN_FOR = names.ANNOTATION_CHOSEN_FOR
MEMORY = {"memory": {"deviceMemory": "40Gi"}}
AGENTS = MeasuredWorkload(16_000.0, 200.0, 0.9, 8.0, 2000.0)
"""Long prompts that come back: ExtraBufferLazy does a quarter more of them than NoBuffer."""
CROWD = MeasuredWorkload(300.0, 500.0, 0.1, 100.0, 5000.0)
"""NoBuffer is the best for it, and by far better than ExtraBufferLazy."""
CHAT = MeasuredWorkload(2000.0, 260.0, 0.5, 60.0, 2000.0)
"""NoBuffer does a little more of it than ExtraBufferLazy."""


class World:
    """A served deployment of one engine, whose operator passes each five minutes."""

    def __init__(self, *, key: AdminKey | None = OPERATORS, **spec: Any) -> None:
        self.cluster = FakeCluster(fitting_owner(**{**MEMORY, **spec}))
        self.told: list[str] = []
        self.measured: MeasuredWorkload | None = None
        self.now, self.key = NOW, key
        self.restart()

    def restart(self) -> None:
        self.operator = Reconciler(
            self.cluster, OperatorMetrics(), PassSettings("test", resync=lambda: 300.0),
            indices=Watched(self.cluster), engines=EngineAccess(self.key, self._put),
            sources=Sources(measured=lambda _: {"unified": self.measured} if self.measured else {}),
            runtime=Runtime(now=lambda: self.now, new_token=lambda: "t"),
        )  # fmt: skip

    async def _put(self, _address: str, _token: str, body: Mapping[str, Any]) -> tuple[int, str]:
        self.told.append(str(body["strategy"]))
        return 200, "{}"

    async def begin(self) -> None:
        await self.passes(2, minutes=0)
        self.found("Deployment", "nano-engine")["status"] = self.found("Deployment", "nano")["status"] = {
            "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "observedGeneration": 1,
        }  # fmt: skip
        for kind in ("nano-engine", "nano"):
            self.cluster.put(self.found("Deployment", kind))
        self.cluster.put({
            "kind": "Pod",
            "metadata": {
                "name": "nano-engine-1", "namespace": "models",
                "creationTimestamp": (NOW - timedelta(days=1)).isoformat(),
                "labels": self.template["metadata"]["labels"],
            },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "engine", "ready": True, "restartCount": 0}],
            },
        })  # fmt: skip
        await self.passes(3, minutes=0)

    async def passes(self, count: int = 1, *, minutes: float = 5) -> None:
        for _ in range(count):
            await self.operator(KEY)
            self.now += timedelta(minutes=minutes)

    async def until_told(self, most: int = 20) -> int:
        """Return the minutes until engines got new settings."""
        began = self.now
        for _ in range(most):
            await self.passes()
            if self.told:
                return int((self.now - began).total_seconds() / 60)
        raise AssertionError(f"nobody was told anything: {self.status.get('workload')}")

    def found(self, kind: str, name: str) -> Manifest:
        found = self.cluster.find(kind, name)
        assert found is not None
        return found

    @property
    def status(self) -> Manifest:
        return dict(self.found("MambaDeployment", "nano").get("status") or {})

    @property
    def proposed(self) -> Manifest | None:
        return (self.status.get("workload") or {}).get("proposed")

    @property
    def template(self) -> Manifest:
        return dict(self.found("Deployment", "nano-engine")["spec"]["template"])

    @property
    def strategy(self) -> str:
        """Return the strategy with which later engines begin."""
        config = self.found("ConfigMap", "nano-engine")
        return str(json.loads(config["data"]["engine.json"])["strategy"])

    @property
    def noted(self) -> str | None:
        annotations = self.found("Deployment", "nano-engine")["metadata"].get("annotations") or {}
        return annotations.get(CHOSEN_FOR)

    def planned(self) -> tuple[str, str]:
        [one] = [one for one in self.status["conditions"] if one["type"] == "Planned"]
        return one["reason"], one["message"]

    def change(self, **spec: Any) -> None:
        old = self.found("MambaDeployment", "nano")
        self.cluster.put({**fitting_owner(**{**MEMORY, **spec}), "status": old["status"]})


async def served(**more: Any) -> World:
    world = World(**more)
    await world.begin()
    assert world.strategy == "NoBuffer"
    return world


async def test_engines_are_told_another_strategy_for_their_traffic_and_no_pod_is_replaced() -> None:
    world = await served()
    template = world.template
    world.measured = AGENTS

    await world.passes()
    shown = world.status["workload"]
    assert (shown["promptTokens"], shown["outputTokens"], shown["sharedPrefixRatio"]) == (16_000, 200, 0.9)
    assert (shown["concurrency"], shown["requests"]) == (8, 2000)
    assert shown["proposed"]["strategy"] == "ExtraBufferLazy"
    assert world.planned()[0] == "PlanComputed"
    assert await world.until_told() == 40

    assert world.told == ["ExtraBufferLazy"]
    assert world.template == template
    assert world.strategy == world.status["strategy"] == "ExtraBufferLazy"
    assert "engines measured" in world.status["plan"]["reason"]
    assert world.proposed is None
    assert world.planned()[0] == "PlanComputed"


async def test_it_is_announced_before_it_is_done() -> None:
    world = await served()
    world.measured = AGENTS
    await world.passes(7)

    reason, message = world.planned()
    assert reason == "StrategyAnnounced"
    assert world.proposed is not None
    assert world.proposed["takesEffect"] in message
    assert "ExtraBufferLazy" in message
    assert world.told == []
    assert world.strategy == world.status["strategy"] == "NoBuffer"


async def test_a_pass_over_what_is_as_it_was_writes_nothing() -> None:
    world = await served()
    world.measured = AGENTS
    await world.until_told()
    await world.passes(2)
    version = world.found("MambaDeployment", "nano")["metadata"]["resourceVersion"]
    world.cluster.calls.clear()

    for change in (1.0, 1.04, 0.97, 1.02):
        world.measured = MeasuredWorkload(16_000.0 * change, 200.0, 0.9, 8.0 / change, 2000.0 * change)
        await world.passes(5)

    assert world.cluster.calls == []
    assert world.found("MambaDeployment", "nano")["metadata"]["resourceVersion"] == version


async def test_what_is_pinned_to_the_declared_workload_is_shown_and_not_followed() -> None:
    world = await served(workloadSource="Declared")
    world.measured = AGENTS
    await world.passes(12)

    assert world.status["workload"]["promptTokens"] == 16_000
    assert world.proposed is None
    assert (world.told, world.strategy, world.noted) == ([], "NoBuffer", None)


async def test_to_pin_it_takes_back_what_was_announced_or_done_at_once_and_replaces_no_pod() -> None:
    world = await served()
    template = world.template
    world.measured = AGENTS
    await world.passes(7)
    world.change(workloadSource="Declared")
    await world.passes(2)
    assert world.proposed is None
    assert world.planned()[0] == "PlanComputed"

    world.change()
    await world.until_told()
    world.change(workloadSource="Declared")
    await world.passes(2)

    assert world.told == ["ExtraBufferLazy", "NoBuffer"]
    assert (world.strategy, world.noted) == ("NoBuffer", None)
    assert world.template == template


@pytest.mark.parametrize("strategy", ["NoBuffer", "ExtraBuffer"])
async def test_a_strategy_that_the_spec_names_is_kept(strategy: str) -> None:
    world = World(stateCache={"strategy": strategy})
    await world.begin()
    world.measured = AGENTS
    await world.passes(12)

    assert (world.told, world.strategy, world.proposed) == ([], strategy, None)


@pytest.mark.parametrize("at", range(11) if LARGE else (0, 7, 8))
async def test_an_operator_that_starts_anew_at_any_time_carries_on(at: int) -> None:
    world = await served()
    world.measured = AGENTS
    for number in range(12):
        if number == at:
            world.restart()
            world.measured = None
            await world.passes()
            world.measured = AGENTS
        await world.passes()

    assert world.told
    assert set(world.told) == {"ExtraBufferLazy"}
    assert world.strategy == "ExtraBufferLazy"


async def test_an_operator_that_ends_between_two_writes_of_the_change_carries_on() -> None:
    world = await served()
    world.measured = AGENTS
    await world.passes(7)
    status = world.status
    await world.until_told()
    world.cluster.put({**world.found("MambaDeployment", "nano"), "status": status})

    world.restart()
    await world.passes(3)

    assert world.strategy == "ExtraBufferLazy"
    assert world.proposed is None
    assert set(world.told) == {"ExtraBufferLazy"}


async def test_traffic_that_swings_faster_than_a_change_has_to_win_changes_nothing() -> None:
    world = await served()
    for number in range(48):
        world.measured = CROWD if number % 5 == 4 else AGENTS
        await world.passes()

    assert (world.told, world.strategy) == ([], "NoBuffer")


async def test_the_way_back_is_as_long() -> None:
    world = await served()
    world.measured = AGENTS
    await world.until_told()
    world.told.clear()

    world.measured = CHAT
    await world.passes(12)
    assert world.told == [], "close: what is in force stays"

    world.measured = CROWD
    assert await world.until_told() >= 40
    assert world.strategy == "NoBuffer"


async def test_what_is_not_measured_any_more_is_not_followed() -> None:
    world = await served()
    world.measured = AGENTS
    await world.passes(3)
    world.measured = None
    await world.passes(12)

    assert (world.told, world.strategy) == ([], "NoBuffer")


async def test_a_new_revision_begins_with_the_strategy_in_force() -> None:
    world = await served()
    world.measured = AGENTS
    await world.until_told()
    template = world.template

    world.change(engine={"image": "another"})
    world.measured = None
    await world.passes(2)

    assert world.template != template
    assert world.strategy == "ExtraBufferLazy"


async def test_states_of_another_type_are_shown_and_never_taken() -> None:
    world = await served(memory={"deviceMemory": "24Gi"})
    template = world.template
    world.measured = MeasuredWorkload(4000.0, 300.0, 0.9, 60.0, 3000.0)
    await world.passes(12)

    reason, message = world.planned()
    assert reason == "PlanDiffers"
    assert "float16" in message
    assert (world.told, world.template) == ([], template)


async def test_engines_that_cannot_be_told_are_left_as_they_are() -> None:
    world = await served(key=None)
    template = world.template
    world.measured = AGENTS
    await world.passes(12)

    assert world.status["workload"]["promptTokens"] == 16_000
    assert (world.template, world.proposed, world.noted) == (template, None, None)


async def test_a_declared_concurrency_is_held_however_few_come() -> None:
    world = await served(workload={"promptTokens": 2048, "outputTokens": 256, "concurrency": 100})
    world.measured = AGENTS
    await world.passes(12)

    assert (world.told, world.strategy) == ([], "NoBuffer")


BROKEN_NOTES = (
    "", "no json", "[]", '{"strategy": "ExtraBuffer", "tokens": 1}', "3", "{}",
    '{"strategy": "Other", "prompt_tokens": 1, "output_tokens": 1, "concurrency": 1}',
    '{"strategy": "ExtraBufferLazy"}',
    '{"strategy": "ExtraBuffer", "prompt_tokens": 1, "concurrency": 1, "shared_prefix_ratio": "x"}',
    '{"strategy": "ExtraBuffer", "prompt_tokens": -1, "output_tokens": 1, "concurrency": 1}',
)  # fmt: skip


@pytest.mark.parametrize("text", BROKEN_NOTES if LARGE else BROKEN_NOTES[::3])
async def test_a_note_that_somebody_broke_is_no_choice(text: str) -> None:
    world = await served()
    world.measured = AGENTS
    await world.until_told()
    assert world.noted is not None
    engine = world.found("Deployment", "nano-engine")
    engine["metadata"]["annotations"][CHOSEN_FOR] = text
    world.cluster.put(engine)
    await world.passes(3)

    assert (world.told, world.strategy, world.noted) == (["ExtraBufferLazy", "NoBuffer"], "NoBuffer", None)
