"""The autoscaler looks at what the watches hold, asks pods, and decides; what fails stops nothing else."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from mamba_api import names
from mamba_operator.autoscale import autoscaler
from mamba_operator.autoscale.autoscaler import Autoscaler
from mamba_operator.autoscale.scaling_metrics import ScalingMetrics
from mamba_operator.autoscale.scaling_record import from_text
from mamba_operator.objects.indices import Indices, index_id
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, MAMBA_GATEWAY, POD
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.objects.recorded_status import with_readable_status
from operator_objects import fitting_owner

KEY = Key("models", "nano")
BUSY = """mambaserve_requests_running{model="m"} 60
mambaserve_requests_waiting{model="m"} 40
mambaserve_max_running_requests{model="m"} 64
mambaserve_state_usage{model="m"} 0.95
mambaserve_prefill_tokens_per_second{model="m"} 9000
mambaserve_request_prompt_tokens_count{model="m"} 500
"""
QUIET = "mambaserve_requests_running 0\n"
DOOR = "mambaserve_gateway_in_flight 0\n"


def pod(name: str, component: Any = "engine", *, ready: bool = True, **meta: Any) -> Manifest:
    return {
        "metadata": {"name": name, "namespace": "models", "labels": names.labels("nano", component), **meta},
        "status": {
            "phase": "Running", "podIP": name,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }  # fmt: skip


class World:
    """Contents of the watches, and answers of the pods."""

    def __init__(self, desired: int, *pods: Manifest, **scaling: Any) -> None:
        of = fitting_owner(scaling={"minReplicas": 1, "maxReplicas": 8, **scaling})
        of["status"] = {"scaling": {"desired": desired, "start": 1}}
        self.reports: dict[str, str | None] = {}
        self.polled: list[str] = []
        self.woken: list[Key] = []
        self.now = 0.0
        self.by_id: dict[str, dict[Key, list[Manifest]]] = {
            index_id(MAMBA_DEPLOYMENT): {KEY: [of]}, index_id(POD): {KEY: list(pods)},
        }  # fmt: skip
        self.registry = CollectorRegistry()
        indices = Indices()
        indices.take(self.by_id)
        self.autoscaler = Autoscaler(
            indices, self._read, self.woken.append, ScalingMetrics(self.registry), period=10,
            now=lambda: self.now,
        )  # fmt: skip

    async def _read(self, address: str) -> str | None:
        self.polled.append(address)
        return self.reports.get(address)

    async def poll(self, times: int = 1) -> int:
        for _ in range(times):
            await self.autoscaler.poll()
            self.now += 10
        decided = self.autoscaler.latest_decisions(KEY).get("unified")
        assert decided is not None
        return decided.decision.target

    def metric(self, name: str, **labels: str) -> float | None:
        who = {"namespace": "models", "name": "nano", "role": "unified", **labels}
        return self.registry.get_sample_value(f"mambaserve_operator_scaling_{name}", who)


async def test_crowded_engines_get_more_beside_them_and_the_decision_is_recorded() -> None:
    world = World(2, pod("a"), pod("b"), pod("door", "gateway"))
    world.reports = {"a": BUSY, "b": BUSY, "door": DOOR}

    target = await world.poll()

    decided = world.autoscaler.latest_decisions(KEY).get("unified")
    assert decided is not None
    assert target > 2
    assert world.woken == [KEY]
    assert from_text(decided.record).replayed() == decided.decision
    assert world.metric("desired_engines") == target
    assert world.metric("capacity_engines") == world.metric("reporting_engines") == 2
    assert (world.metric("demand_engines", unit="slots") or 0) > 2


async def test_quiet_engines_are_given_up_after_the_delay_once_the_number_at_the_start_is_forgotten() -> None:
    world = World(3, pod("a"), pod("b"), pod("c"), pod("door", "gateway"), scaleDownDelay="100s")
    world.reports = {"a": QUIET, "b": QUIET, "c": QUIET, "door": DOOR}

    assert await world.poll(20) == 3
    assert await world.poll(30) == 2
    assert await world.poll(60) == 1


@pytest.mark.parametrize("silent", ["a", "b", "c"])
async def test_one_engine_that_does_not_answer_keeps_them_all(silent: str) -> None:
    world = World(3, pod("a"), pod("b"), pod("c"), pod("door", "gateway"), scaleDownDelay="100s")
    world.reports = {"a": QUIET, "b": QUIET, "c": QUIET, "door": DOOR, silent: None}

    assert await world.poll(30) == 3


async def test_only_pods_that_may_serve_are_asked() -> None:
    world = World(
        3, pod("a"), pod("loading", ready=False), pod("draining", deletionTimestamp="2026-01-02T12:00:00Z"),
        pod("door", "gateway"),
    )  # fmt: skip

    await world.poll()

    assert sorted(world.polled) == ["a", "door"]


async def test_where_somebody_else_decides_numbers_are_shown_and_not_carried_out() -> None:
    world = World(1, pod("a"), pod("b"), pod("door", "gateway"))
    world.reports = {"a": BUSY, "b": BUSY, "door": DOOR}
    [of] = world.by_id[index_id(MAMBA_DEPLOYMENT)][KEY]
    of["spec"] |= {"replicas": 2, "scaling": {"mode": "External", "maxReplicas": 8}}
    del of["status"]["scaling"]

    for _ in range(10):
        await world.autoscaler.poll()
        world.now += 10

    assert world.autoscaler.latest_decisions(KEY).get("unified") is None
    assert world.woken == []
    assert 2 < (world.metric("desired_engines") or 0) <= 8
    assert (world.metric("demand_engines", unit="slots") or 0) > 2
    assert world.metric("demand_engines", unit="prefill") is not None
    assert world.metric("pool_usage") == 0.95
    assert world.metric("waiting_requests") == 80


async def test_what_is_known_of_a_part_alone_is_not_shown() -> None:
    """Another autoscaler would give up the engines of which nothing is known."""
    world = World(2, pod("a"), pod("b"), pod("door", "gateway"))
    world.reports = {"a": BUSY, "b": BUSY, "door": DOOR}
    await world.poll()
    # Rates are means; after one look there are none yet.
    assert world.metric("demand_engines", unit="slots") is not None
    assert world.metric("demand_engines", unit="prefill") is None

    world.reports["b"] = None
    await world.poll()

    assert world.metric("reporting_engines") == 1
    for unknown in ("pool_usage", "waiting_requests"):
        assert world.metric(unknown) is None
    assert world.metric("demand_engines", unit="slots") is None
    assert world.metric("desired_engines") == 2, "the decision itself knows what is missing"


async def test_waiting_requests_are_not_shown_while_a_gateway_is_silent() -> None:
    world = World(1, pod("a"), pod("door", "gateway"))
    world.reports = {"a": BUSY, "door": None}

    await world.poll()

    assert world.metric("waiting_requests") is None
    assert world.metric("pool_usage") == 0.95


async def test_a_number_that_people_write_is_left_alone_and_forgotten() -> None:
    world = World(1, pod("a"))
    await world.poll()
    assert world.metric("desired_engines") is not None
    [of] = world.by_id[index_id(MAMBA_DEPLOYMENT)][KEY]
    world.by_id[index_id(MAMBA_DEPLOYMENT)][KEY] = [{**of, "spec": {**of["spec"], "scaling": {}}}]

    await world.autoscaler.poll()

    assert world.autoscaler.latest_decisions(KEY).get("unified") is None
    assert world.metric("desired_engines") is None


async def test_an_object_is_read_once_for_each_version_that_watches_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[Manifest] = []
    monkeypatch.setattr(
        autoscaler, "with_readable_status", lambda of: read.append(of) or with_readable_status(of)
    )
    world = World(1, pod("a"))
    held = world.by_id[index_id(MAMBA_DEPLOYMENT)]
    [of] = held[KEY]

    await world.poll(3)
    assert read == [of]

    held[KEY] = [{**of, "status": {"scaling": {"desired": 2, "start": 1}}}]
    assert await world.poll(3) == 2
    assert len(read) == 2

    del held[KEY]
    await world.autoscaler.poll()
    held[KEY] = [of]
    assert await world.poll() == 1
    assert len(read) == 3, "nothing is kept of an object that is gone"


def candidate(name: str, *, ready: bool = True) -> Manifest:
    one = pod(name, ready=ready)
    one["metadata"]["labels"][names.LABEL_TRACK] = names.CANDIDATE
    return one


def on_trial(world: World, weight: int) -> None:
    [of] = world.by_id[index_id(MAMBA_DEPLOYMENT)][KEY]
    revisions = {"revision": "new", "stableRevision": "old", "phase": "Running"}
    of["status"]["canary"] = {**revisions, "step": 1, "steps": 2, "weight": weight}


async def test_a_candidate_that_never_starts_keeps_no_other_engine_from_starting() -> None:
    world = World(2, pod("a"), pod("b"), candidate("new", ready=False), pod("door", "gateway"))
    world.reports = {"a": BUSY, "b": BUSY, "door": DOOR}
    on_trial(world, 0)

    assert await world.poll(120) > 2


@pytest.mark.parametrize(("weight", "shrinks"), [(50, False), (0, True)])
async def test_the_other_engines_could_bear_what_a_candidate_answers_and_copies_are_no_demand(
    weight: int, shrinks: bool
) -> None:
    world = World(2, *map(pod, "ab"), candidate("new"), pod("door", "gateway"), scaleDownDelay="100s")
    world.reports = {"a": QUIET, "b": QUIET, "new": BUSY, "door": DOOR}
    on_trial(world, weight)

    assert (await world.poll(60) == 1) is shrinks
    assert ("new" in world.polled) is (weight > 0)
    assert world.metric("reporting_engines") == 2, "a candidate is none of the engines that are asked for"


async def test_a_silent_candidate_hides_load_so_that_no_engine_stops() -> None:
    world = World(3, *map(pod, "abc"), candidate("new"), pod("door", "gateway"), scaleDownDelay="100s")
    world.reports = {"a": QUIET, "b": QUIET, "c": QUIET, "new": None, "door": DOOR}
    on_trial(world, 5)

    assert await world.poll(30) == 3


@pytest.mark.parametrize(("model", "starts"), [("chat", True), ("other", False)])
async def test_requests_that_wait_at_a_mamba_gateway_are_demand_of_their_model(
    model: str, starts: bool
) -> None:
    world = World(0, pod("door", "gateway"), minReplicas=0)
    team = Key("models", "team", "MambaGateway")
    served = [{"name": "chat", "deployment": "nano"}, {"name": "other", "deployment": "another"}]
    world.by_id[index_id(MAMBA_GATEWAY)] = {
        team: [{"metadata": {"name": "team"}, "status": {"models": served}}]
    }
    world.by_id[index_id(POD)][team] = [pod("shared", "gateway")]
    queued = f'mambaserve_gateway_model_queued{{model="{model}"}} 9\n'
    arrived = f'mambaserve_gateway_requests_total{{model="{model}",code="200",reason=""}} 5\n'
    world.reports = {"door": DOOR, "shared": DOOR + queued + arrived}

    assert await world.poll() == (1 if starts else 0)
    assert world.metric("waiting_requests") == (9 if starts else 0)


async def test_one_deployment_that_breaks_does_not_keep_others_from_being_looked_at() -> None:
    world = World(1, pod("a"), pod("door", "gateway"))
    other = Key("models", "other")
    broken = pod("x")
    broken["metadata"]["labels"] = names.labels("other", "engine")
    broken["status"]["conditions"] = 3
    of = fitting_owner()
    of["spec"]["scaling"] = {"minReplicas": 1, "maxReplicas": 8}
    of["metadata"]["name"] = "other"
    of["status"] = {"scaling": {"desired": 1}}
    world.by_id[index_id(MAMBA_DEPLOYMENT)] = {other: [of], **world.by_id[index_id(MAMBA_DEPLOYMENT)]}
    world.by_id[index_id(POD)][other] = [broken]
    world.reports = {"a": QUIET, "door": DOOR}

    assert await world.poll() == 1
    assert world.autoscaler.latest_decisions(other).get("unified") is None
