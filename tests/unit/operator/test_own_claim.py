"""`spec.model.cache.claimName`: engine pods fill a claim of the user's before they start."""

from typing import Any

from mamba_api import names
from mamba_api.v1alpha1.conditions import ConditionType, Reason, find_condition
from mamba_operator.conditions.status import summarize
from mamba_operator.objects.manifest import Manifest
from model_loads import cached
from operator_objects import NOW, applied, fitting_owner, planned, running, snapshot

URI = "hf://org/model@" + "0" * 40
ENGINE = "nano-engine-a"


def own(**spec: Any) -> Manifest:
    return fitting_owner(model={"uri": URI, "cache": {"claimName": "mine"}}, **spec)


def pod_spec(children: list[Manifest]) -> dict[str, Any]:
    [found] = [
        one for one in children if one["kind"] == "Deployment" and one["metadata"]["name"] == "nano-engine"
    ]
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def engine_pod(state: dict[str, Any], **more: Any) -> Manifest:
    loader = {"name": names.LOADER_CONTAINER, "state": state, **more}
    return {
        "kind": "Pod",
        "metadata": {"name": ENGINE, "namespace": "models", "labels": names.labels("nano", "engine")},
        "status": {"phase": "Pending", "initContainerStatuses": [loader]},
    }


def condition(of: Manifest, pods: list[Manifest], kind: ConditionType, **more: Any) -> tuple[str, str, str]:
    children = running(applied(of), engines=0)
    seen = snapshot(of, children, pods=tuple(pods), **more)
    status = summarize(seen, planned(of, children, pods=tuple(pods), **more), (), now=NOW)
    assert status is not None
    found = find_condition(status.conditions, kind)
    assert found is not None
    return found.status, found.reason, found.message


def test_engine_pods_download_to_the_claim_and_nothing_else_is_made_for_it() -> None:
    children = applied(own(engine={"env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}]}))

    assert {one["kind"] for one in children} & {"Job", "PersistentVolumeClaim"} == set()
    spec = pod_spec(children)
    [loader] = spec["initContainers"]
    assert loader["args"] == ["download", URI]
    assert {"name": "HTTPS_PROXY", "value": "http://proxy"} in loader["env"]
    assert {"name": "HF_HOME", "value": "/cache"} in loader["env"]
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "mine"}} in spec["volumes"]


def test_the_loader_writes_and_the_engine_reads_and_asks_the_hub_nothing() -> None:
    token = {"uri": URI, "cache": {"claimName": "mine"}, "tokenSecretRef": {"name": "hub"}}
    spec = pod_spec(applied(fitting_owner(model=token)))
    [loader], [engine] = spec["initContainers"], spec["containers"]

    def mount(container: dict[str, Any]) -> dict[str, Any]:
        [found] = [one for one in container["volumeMounts"] if one["name"] == "cache"]
        return dict(found)

    assert mount(loader) == {"name": "cache", "mountPath": "/cache"}
    assert mount(engine) == {"name": "cache", "mountPath": "/cache", "readOnly": True}
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in engine["env"]
    assert "HF_TOKEN" in {one["name"] for one in loader["env"]}
    assert "HF_TOKEN" not in {one["name"] for one in engine["env"]}


def test_the_loader_keeps_the_restricted_pod_security_standard() -> None:
    spec = pod_spec(applied(own()))
    for container in (*spec["initContainers"], *spec["containers"]):
        security = container["securityContext"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"]
    assert "hostPath" not in str(spec["volumes"])


def test_the_status_says_who_downloads_and_how_far_it_is() -> None:
    pods = [engine_pod({"running": {}})]

    found = condition(own(), pods, ConditionType.PROGRESSING, downloads={ENGINE: (1 << 30, 4 << 30)})
    assert found[:2] == ("True", Reason.DOWNLOADING_MODEL)
    assert f"pod {ENGINE}: 1.0Gi of 4.0Gi" in found[2]
    assert ENGINE in condition(own(), pods, ConditionType.PROGRESSING)[2]


def test_a_download_that_fails_again_and_again_is_one_and_no_crash_of_the_engine() -> None:
    ended = {
        "terminated": {"exitCode": 2, "message": f"{URI}: 4.0Gi are to be fetched and /cache has 1.0Gi left"}
    }
    pods = [engine_pod({"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended, restartCount=3)]

    status, reason, message = condition(own(), pods, ConditionType.DEGRADED)

    assert (status, reason) == ("True", Reason.DOWNLOAD_FAILED)
    assert "has 1.0Gi left" in message


def test_from_a_volume_that_was_made_to_a_claim_the_loader_goes_and_the_volume_stays() -> None:
    made = applied(cached())
    kinds = {one["kind"] for one in made}
    assert "PersistentVolumeClaim" in kinds

    plan = planned(own(), made)

    assert "PersistentVolumeClaim" not in {one.ref.kind for one in plan.deletes}
    assert "Deployment" in {one.manifest["kind"] for one in plan.applies}


def test_from_a_claim_to_a_volume_that_is_made_engines_wait_for_the_loader() -> None:
    children = applied(own())

    plan = planned(cached(), children)

    assert plan.load is not None
    assert "PersistentVolumeClaim" in {one.manifest["kind"] for one in plan.applies}
    assert "nano-engine" not in {one.ref.name for one in plan.deletes}
