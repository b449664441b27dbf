"""One deployment through its life: the conditions and events of each turn, none of them told twice."""

import pytest

from deployment_life import Life, served
from mamba_operator.autoscale.decide import ScalingDecision
from mamba_operator.autoscale.demand import Demand
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.scaling_record import LatestDecision
from operator_objects import fitting_owner, nano_config


def decision(target: int, *, asked: int, start: int = 1) -> LatestDecision:
    """Return a decision of an autoscaler."""
    made = ScalingDecision(
        target=target, reason="because", binding="slots", demand=Demand(), memory=AutoscalerMemory()
    )
    return LatestDecision(asked, start, made, "")


async def test_from_nothing_to_serving() -> None:
    life = Life(fitting_owner())

    conditions, events = await life.reconcile()
    assert conditions["Ready"] == ("False", "RollingOut")
    assert events == ["Created", "PlanComputed"]
    conditions, events = await life.reconcile()
    assert events == []

    life.controllers(engines=0)
    life.pod("a")
    conditions, events = await life.reconcile()
    assert conditions["Progressing"] == ("True", "LoadingModel")
    assert events == ["LoadingModel"]

    life.controllers(engines=1)
    conditions, events = await life.reconcile()
    assert conditions["Ready"] == ("True", "Serving")
    assert events == ["ReplicasAvailable", "Serving", "UpToDate"]
    assert (await life.reconcile())[1] == []


async def test_a_roll_out_keeps_serving_and_ends_when_the_old_pods_are_gone() -> None:
    life = await served()
    life.spec(4, engine={"image": "registry.test/engine:2"})

    conditions, events = await life.reconcile()
    assert conditions["Ready"] == ("True", "Serving")
    assert conditions["Progressing"] == ("True", "RollingOut")
    assert events == ["RollingOut", "Updated"]

    life.controllers(engines=1, updated=1, replicas=2)
    assert (await life.reconcile())[0]["Progressing"] == ("True", "RollingOut")
    life.controllers(engines=1)
    conditions, events = await life.reconcile()
    assert conditions["Progressing"] == ("False", "UpToDate")
    assert events == ["UpToDate"]


async def test_an_edit_that_cannot_fit_keeps_the_engines_and_its_mending_brings_no_restart() -> None:
    life = await served()
    before = life.cluster.find("Deployment", "nano-engine")
    life.spec(4, memory={"deviceMemory": "16Gi"})

    conditions, events = await life.reconcile()
    assert conditions["Available"] == ("True", "ReplicasAvailable")
    assert conditions["Ready"] == ("False", "PlanDoesNotFit")
    assert events == ["PlanDoesNotFit"]
    assert (await life.reconcile())[1] == []

    life.spec(5)
    conditions, events = await life.reconcile()
    assert conditions["Ready"] == ("True", "Serving")
    assert "Updated" not in events
    assert life.cluster.find("Deployment", "nano-engine") == before


async def test_a_crash_is_one_warning_and_its_end_one_note() -> None:
    life = await served()
    crash = {"name": "engine", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}
    life.pod("a", containerStatuses=[crash])
    life.controllers(engines=0)

    conditions, events = await life.reconcile()
    assert conditions["Degraded"] == ("True", "EngineCrashing")
    assert events.count("EngineCrashing") == 1
    life.pod("a", containerStatuses=[{**crash, "restartCount": 4}])
    assert (await life.reconcile())[1] == [], "one more restart is no news"

    life.cluster.objects.pop(("Pod", "models", "a"))
    life.controllers(engines=1)
    conditions, events = await life.reconcile()
    assert conditions["Ready"] == ("True", "Serving")
    assert "AsExpected" in events
    assert "EngineCrashing" not in events


async def test_a_sleeping_deployment_wakes_serves_and_falls_asleep_when_its_time_is_over() -> None:
    life = Life(fitting_owner(scaling={"minReplicas": 0, "scaleDownDelay": "100s"}))
    await life.reconcile()
    life.controllers(engines=0)
    conditions, _ = await life.reconcile()
    assert conditions["Ready"] == ("True", "ScaledToZero")

    life.wake()
    conditions, events = await life.reconcile(seconds=10)
    assert life.cluster.find("Deployment", "nano-engine")["spec"]["replicas"] == 1
    assert conditions["Progressing"] == ("True", "RollingOut")
    assert "ScaledUp" in events

    life.controllers(engines=1)
    assert (await life.reconcile(seconds=30))[0]["Ready"] == ("True", "Serving")

    assert (await life.reconcile(hours=30))[0]["Ready"] == ("True", "Serving")

    life.latest_decision = decision(0, asked=1)
    _, events = await life.reconcile(seconds=10)
    assert life.cluster.find("Deployment", "nano-engine")["spec"]["replicas"] == 0
    assert "ScaledDown" in events
    life.controllers(engines=0)
    assert (await life.reconcile())[0]["Ready"] == ("True", "ScaledToZero")
    assert life.requeue_after == 300.0


async def test_the_number_that_is_decided_runs_and_is_told_once() -> None:
    life = Life(fitting_owner(scaling={"minReplicas": 1, "maxReplicas": 4}))
    await life.reconcile()
    life.controllers(engines=1)
    await life.reconcile()
    life.latest_decision = decision(3, asked=1)

    _, events = await life.reconcile()
    assert life.cluster.find("Deployment", "nano-engine")["spec"]["replicas"] == 3
    assert events.count("ScaledUp") == 1
    life.controllers(engines=3)
    conditions, events = await life.reconcile()
    assert conditions["Ready"] == ("True", "Serving")
    assert "ScaledUp" not in events
    scaling = life.cluster.find("MambaDeployment", "nano")["status"]["scaling"]
    assert (scaling["desired"], scaling["current"], scaling["reason"]) == (3, 3, "because")


async def test_plan_mode_before_serving_creates_nothing_and_active_makes_everything() -> None:
    life = Life(fitting_owner(mode="Plan"))

    conditions, events = await life.reconcile()
    assert conditions["Planned"] == ("True", "PlanComputed")
    assert conditions["Ready"] == ("False", "PlanMode")
    assert events == ["PlanComputed", "PlanMode"]
    assert life.cluster.find("Deployment", "nano-engine") is None

    life.spec(4)
    _, events = await life.reconcile()
    assert "Created" in events
    assert life.cluster.find("Deployment", "nano-engine") is not None


async def test_the_size_of_the_count_is_followed_up_and_down() -> None:
    life = await served()
    life.spec(4, replicas=3)
    await life.reconcile()
    life.controllers(engines=1)
    conditions, _ = await life.reconcile()
    assert conditions["Progressing"] == ("True", "ScalingUp")
    assert conditions["Ready"] == ("True", "Serving")
    life.controllers(engines=3)
    assert (await life.reconcile())[0]["Progressing"] == ("False", "UpToDate")

    life.spec(5)
    await life.reconcile()
    life.controllers(engines=1, updated=3, replicas=3)
    assert (await life.reconcile())[0]["Progressing"] == ("True", "ScalingDown")
    life.controllers(engines=1)
    assert (await life.reconcile())[0]["Progressing"] == ("False", "UpToDate")


@pytest.mark.parametrize("asked", ["2026-01-02T12:00:00Z", "again", "1"])
async def test_a_restart_that_is_asked_for_rolls_once(asked: str) -> None:
    life = await served()
    life.restart(asked)

    _, events = await life.reconcile()
    assert "Updated" in events
    life.controllers(engines=1)
    await life.reconcile()
    writes = len(life.cluster.calls)
    await life.reconcile()
    assert len(life.cluster.calls) == writes


async def test_a_cache_that_is_no_longer_asked_for_keeps_its_volume() -> None:
    model = {"uri": "hf://org/model", "config": nano_config()}
    life = Life(fitting_owner(model={**model, "cache": {"size": "50Gi"}}))
    await life.reconcile()
    claim = life.cluster.find("PersistentVolumeClaim", "nano-model")

    life.spec(4, model=model)
    _, events = await life.reconcile()

    assert "Deleted" not in events
    assert life.cluster.find("PersistentVolumeClaim", "nano-model") == claim
    volumes = life.cluster.find("Deployment", "nano-engine")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "cache", "emptyDir": {}} in volumes
