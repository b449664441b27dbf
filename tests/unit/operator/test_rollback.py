"""A revision that does not become ready is taken back to the last that was, and a new spec begins afresh."""

import contextlib
from typing import Any

import pytest

from deployment_life import POD, Life, served
from fake_cluster import FakeCluster
from mamba_api import names
from mamba_operator.objects.errors import ClusterError, OperatorError, Unreachable
from mamba_operator.objects.manifest import Manifest, label_of
from operator_objects import NOW, fitting_owner

BROKEN: dict[str, Any] = {"engine": {"image": "registry.test/engine:broken"}}
PULL = {"name": "engine", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "manifest unknown"}}}
CRASH = {"name": "engine", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 4}
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}


def engine(life: Life) -> Manifest:
    found = life.cluster.find("Deployment", "nano-engine")
    assert found is not None
    return found


def image(life: Life) -> str:
    return str(engine(life)["spec"]["template"]["spec"]["containers"][0]["image"])


def surge(life: Life, **status: Any) -> None:
    """Add the pod of a roll-out with the kubelet's status; the old one serves on."""
    labels = {**POD, names.LABEL_REVISION: label_of(engine(life))}
    meta = {
        "name": "new", "namespace": "models", "labels": labels, "creationTimestamp": life.now.isoformat(),
    }  # fmt: skip
    life.cluster.put({"kind": "Pod", "metadata": meta, "status": {"phase": "Pending", **status}})
    life.controllers(engines=1, updated=1, replicas=2)


def deadline_is_over(life: Life) -> None:
    one = engine(life)
    stuck = {
        "type": "Progressing",
        "status": "False",
        "reason": "ProgressDeadlineExceeded",
        "message": "timed out",
    }
    one["status"]["conditions"] = [stuck]
    life.cluster.put(one)


async def broken(spec: dict[str, Any] | None = None) -> tuple[Life, str, str]:
    """Roll out a change; return the life with the earlier image and the earlier revision's label."""
    life = await served()
    before, label = image(life), label_of(engine(life))
    life.spec(4, **(BROKEN if spec is None else spec))
    await life.reconcile()
    return life, before, str(label)


@pytest.mark.parametrize(
    ("said", "reason"), [(PULL, "ImagePullFailed"), (CRASH, "EngineCrashing")], ids=["pull", "crash"]
)
async def test_a_new_pod_that_cannot_start_is_taken_back_and_all_is_served(
    said: dict[str, Any], reason: str
) -> None:
    life, before, label = await broken()
    surge(life, containerStatuses=[said])
    failed = label_of(engine(life))

    await life.reconcile(minutes=5)
    await life.reconcile(seconds=30)
    assert image(life) == BROKEN["engine"]["image"], "a registry may come a moment late"
    assert life.requeue_after == 30.0
    _, events = await life.reconcile(seconds=30)
    assert image(life) == before
    assert label_of(engine(life)) == label
    assert "RolledBack" in events or "RollingOut" not in events

    life.cluster.objects.pop(("Pod", "models", "new"))
    life.controllers(engines=1)
    conditions, events = await life.reconcile(seconds=1)
    assert conditions["Ready"] == ("True", "Serving")
    assert conditions["Progressing"] == ("False", "RolledBack")
    assert conditions["Degraded"] == ("True", "RolledBack")
    assert conditions["UpToDate"] == ("False", "RolledBack")
    assert "RolledBack" in events
    status = life.cluster.find("MambaDeployment", "nano")["status"]
    assert status["rollout"]["readyRevision"] == label
    assert status["rollout"]["failedRevision"] == failed
    assert status["rollout"]["reason"] == reason
    assert (await life.reconcile(hours=1))[1] == [], "nothing is tried again by itself"
    assert image(life) == before


async def test_the_progress_deadline_takes_back_what_never_became_ready() -> None:
    life, before, _ = await broken()
    surge(life, conditions=[UNSCHEDULABLE])
    await life.reconcile(minutes=20)
    assert image(life) == BROKEN["engine"]["image"], "a node may still come"
    deadline_is_over(life)
    await life.reconcile()
    assert image(life) == before


async def test_the_settings_go_back_with_the_pods() -> None:
    life = await served()
    before = life.cluster.find("ConfigMap", "nano-engine")["data"]
    life.spec(4, engine={"maxRunningRequests": 3})
    await life.reconcile()
    assert life.cluster.find("ConfigMap", "nano-engine")["data"] != before
    surge(life, containerStatuses=[CRASH])
    await life.reconcile()
    await life.reconcile(minutes=2)
    assert life.cluster.find("ConfigMap", "nano-engine")["data"] == before


async def rolled_back() -> tuple[Life, str]:
    life, before, _ = await broken()
    surge(life, containerStatuses=[CRASH])
    await life.reconcile()
    await life.reconcile(minutes=2)
    life.cluster.objects.pop(("Pod", "models", "new"))
    life.controllers(engines=1)
    await life.reconcile()
    assert image(life) == before
    return life, before


async def test_a_corrected_spec_is_rolled_out_and_can_itself_be_gone_back_to() -> None:
    life, _ = await rolled_back()
    life.spec(5, engine={"image": "registry.test/engine:mended"})
    await life.reconcile()
    assert image(life) == "registry.test/engine:mended"
    assert names.ANNOTATION_FAILED_REVISION not in engine(life)["metadata"]["annotations"]
    life.controllers(engines=1)
    conditions, _ = await life.reconcile()
    assert conditions["UpToDate"] == ("True", "UpToDate")
    assert not life.cluster.find("MambaDeployment", "nano")["status"]["rollout"]["failedRevision"]

    life.spec(6, **BROKEN)
    await life.reconcile()
    surge(life, containerStatuses=[CRASH])
    await life.reconcile()
    await life.reconcile(minutes=2)
    assert image(life) == "registry.test/engine:mended"


async def test_undoing_the_change_replaces_no_pod() -> None:
    life, _ = await rolled_back()
    template = engine(life)["spec"]["template"]
    life.spec(5)
    await life.reconcile()
    assert engine(life)["spec"]["template"] == template
    life.controllers(engines=1)
    assert (await life.reconcile())[0]["UpToDate"] == ("True", "UpToDate")


async def test_the_same_spec_is_tried_again_when_a_restart_is_asked_for() -> None:
    life, _ = await rolled_back()
    life.restart("again")
    await life.reconcile()
    assert image(life) == BROKEN["engine"]["image"]


async def test_engines_that_crash_after_they_were_ready_stay_what_they_are() -> None:
    life, _, _ = await broken()
    life.controllers(engines=1)
    await life.reconcile()
    life.pod("new", containerStatuses=[CRASH])
    pod = life.cluster.find("Pod", "new")
    pod["metadata"] |= {
        "labels": {**POD, names.LABEL_REVISION: label_of(engine(life))},
        "creationTimestamp": NOW.isoformat(),
    }
    life.cluster.put(pod)
    life.controllers(engines=0)
    await life.reconcile(hours=1)
    assert image(life) == BROKEN["engine"]["image"]


async def test_a_first_revision_that_fails_has_nothing_to_go_back_to() -> None:
    life = Life(fitting_owner(**BROKEN))
    await life.reconcile()
    surge(life, containerStatuses=[PULL])
    life.controllers(engines=0)
    conditions, _ = await life.reconcile(hours=1)
    assert conditions["Degraded"] == ("True", "ImagePullFailed")
    assert image(life) == BROKEN["engine"]["image"]


async def test_scaling_goes_on_after_a_roll_back() -> None:
    life, before = await rolled_back()
    life.spec(5, replicas=3, scaling={"mode": "External"}, **BROKEN)
    await life.reconcile()
    assert engine(life)["spec"]["replicas"] == 3
    assert image(life) == before


async def test_a_paused_roll_out_stays_where_it_is() -> None:
    life, _, _ = await broken()
    life.spec(5, rollout={"pause": True}, **BROKEN)
    surge(life, containerStatuses=[CRASH])
    await life.reconcile(minutes=5)
    assert image(life) == BROKEN["engine"]["image"]


@pytest.mark.parametrize("failing", range(4))
async def test_whichever_write_fails_the_end_is_the_same(failing: int) -> None:
    life, before, label = await broken()
    surge(life, containerStatuses=[CRASH])
    await life.reconcile()
    left = failing
    struck = False

    def strike(verb: str, kind: str, _: str) -> ClusterError | None:
        nonlocal left, struck
        if struck or verb in ("get", "list"):
            return None
        left -= 1
        struck = left < 0
        return Unreachable(f"{verb} {kind}: connection reset") if struck else None

    life.cluster.fault = strike
    for _ in range(2):
        with contextlib.suppress(OperatorError):
            await life.reconcile(minutes=2)
    assert struck
    life.cluster.objects.pop(("Pod", "models", "new"))
    life.controllers(engines=1)
    conditions, _ = await life.reconcile()
    assert conditions["Degraded"] == ("True", "RolledBack")
    assert (image(life), label_of(engine(life))) == (before, label)
    kept = [one for one in life.cluster.objects if one[0] == "ConfigMap"]
    assert sorted(name for _, _, name in kept) == ["nano-engine", "nano-last-ready", "nano-wake"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"template": {}}', '{"template": 1, "document": {}}'])
async def test_a_damaged_record_is_no_revision_and_is_mended_when_engines_are_ready(text: str) -> None:
    life = await served()
    cluster: FakeCluster = life.cluster
    kept = cluster.find("ConfigMap", "nano-last-ready")
    cluster.put({**kept, "data": {"revision.json": text}})
    await life.reconcile()
    assert cluster.find("ConfigMap", "nano-last-ready")["data"] == kept["data"]
