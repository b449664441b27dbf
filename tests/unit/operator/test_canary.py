"""The life of a canary: a candidate beside the engines, its steps, and its end by requests or by a person."""

from typing import Any

import pytest

from deployment_life import POD, Life, served
from mamba_api import names
from mamba_api.v1alpha1 import Canary, CanaryAnalysis
from mamba_operator.canary.analysis import CanaryFigures
from mamba_operator.canary.decision import candidate_engines
from mamba_operator.canary.state import SHADOW_STEP
from mamba_operator.objects.manifest import Manifest, label_of
from operator_objects import fitting_owner

STEPS = [{"weight": 5, "requests": 100}, {"weight": 50, "hold": "10m"}]
OTHER: dict[str, Any] = {"engine": {"image": "registry.test/engine:other"}}


def canary(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"rollout": {"canary": {"steps": list(steps) or STEPS}}}


def child(life: Life, kind: str, name: str) -> Manifest:
    found = life.cluster.find(kind, name)
    assert found is not None
    return found


def engine(life: Life) -> Manifest:
    return child(life, "Deployment", "nano-engine")


def status(life: Life) -> dict[str, Any]:
    written: dict[str, Any] = child(life, "MambaDeployment", "nano")["status"]
    return written


def weight(life: Life) -> str | None:
    labels: dict[str, str] = child(life, "Service", "nano-engine")["metadata"]["labels"]
    return labels.get(names.LABEL_CANDIDATE_WEIGHT)


def candidates_ready(life: Life, count: int = 1) -> None:
    """Report the candidate's engines as its Deployment's controller does."""
    one = child(life, "Deployment", "nano-candidate")
    one["status"] = {
        "observedGeneration": one["metadata"]["generation"],
        "replicas": count, "updatedReplicas": count, "readyReplicas": count,
    }  # fmt: skip
    life.cluster.put(one)


def ask(life: Life, text: str) -> None:
    one = child(life, "MambaDeployment", "nano")
    life.cluster.put({**one, "metadata": {**one["metadata"], "annotations": {names.ANNOTATION_CANARY: text}}})


def figures(revision: str, step: int, requests: int, **more: Any) -> CanaryFigures:
    return CanaryFigures(revision, step, requests, **more)


async def tried(*steps: dict[str, Any], **more: Any) -> tuple[Life, str, str]:
    """Return a deployment whose change is tried by a ready candidate, and both revisions."""
    life = await served()
    old = label_of(engine(life))
    life.spec(4, **OTHER, **canary(*steps), **more)
    await life.reconcile()
    candidates_ready(life)
    await life.reconcile()
    new = label_of(child(life, "Deployment", "nano-candidate"))
    assert old
    assert new
    assert old != new
    assert label_of(engine(life)) == old
    return life, old, new


async def test_a_change_is_tried_step_by_step_and_then_replaces_all_engines() -> None:
    life = await served()
    old = label_of(engine(life))
    life.spec(4, **OTHER, **canary())
    _, events = await life.reconcile()
    candidate = child(life, "Deployment", "nano-candidate")
    new = str(label_of(candidate))
    assert label_of(engine(life)) == old, "all engines of the old revision serve on"
    assert weight(life) == "0", "nobody is sent to engines that do not answer"
    assert "CanaryStep" not in events

    candidates_ready(life)
    conditions, events = await life.reconcile(minutes=3)
    assert weight(life) == "5"
    assert "CanaryStep" in events
    assert conditions["Progressing"] == ("True", "CanaryRunning")
    assert conditions["Ready"] == ("True", "Serving")
    shown = status(life)["canary"]
    assert (shown["revision"], shown["stableRevision"], shown["phase"]) == (new, old, "Running")
    assert (shown["step"], shown["steps"], shown["weight"], shown["engines"]) == (1, 2, 5, "1/1")

    life.canary = figures(new, 0, 99)
    await life.reconcile(hours=1)
    assert status(life)["canary"]["step"] == 1, "a step of requests waits for them"
    life.canary = figures(new, 0, 100)
    await life.reconcile()
    assert (status(life)["canary"]["step"], weight(life)) == (2, "50")

    await life.reconcile(minutes=9)
    assert label_of(engine(life)) == old
    _, events = await life.reconcile(minutes=2)
    assert label_of(engine(life)) == new
    assert "CanaryPromoted" in events
    life.controllers(engines=1, updated=0)
    await life.reconcile()
    assert (status(life)["canary"]["phase"], weight(life)) == ("Promoting", "50"), "it serves meanwhile"
    life.controllers(engines=1)
    await life.reconcile()
    conditions, _ = await life.reconcile()
    assert life.cluster.find("Deployment", "nano-candidate") is None
    assert life.cluster.find("ConfigMap", "nano-candidate") is None
    assert weight(life) is None
    assert "canary" not in status(life)
    assert conditions["UpToDate"] == ("True", "UpToDate")
    assert status(life)["rollout"]["readyRevision"] == new


def copies(life: Life) -> tuple[str | None, str | None, str | None]:
    """Return the weight, the share of copies and their bound, as gateways read them."""
    labels: dict[str, str] = child(life, "Service", "nano-engine")["metadata"]["labels"]
    share, bound = labels.get(names.LABEL_SHADOW_SHARE), labels.get(names.LABEL_SHADOW_COPIES)
    return weight(life), share, bound


def shadowed(**shadow: Any) -> dict[str, Any]:
    return {"rollout": {"canary": {"shadow": {"percent": 30, **shadow}, "steps": [{"weight": 5}]}}}


async def test_copies_come_before_the_first_step_and_no_client_gets_an_answer_of_the_candidate() -> None:
    life = await served()
    life.spec(4, **OTHER, replicas=4, **shadowed(requests=200, maxInFlight=3))
    await life.reconcile()
    new = str(label_of(child(life, "Deployment", "nano-candidate")))
    assert child(life, "Deployment", "nano-candidate")["spec"]["replicas"] == 2, "for 30% of four"
    assert copies(life) == ("0", None, None), "no engine of the candidate is ready"
    candidates_ready(life, 2)
    conditions, events = await life.reconcile()
    assert copies(life) == ("0", "30", "3")
    assert "CanaryStep" in events
    assert conditions["Progressing"] == ("True", "CanaryRunning")
    shown = status(life)["canary"]
    assert (shown.get("step", 0), shown["shadow"], shown.get("weight", 0)) == (0, 30, 0)
    life.canary = figures(new, SHADOW_STEP, 199)
    await life.reconcile(hours=1)
    assert copies(life) == ("0", "30", "3")
    life.canary = figures(new, SHADOW_STEP, 200)
    await life.reconcile()
    candidates_ready(life)
    await life.reconcile()
    assert copies(life) == ("5", None, None), "the first step has begun, and copies have ended"
    assert (status(life)["canary"]["step"], status(life)["canary"]["phase"]) == (1, "Waiting")


async def test_copies_end_by_time_or_by_a_person() -> None:
    for shadow, later in (({"hold": "10m"}, "10m"), ({}, "resume")):
        life = await served()
        life.spec(4, **OTHER, replicas=4, **shadowed(**shadow))
        await life.reconcile()
        candidates_ready(life, 2)
        await life.reconcile()
        new = str(label_of(child(life, "Deployment", "nano-candidate")))
        assert status(life)["canary"]["phase"] == ("Running" if shadow else "Waiting")
        await life.reconcile(minutes=9)
        assert copies(life)[1] == "30"
        if later == "resume":
            ask(life, f"resume {new} 0")
        await life.reconcile(minutes=2)
        assert copies(life)[1] is None
        assert status(life)["canary"]["step"] == 1


async def test_a_candidate_whose_copies_fail_is_taken_back_and_a_spec_without_copies_goes_on() -> None:
    life = await served()
    life.spec(4, **OTHER, replicas=4, **shadowed())
    await life.reconcile()
    candidates_ready(life, 2)
    await life.reconcile()
    new = str(label_of(child(life, "Deployment", "nano-candidate")))
    life.spec(5, **OTHER, replicas=4, **canary())
    await life.reconcile()
    assert (status(life)["canary"]["step"], copies(life)) == (1, ("5", None, None))
    life.canary = figures(new, 0, 60, alarm=("AnswersDiffer", "it wrote another text"))
    await life.reconcile()
    assert status(life)["rollout"]["reason"] == "AnswersDiffer"


async def test_pods_of_a_candidate_are_those_that_a_promotion_makes_with_their_own_settings() -> None:
    life, _, new = await tried()
    candidate = child(life, "Deployment", "nano-candidate")["spec"]
    template = candidate["template"]
    assert candidate["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert candidate["selector"] != engine(life)["spec"]["selector"]
    [volume] = [one for one in template["spec"]["volumes"] if one["name"] == "settings"]
    assert volume["configMap"]["name"] == "nano-candidate"
    assert child(life, "ConfigMap", "nano-candidate")["data"].keys() == {"engine.json"}
    ask(life, f"promote {new}")
    await life.reconcile()
    life.controllers(engines=1, updated=0)
    await life.reconcile()
    assert (status(life)["canary"]["phase"], weight(life)) == ("Promoting", "5"), "one engine is for 5%"
    promoted = engine(life)["spec"]["template"]
    assert promoted["spec"]["containers"] == template["spec"]["containers"]
    assert template["metadata"]["labels"].items() > promoted["metadata"]["labels"].items()


async def test_a_candidate_that_is_worse_is_taken_back_and_not_tried_again() -> None:
    life, old, new = await tried()
    life.canary = figures(new, 0, 60, alarm=("ErrorRateRose", "it failed 9 of 60 (15.0%) requests"))
    _, events = await life.reconcile()
    assert "RolledBack" in events
    assert weight(life) is None
    life.canary = None
    conditions, _ = await life.reconcile(hours=5)
    assert life.cluster.find("Deployment", "nano-candidate") is None
    assert label_of(engine(life)) == old
    assert conditions["Ready"] == ("True", "Serving")
    assert conditions["Degraded"] == ("True", "RolledBack")
    told = status(life)["rollout"]
    assert (told["failedRevision"], told["reason"]) == (new, "ErrorRateRose")
    assert "15.0%" in told["message"]

    life.restart("again")
    await life.reconcile()
    assert label_of(child(life, "Deployment", "nano-candidate")) not in (old, new)


async def test_figures_of_another_candidate_end_nothing() -> None:
    life, _, _ = await tried()
    life.canary = figures("another", 0, 500, alarm=("ErrorRateRose", "it failed"))
    await life.reconcile()
    assert (weight(life), status(life)["canary"]["step"]) == ("5", 1)


async def test_a_candidate_that_does_not_start_is_taken_back() -> None:
    life = await served()
    life.spec(4, **OTHER, **canary())
    await life.reconcile()
    new = label_of(child(life, "Deployment", "nano-candidate"))
    labels = {**POD, names.LABEL_REVISION: new, names.LABEL_TRACK: names.CANDIDATE}
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    life.cluster.put({
        "kind": "Pod", "metadata": {"name": "nano-candidate-a", "namespace": "models", "labels": labels},
        "spec": {"nodeName": "n"}, "status": {"phase": "Pending", "containerStatuses": [waiting]},
    })  # fmt: skip
    conditions, _ = await life.reconcile()
    assert conditions["Degraded"][0] == "False", "all engines serve; it is no trouble yet"
    await life.reconcile(seconds=61)
    assert status(life)["rollout"]["reason"] == "ImagePullFailed"
    assert status(life)["rollout"]["failedRevision"] == new


@pytest.mark.parametrize(
    ("text", "ended"),
    [("abort {}", True), ("abort another", False), ("stop {}", False), ("resume {} x", False)],
)
async def test_a_person_aborts_the_candidate_that_the_request_names(text: str, ended: bool) -> None:
    life, _, new = await tried()
    ask(life, text.format(new))
    await life.reconcile()
    assert (status(life).get("canary") is None) is ended
    assert (status(life)["rollout"].get("reason") == "CanaryAborted") is ended


async def test_a_paused_canary_keeps_its_step_and_still_ends_when_it_is_worse() -> None:
    life, _, new = await tried({"weight": 5, "hold": "1m"}, {"weight": 50, "hold": "1m"})
    ask(life, f"pause {new}")
    conditions, _ = await life.reconcile(hours=1)
    assert (weight(life), status(life)["canary"]["phase"]) == ("5", "Paused")
    assert conditions["Progressing"] == ("False", "CanaryWaits")
    assert conditions["Stalled"][0] == "False"
    ask(life, f"resume {new} 1")
    await life.reconcile()
    assert status(life)["canary"]["step"] == 2
    ask(life, f"pause {new}")
    life.canary = figures(new, 1, 60, alarm=("TtftRose", "the first token took longer"))
    await life.reconcile()
    assert status(life)["rollout"]["reason"] == "TtftRose"


async def test_a_step_without_an_end_waits_for_a_person_each_time() -> None:
    life, old, new = await tried({"weight": 5}, {"weight": 10})
    await life.reconcile(hours=9)
    assert status(life)["canary"]["phase"] == "Waiting"
    ask(life, f"resume {new} 1")
    await life.reconcile()
    await life.reconcile(hours=9)
    assert (status(life)["canary"]["step"], weight(life)) == (2, "10"), "one request is for one step"
    ask(life, f"resume {new} 2")
    await life.reconcile()
    assert label_of(engine(life)) == new != old


async def test_the_weight_of_a_step_waits_for_all_of_its_engines() -> None:
    life, _, _ = await tried({"weight": 5, "hold": "1m"}, {"weight": 50, "hold": "1m"}, replicas=4)
    await life.reconcile(minutes=2)
    assert child(life, "Deployment", "nano-candidate")["spec"]["replicas"] == 2
    await life.reconcile(hours=1)
    assert (status(life)["canary"]["phase"], weight(life)) == ("Starting", "5")
    candidates_ready(life, 2)
    await life.reconcile()
    assert weight(life) == "50"
    assert [candidate_engines(n, w) for n, w in ((0, 50), (1, 1), (4, 26), (100, 5))] == [0, 1, 2, 5]


async def test_a_candidate_gets_no_more_than_its_ready_engines_are_for() -> None:
    life, _, _ = await tried({"weight": 25, "hold": "1h"}, replicas=4)
    assert weight(life) == "25"
    life.spec(4, **OTHER, **canary({"weight": 25, "hold": "1h"}), replicas=12)
    await life.reconcile()
    assert child(life, "Deployment", "nano-candidate")["spec"]["replicas"] == 3
    await life.reconcile()
    assert weight(life) == "8", "one of three engines is ready"
    candidates_ready(life, 3)
    await life.reconcile()
    assert weight(life) == "25"
    assert status(life)["canary"]["step"] == 1


async def test_a_deployment_at_zero_keeps_its_candidate_waiting_until_engines_run_again() -> None:
    life, old, _ = await tried({"weight": 50, "hold": "10m"}, replicas=2)
    life.spec(4, **OTHER, **canary({"weight": 50, "hold": "10m"}), replicas=0)
    await life.reconcile()
    assert child(life, "Deployment", "nano-candidate")["spec"]["replicas"] == 0
    await life.reconcile(hours=2)
    assert label_of(engine(life)) == old, "a candidate that has answered nobody is not promoted"
    life.spec(4, **OTHER, **canary({"weight": 50, "hold": "10m"}), replicas=2)
    await life.reconcile()
    candidates_ready(life)
    await life.reconcile()
    assert weight(life) == "50"
    await life.reconcile(minutes=9)
    assert label_of(engine(life)) == old, "the step has begun anew"


async def test_another_change_begins_anew_and_taking_it_back_ends_the_canary() -> None:
    life, old, new = await tried({"weight": 5, "hold": "1m"}, {"weight": 50, "hold": "1m"})
    await life.reconcile(minutes=2)
    life.spec(5, engine={"image": "registry.test/engine:third"}, **canary())
    await life.reconcile()
    assert label_of(child(life, "Deployment", "nano-candidate")) not in (old, new)
    assert (status(life)["canary"]["step"], weight(life)) == (1, "0")
    life.spec(6, **canary())
    await life.reconcile()
    assert life.cluster.find("Deployment", "nano-candidate") is None
    assert label_of(engine(life)) == old


async def test_pause_in_the_spec_keeps_a_candidate_from_starting() -> None:
    life = await served()
    old = label_of(engine(life))
    life.spec(4, **OTHER, rollout={"pause": True, "canary": {"steps": STEPS}})
    await life.reconcile()
    assert life.cluster.find("Deployment", "nano-candidate") is None
    assert label_of(engine(life)) == old


async def test_the_first_revision_of_a_deployment_is_no_canary() -> None:
    life = Life(fitting_owner(**canary()))
    await life.reconcile()
    assert life.cluster.find("Deployment", "nano-candidate") is None
    assert weight(life) is None
    assert Canary.model_validate({"steps": [{"weight": 5}]}).analysis == CanaryAnalysis()
