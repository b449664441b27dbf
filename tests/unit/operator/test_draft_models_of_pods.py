"""A draft model of a MambaDeployment: what pods mount and may read for it, and what is known of its plan."""

from typing import Any

from mamba_api.v1alpha1 import MambaDeployment
from mamba_operator.memory.verdict import Unknown, planner_input
from mamba_operator.render import render
from mamba_operator.render.context import Context
from operator_objects import nano_config, owner


def deployment(draft: str, **model: Any) -> MambaDeployment:
    spec = owner(model=model, engine={"speculation": f"draft={draft}"})
    return MambaDeployment.model_validate({k: v for k, v in spec.items() if k != "status"})


def engine_pod(of: MambaDeployment) -> Any:
    children = [*render(Context(of, 1, None))]
    [found] = [
        each for each in children if (each["kind"], each["metadata"]["name"]) == ("Deployment", "nano-engine")
    ]
    return found["spec"]["template"]["spec"]


def test_a_draft_model_is_downloaded_with_the_secret_of_the_models_store() -> None:
    pod = engine_pod(
        deployment("s3://bucket/draft", uri="oci://registry.io/a/b:1", secretRef={"name": "keys"})
    )
    [container] = pod["containers"]
    keys = {
        each["name"]: each["valueFrom"]["secretKeyRef"]
        for each in container["env"]
        if "valueFrom" in each and "secretKeyRef" in each["valueFrom"]
    }
    assert keys["AWS_ACCESS_KEY_ID"] == {"name": "keys", "key": "AWS_ACCESS_KEY_ID", "optional": True}


def test_a_draft_model_brings_the_room_for_its_download_or_its_claim() -> None:
    downloaded = engine_pod(deployment("hf://a/draft", uri="pvc://models/big"))
    assert {"name": "cache", "emptyDir": {}} in downloaded["volumes"]
    claimed = engine_pod(deployment("pvc://small/draft", uri="pvc://models/big"))
    [mount] = [each for each in claimed["containers"][0]["volumeMounts"] if each["name"] == "draft-model"]
    assert mount == {"name": "draft-model", "mountPath": "/models/small", "readOnly": True}
    assert {"claimName": "small", "readOnly": True} in [
        volume.get("persistentVolumeClaim") for volume in claimed["volumes"]
    ]
    same = engine_pod(deployment("pvc://models/draft", uri="pvc://models/big"))
    assert [each["mountPath"] for each in same["containers"][0]["volumeMounts"]].count("/models/models") == 1


def test_the_plan_is_the_engines_own_because_the_size_of_the_draft_model_is_unknown() -> None:
    verdict = planner_input(deployment("hf://a/draft", uri="hf://a/b", config=nano_config()), 80 << 30)
    assert isinstance(verdict, Unknown)
    assert "the size of the draft model hf://a/draft is unknown" in verdict.message
