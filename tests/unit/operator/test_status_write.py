"""The one status write: when it is made, what it leaves to others, and what it says along the way."""

import copy
from datetime import datetime, timedelta
from typing import Any

import pytest

from fake_cluster import FakeCluster
from mamba_operator.objects.errors import (
    Conflict,
    Forbidden,
    NameTaken,
    ObjectRejected,
    OperatorError,
    Unreachable,
)
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.reconcile import PassSettings, Reconciler, Runtime
from operator_objects import NOW, TOKEN, UID, fitting_owner, owner, running

KEY = Key("models", "nano")
STATUS = "apply/status MambaDeployment/nano"


class Clock:
    """A time that tests move."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, **delta: float) -> None:
        self.now += timedelta(**delta)


def reconciler(cluster: FakeCluster, clock: Clock | None = None) -> Reconciler:
    return Reconciler(
        cluster, OperatorMetrics(), PassSettings("test"),
        runtime=Runtime(now=clock or Clock(), new_token=lambda: TOKEN),
    )  # fmt: skip


def stored(cluster: FakeCluster) -> Manifest:
    found = cluster.find("MambaDeployment", "nano")
    assert found is not None
    return found


def condition(cluster: FakeCluster, type_: str) -> Manifest:
    [found] = [one for one in stored(cluster)["status"]["conditions"] if one["type"] == type_]
    return found


async def settled(of: Manifest, *, engines: int = 1) -> tuple[FakeCluster, Reconciler, Clock]:
    """Return a cluster whose controllers have done their part."""
    cluster, clock = FakeCluster(of), Clock()
    again = reconciler(cluster, clock)
    await again(KEY)
    for child in running(
        [one for key, one in cluster.objects.items() if key[0] == "Deployment"], engines=engines
    ):
        cluster.put(child)
    await again(KEY)
    cluster.calls.clear()
    return cluster, again, clock


async def test_nothing_is_written_while_nothing_changes_however_much_time_passes() -> None:
    cluster, again, clock = await settled(fitting_owner())

    for _ in range(5):
        clock.pass_(hours=7)
        await again(KEY)

    assert cluster.calls == []
    assert condition(cluster, "Ready")["status"] == "True"


@pytest.mark.parametrize(
    "broken",
    [{"replicas": -1}, {"plan": {"strategy": "Bogus"}}, {"url": 5}, {"conditions": "none"},
     {"plan": []}],
    ids=str,
)  # fmt: skip
async def test_a_status_that_somebody_broke_is_written_anew(broken: dict[str, Any]) -> None:
    cluster, again, _ = await settled(fitting_owner())
    before = copy.deepcopy(stored(cluster)["status"])
    stored(cluster)["status"].update(broken)

    await again(KEY)

    assert cluster.calls.count(STATUS) == 1
    assert {**stored(cluster)["status"], "conditions": []} == {**before, "conditions": []}
    assert condition(cluster, "Ready")["reason"] == "Serving"


async def test_a_condition_of_somebody_else_is_neither_lost_nor_set_back() -> None:
    cluster, again, _ = await settled(fitting_owner())
    old = {"type": "Audited", "status": "False", "reason": "Waiting",
           "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    stored(cluster)["status"]["conditions"].append(old)
    cluster.find("Deployment", "nano-engine")["status"]["readyReplicas"] = 0
    moved = {**old, "status": "True", "reason": "Seen"}
    writes: list[str] = []

    def meanwhile(verb: str, *_: str) -> None:
        if verb == "apply/status" and not writes:
            writes.append(verb)
            stored(cluster)["status"]["conditions"][-1] = moved
            cluster.put(stored(cluster))

    cluster.fault = meanwhile
    with pytest.raises(Conflict):
        await again(KEY)
    await again(KEY)

    assert condition(cluster, "Ready")["status"] == "False"
    assert {key: condition(cluster, "Audited")[key] for key in moved} == moved


async def test_a_status_of_an_older_spec_is_not_written_over_a_newer_one() -> None:
    cluster = FakeCluster(fitting_owner())
    newer = fitting_owner(memory={"deviceMemory": "16Gi"})
    newer["metadata"]["generation"] = 4

    def edit(verb: str, *_: str) -> None:
        if verb == "apply/status" and stored(cluster)["metadata"]["generation"] == 3:
            cluster.put(newer)

    cluster.fault = edit
    with pytest.raises(Conflict):
        await reconciler(cluster)(KEY)
    assert "status" not in stored(cluster)

    await reconciler(cluster)(KEY)
    assert condition(cluster, "Planned")["reason"] == "PlanDoesNotFit"
    assert condition(cluster, "Planned")["observedGeneration"] == 4


async def test_an_edit_of_the_spec_moves_the_observed_generation_of_every_condition_and_no_date() -> None:
    cluster, again, clock = await settled(fitting_owner())
    dates = {one["type"]: one["lastTransitionTime"] for one in stored(cluster)["status"]["conditions"]}
    clock.pass_(minutes=5)
    cluster.put({**fitting_owner(telemetry={"sampling": 0.5}), "status": stored(cluster)["status"]})
    stored(cluster)["metadata"]["generation"] = 9

    await again(KEY)

    status = stored(cluster)["status"]
    assert (
        {one["observedGeneration"] for one in status["conditions"]} == {9} == {status["observedGeneration"]}
    )
    assert {one["type"]: one["lastTransitionTime"] for one in status["conditions"]} == dates


async def test_the_dates_tell_the_story_of_a_fault_that_came_and_went() -> None:
    cluster, again, clock = await settled(fitting_owner())
    engine = cluster.find("Deployment", "nano-engine")
    clock.pass_(hours=1)
    engine["status"]["readyReplicas"] = 0
    await again(KEY)
    assert condition(cluster, "Available")["lastTransitionTime"] == "2026-01-02T13:00:00Z"
    clock.pass_(hours=1)
    await again(KEY)
    assert condition(cluster, "Available")["lastTransitionTime"] == "2026-01-02T13:00:00Z"

    clock.pass_(hours=1)
    engine["status"]["readyReplicas"] = 1
    await again(KEY)

    assert condition(cluster, "Available")["lastTransitionTime"] == "2026-01-02T15:00:00Z"
    assert condition(cluster, "Planned")["lastTransitionTime"] == "2026-01-02T12:00:00Z"


async def test_a_refused_child_is_told_with_the_servers_words_and_forgotten_when_it_is_mended() -> None:
    cluster = FakeCluster(fitting_owner())
    again = reconciler(cluster)
    cluster.fault = lambda verb, kind, _: (
        ObjectRejected("admission webhook denied: no policies on Fridays", status=422)
        if (verb, kind) == ("make", "NetworkPolicy")
        else None
    )
    with pytest.raises(ObjectRejected):
        await again(KEY)
    assert "no policies on Fridays" in condition(cluster, "Degraded")["message"]

    cluster.fault = lambda *_: None
    await again(KEY)

    assert condition(cluster, "Degraded")["reason"] == "AsExpected"


async def test_the_other_failures_are_counted_behind_the_first() -> None:
    cluster = FakeCluster(fitting_owner())
    cluster.fault = lambda verb, kind, name: (
        Forbidden(f"may not write {kind} {name}", status=403)
        if verb == "make" and kind == "Service"
        else None
    )

    with pytest.raises(Forbidden):
        await reconciler(cluster)(KEY)

    assert condition(cluster, "Degraded")["message"].startswith("may not write Service nano-engine;")


async def test_a_race_for_a_child_is_tried_again_and_is_no_fault_of_the_deployment() -> None:
    cluster = FakeCluster(fitting_owner())
    cluster.fault = lambda verb, kind, _: (
        Conflict("changed", status=409) if (verb, kind) == ("make", "Service") else None
    )

    with pytest.raises(Conflict):
        await reconciler(cluster)(KEY)

    assert condition(cluster, "Degraded")["status"] == "False"


async def test_what_the_server_said_decides_before_what_only_needs_time() -> None:
    cluster = FakeCluster(
        fitting_owner(), {"kind": "ConfigMap", "metadata": {"name": "nano-engine", "namespace": "models"}}
    )
    busy = ObjectRejected("no", status=422, retry_after=30.0)
    cluster.fault = lambda verb, kind, _: busy if (verb, kind) == ("make", "NetworkPolicy") else None

    with pytest.raises(ObjectRejected) as caught:
        await reconciler(cluster)(KEY)

    assert caught.value.retry_after == 30.0
    assert "belong" in condition(cluster, "Degraded")["message"]


async def test_a_server_that_went_away_in_the_middle_is_told_when_the_status_still_gets_through() -> None:
    cluster = FakeCluster(fitting_owner())
    cluster.fault = lambda verb, kind, _: (
        Unreachable("etcd is away", status=503) if (verb, kind) == ("make", "Service") else None
    )

    with pytest.raises(Unreachable):
        await reconciler(cluster)(KEY)

    assert condition(cluster, "Degraded")["message"] == "etcd is away"
    assert "make Deployment/nano-engine" not in cluster.calls


@pytest.mark.parametrize(
    "error", [Unreachable("away"), Conflict("no", status=409), Forbidden("no", status=403)]
)
async def test_a_status_that_could_not_be_written_is_written_by_the_next_pass_with_its_events(
    error: OperatorError,
) -> None:
    cluster = FakeCluster(fitting_owner())
    again = reconciler(cluster)
    cluster.fault = lambda verb, *_: error if verb == "apply/status" else None
    with pytest.raises(type(error)):
        await again(KEY)
    assert "status" not in stored(cluster)

    cluster.fault = lambda *_: None
    await again(KEY)
    await again.events.flush()

    assert condition(cluster, "Planned")["status"] == "True"
    reasons = {one["reason"] for key, one in cluster.objects.items() if key[0] == "Event"}
    assert "PlanComputed" in reasons


async def test_an_object_that_was_made_anew_in_the_middle_gets_nothing_of_the_old_ones_status() -> None:
    cluster = FakeCluster(fitting_owner())
    successor = fitting_owner(memory={"deviceMemory": "16Gi"})
    successor["metadata"]["uid"] = "another"

    def replace(verb: str, *_: str) -> None:
        if verb == "apply/status" and stored(cluster)["metadata"]["uid"] == UID:
            cluster.put(successor)

    cluster.fault = replace
    with pytest.raises(Conflict):
        await reconciler(cluster)(KEY)
    assert "status" not in stored(cluster)

    await reconciler(cluster)(KEY)
    assert condition(cluster, "Planned")["reason"] == "PlanDoesNotFit"


BAD: list[tuple[str, Manifest, str, str]] = [
    ("a spec of another time", {**owner(), "spec": {"model": {"uri": "ftp://x"}}},
     "InvalidSpec", "spec.model.uri"),
    ("a spec that is no object", {**owner(), "spec": ["x"]}, "InvalidSpec", "spec"),
    ("too little memory", fitting_owner(memory={"deviceMemory": "1Gi"}), "PlanDoesNotFit", "1.0Gi"),
    ("a model nobody knows", fitting_owner(model={"uri": "hf://a/b", "config": {"model_type": "gpt2"}}),
     "InvalidSpec", "gpt2"),
    ("a template that cannot be merged", owner(podTemplate={"spec": {"serviceAccountName": {"a": "b"}}}),
     "InvalidSpec", "spec.podTemplate.spec.serviceAccountName: a single value is needed here"),
]  # fmt: skip


@pytest.mark.parametrize(("of", "reason", "words"), [one[1:] for one in BAD], ids=[one[0] for one in BAD])
async def test_what_can_never_work_is_said_once_and_waited_with(
    of: Manifest, reason: str, words: str
) -> None:
    cluster = FakeCluster(of)
    again = reconciler(cluster)

    again_in = await again(KEY)
    await again(KEY)

    assert again_in is not None
    assert [call for call in cluster.calls if "Event/" not in call] == [STATUS]
    for type_ in ("Planned", "Degraded", "Ready"):
        assert condition(cluster, type_)["reason"] == reason
        assert words in condition(cluster, type_)["message"]


async def test_a_name_that_is_taken_is_a_fault_until_it_is_free() -> None:
    theirs = {"kind": "Service", "metadata": {"name": "nano", "namespace": "models"}}
    cluster = FakeCluster(fitting_owner(), theirs)
    again = reconciler(cluster)
    with pytest.raises(NameTaken):
        await again(KEY)
    assert condition(cluster, "Ready")["reason"] == "ApplyFailed"

    cluster.objects.pop(("Service", "models", "nano"))
    await again(KEY)

    assert condition(cluster, "Degraded")["status"] == "False"
    assert cluster.find("Service", "nano") is not None


async def test_what_was_made_before_the_server_went_away_is_announced_and_its_wish_to_wait_is_kept() -> None:
    cluster = FakeCluster(fitting_owner())
    answers = {
        "ConfigMap": ObjectRejected("no", status=422),
        "NetworkPolicy": Unreachable("busy", status=429, retry_after=30.0),
    }
    cluster.fault = lambda verb, kind, _: answers.get(kind) if verb == "make" else None

    again = reconciler(cluster)
    with pytest.raises(Unreachable) as caught:
        await again(KEY)
    await again.events.flush()

    assert caught.value.retry_after == 30.0
    assert condition(cluster, "Degraded")["message"] == "no; further changes that failed: 2"
    [created] = [
        one for key, one in cluster.objects.items() if key[0] == "Event" and one["reason"] == "Created"
    ]
    assert created["message"].startswith("Created Secret nano-admin-11111111, ServiceAccount nano")


async def test_an_object_whose_status_the_api_server_refuses_is_told_in_an_event_and_once() -> None:
    cluster = FakeCluster(fitting_owner())
    again = reconciler(cluster)
    says = 'MambaDeployment "nano" is invalid: spec: spec.replicas is above scaling.maxReplicas'
    cluster.fault = lambda verb, *_: ObjectRejected(says, status=422) if verb == "apply/status" else None

    for _ in range(3):
        with pytest.raises(ObjectRejected):
            await again(KEY)
        await again.events.flush()

    [event] = [one for key, one in cluster.objects.items() if key[0] == "Event" and says in one["message"]]
    assert (event["reason"], event["type"], event["count"]) == ("InvalidSpec", "Warning", 1)
