"""A real API server takes the CRD, fills the defaults of the models and refuses what the models refuse."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.documents import load_documents
from mamba_api.v1alpha1.schema import crd_yaml, custom_resource_definition
from parsed_yaml import load_yaml
from testcluster.control_plane import ControlPlane
from testcluster.errors import CommandFailed, Refused
from wrong_specs import CACHE, WRONG_CHANGES, WRONG_SPECS

pytestmark = pytest.mark.kube

BROKEN = load_yaml((Path(__file__).parents[1] / "data/broken_specs.yaml").read_text())
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*/*.yaml"))
NOW = "2026-01-02T12:00:00Z"


def deployment(name: str = "nano", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.mambaserve.io/v1alpha1",
        "kind": "MambaDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "builtin://tiny-recall"}, **spec},
    }


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """Return the control plane with the CRD in force."""
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=crd_yaml())
    # Not `kubectl wait`: it gives up on an object that has no status yet.
    control_plane.wait_for(
        lambda: (
            "mambadeployments" in control_plane.kubectl("api-resources", "--api-group=serving.mambaserve.io")
        ),
        "the resource to be discoverable",
    )
    return control_plane


@pytest.fixture(scope="module")
def empty_namespace(plane: ControlPlane) -> str:
    """Return the namespace of the tests that store nothing."""
    return plane.create_namespace()


def stored(plane: ControlPlane, namespace: str, name: str = "nano") -> dict[str, Any]:
    found = plane.get("mdep", name, namespace)
    assert found is not None
    return found


def refusal(plane: ControlPlane, namespace: str, manifest: dict[str, Any]) -> str:
    with pytest.raises(Refused) as caught:
        plane.apply(manifest, namespace)
    assert plane.get("mdep", "nano", namespace) is None
    return str(caught.value)


def test_the_schema_is_structural_and_its_rules_compile(plane: ControlPlane) -> None:
    crd = plane.get("crd", "mambadeployments.serving.mambaserve.io")
    assert crd is not None
    state = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
    assert state["Established"] == "True"
    assert state["NamesAccepted"] == "True"
    assert state.get("NonStructuralSchema", "False") == "False"
    wanted = custom_resource_definition()["spec"]["versions"][0]["schema"]
    assert crd["spec"]["versions"][0]["schema"] == wanted


def test_the_defaults_it_fills_in_are_those_of_the_models(plane: ControlPlane, namespace: str) -> None:
    manifest = deployment(workload={}, gateway={"auth": {"secretRef": {"name": "keys"}}})
    plane.apply(manifest, namespace)
    assert stored(plane, namespace)["spec"] == MambaDeployment.model_validate(manifest).manifest()["spec"]


def test_what_it_stores_is_read_back_by_the_models(plane: ControlPlane, namespace: str) -> None:
    manifest = deployment(
        memory={"deviceMemory": 85899345920, "arena": "256Mi"},
        podTemplate={"spec": {"hostUsers": False, "unknown": {"a": [1, None]}}},
        model={"uri": "hf://a/b@main", "config": {"architectures": ["X"], "x": 1.5}},
        scheduling={"tolerations": [{"key": "gpu"}], "nodeSelector": {"a": "b"}},
    )
    plane.apply(manifest, namespace)
    read = MambaDeployment.model_validate(stored(plane, namespace))
    assert read.spec == MambaDeployment.model_validate(manifest).spec
    assert read.metadata.uid


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case["name"])
def test_what_can_never_work_is_refused_in_words(
    plane: ControlPlane, empty_namespace: str, case: dict[str, Any]
) -> None:
    said = refusal(plane, empty_namespace, deployment(**case["spec"]))
    assert case["says"] in said
    assert case.get("api", "") in said


def test_an_unknown_field_is_refused(plane: ControlPlane, empty_namespace: str) -> None:
    assert "trackIntervall" in refusal(plane, empty_namespace, deployment(stateCache={"trackIntervall": 3}))


@pytest.mark.parametrize("name", ["1nano", "n" * 53, "nano.x"])
def test_a_name_that_could_not_name_a_service_is_refused(
    plane: ControlPlane, empty_namespace: str, name: str
) -> None:
    assert "metadata.name" in refusal(plane, empty_namespace, deployment(name))


@pytest.mark.parametrize(
    "spec",
    [
        {"mode": "Plan"},
        {"resources": {"gpus": 0}, "memory": {"arena": "256Mi"}},
        {"scaling": {"minReplicas": 0, "maxReplicas": 3}},
        {"replicas": 3, "scaling": {"minReplicas": 3, "maxReplicas": 3}},
        {"replicas": 0},
        {"scaling": {"mode": "External"}},
        {"engine": {"pageSize": 32}},
    ],
    ids=json.dumps,
)
def test_what_can_work_is_accepted(plane: ControlPlane, namespace: str, spec: dict[str, Any]) -> None:
    plane.apply(deployment(**spec), namespace)
    assert MambaDeployment.model_validate(stored(plane, namespace)).spec.model.uri == "builtin://tiny-recall"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_the_examples_are_accepted_and_read_back(plane: ControlPlane, namespace: str, file: Path) -> None:
    plane.apply(file.read_text(), namespace)
    for wanted in load_documents(file.read_text(), str(file)):
        assert MambaDeployment.model_validate(stored(plane, namespace, wanted.name)).spec == wanted.spec


@pytest.mark.parametrize("says", WRONG_CHANGES)
def test_what_a_volume_cannot_become_is_refused_in_words(
    plane: ControlPlane, namespace: str, says: str
) -> None:
    plane.apply(deployment(model={"uri": "hf://a/b", "cache": CACHE}), namespace)
    path = f"/apis/serving.mambaserve.io/v1alpha1/namespaces/{namespace}/mambadeployments/nano"
    others = []
    for change in WRONG_CHANGES[says]:
        now = stored(plane, namespace)
        other = {key: value for key, value in {**CACHE, **change}.items() if value is not None}
        now["spec"]["model"]["cache"] = other
        status, said = plane.api.request("PUT", path, now)
        if status != 422 or says not in said["message"]:
            others.append((change, said))
    assert others == []
    # A volume grows, and a mind changes.
    plane.apply(deployment(model={"uri": "hf://a/b", "cache": {**CACHE, "size": "41Gi"}}), namespace)
    plane.apply(deployment(model={"uri": "hf://a/b"}), namespace)


def test_another_model_is_a_legal_change(plane: ControlPlane, namespace: str) -> None:
    plane.apply(deployment(), namespace)
    plane.apply(deployment(model={"uri": "hf://a/b"}), namespace)
    assert stored(plane, namespace)["metadata"]["generation"] == 2


@settings(max_examples=10)
@given(
    page=st.sampled_from([1, 8, 16, 64]),
    pages=st.integers(1, 64),
    gpus=st.integers(0, 1),
    low=st.integers(0, 5),
    size=st.sampled_from(["80Gi", "1.5Gi", "512M", 85899345920, "7", "900m"]),
    wait=st.sampled_from(["300s", "5m", "500ms", "1h30m", "0.5s"]),
    uri=st.sampled_from(
        ["hf://a/b@main", "pvc://claim/a/b", "file:///srv/x", "file://./x", "builtin://tiny"]
    ),
    share=st.floats(0, 1, allow_subnormal=False),
)
def test_whatever_the_models_accept_is_stored_as_the_models_read_it(
    plane: ControlPlane, empty_namespace: str, page: int, pages: int, gpus: int, low: int, size: Any,
    wait: str, uri: str, share: float,
) -> None:  # fmt: skip
    manifest = deployment(
        model={"uri": uri},
        engine={"pageSize": page},
        stateCache={"trackInterval": page * pages},
        resources={"gpus": gpus, "memory": size},
        memory={"arena": size},
        replicas=low,
        scaling={"minReplicas": low, "maxReplicas": low + 1, "scaleDownDelay": wait},
        workload={"sharedPrefixRatio": share},
    )
    path = f"/apis/serving.mambaserve.io/v1alpha1/namespaces/{empty_namespace}/mambadeployments?dryRun=All"
    status, answer = plane.api.request("POST", path, manifest)
    assert status == 201, answer
    assert MambaDeployment.model_validate(answer).spec == MambaDeployment.model_validate(manifest).spec


def test_scaling_writes_the_replicas_and_shows_the_selector(plane: ControlPlane, namespace: str) -> None:
    plane.apply(deployment(scaling={"mode": "External"}), namespace)
    patch_status(plane, namespace, {"replicas": 2, "selector": "a=b"})
    plane.kubectl("scale", "mdep/nano", "--replicas=3", "-n", namespace)
    path = f"/apis/serving.mambaserve.io/v1alpha1/namespaces/{namespace}/mambadeployments/nano/scale"
    scale = json.loads(plane.kubectl("get", "--raw", path))
    assert scale["spec"]["replicas"] == 3
    assert scale["status"] == {"replicas": 2, "selector": "a=b"}
    assert stored(plane, namespace)["spec"]["replicas"] == 3


@pytest.mark.parametrize(
    ("bounds", "asked", "says"),
    [
        ({"minReplicas": 1}, 0, "spec.replicas is below scaling.minReplicas"),
        ({"mode": "External", "maxReplicas": 2}, 50, "spec.replicas is above scaling.maxReplicas"),
    ],
    ids=str,
)
def test_scaling_beyond_the_bounds_is_refused_in_words(
    plane: ControlPlane, namespace: str, bounds: dict[str, Any], asked: int, says: str
) -> None:
    plane.apply(deployment(scaling=bounds), namespace)

    with pytest.raises(CommandFailed, match=says):
        plane.kubectl("scale", "mdep/nano", f"--replicas={asked}", "-n", namespace)

    assert stored(plane, namespace)["spec"]["replicas"] == 1


def patch_status(plane: ControlPlane, namespace: str, status: dict[str, Any]) -> None:
    plane.kubectl(
        "patch", "mdep", "nano", "-n", namespace, "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": status}),
    )  # fmt: skip


def ready(status: str, reason: str) -> dict[str, Any]:
    return {
        "type": "Ready", "status": status, "reason": reason, "message": "m", "lastTransitionTime": NOW,
        "observedGeneration": 1,
    }  # fmt: skip


PLAN = {
    "strategy": "ExtraBufferLazy", "reason": "fits", "stateDtype": "float16", "slots": 369, "pages": 12000,
    "slotsPerSequence": 2, "maxRunningRequests": 64, "bindingConstraint": "slots", "headroom": "3.1Gi",
    "ledger": [{"item": "weights", "bytes": 17_800_000_000}],
    "rejected": [{"strategy": "NoBuffer", "stateDtype": "float32", "reason": "slower"}],
    "tiers": [{"tier": "disk", "bytes": 100_000_000_000, "states": 900}],
}  # fmt: skip


POOL = {
    "name": "decode", "replicas": 2, "readyReplicas": 1, "desiredReplicas": 2, "strategy": "ExtraBufferLazy",
    "plan": {**PLAN, "receiving": 8, "raised": "the arena was too small"},
    "rollout": {"readyRevision": "0123456789", "failedRevision": "", "reason": "", "message": ""},
}  # fmt: skip


def test_the_columns_show_what_the_status_says(plane: ControlPlane, namespace: str) -> None:
    plane.apply(deployment(), namespace)
    url = "http://nano.ns.svc/v1"
    patch_status(
        plane, namespace,
        {
            "conditions": [ready("True", "Serving")], "plan": PLAN, "engines": "2/3",
            "strategy": "ExtraBufferLazy", "url": url,
        },
    )  # fmt: skip
    header, row = plane.kubectl("get", "mdep", "-n", namespace).splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "STRATEGY", "REPLICAS", "MODEL", "AGE", "MESSAGE"]
    shown = row.split()
    assert shown[:6] == ["nano", "True", "Serving", "ExtraBufferLazy", "2/3", "builtin://tiny-recall"]
    assert shown[7:] == ["m"]
    header, row = plane.kubectl("get", "mambaserve", "-n", namespace, "-o", "wide").splitlines()
    assert re.split(r"\s{2,}", header)[-4:] == ["URL", "SLOTS", "MAX RUNNING", "HEADROOM"]
    assert row.split()[-4:] == [url, "369", "64", "3.1Gi"]


@pytest.mark.parametrize("says", WRONG_SPECS)
def test_wrong_specs_of_each_rule_are_refused_in_its_words(
    plane: ControlPlane, empty_namespace: str, says: str
) -> None:
    path = f"/apis/serving.mambaserve.io/v1alpha1/namespaces/{empty_namespace}/mambadeployments?dryRun=All"
    answers = [plane.api.request("POST", path, deployment(**spec)) for spec in WRONG_SPECS[says]]

    others = [said for status, said in answers if status != 422 or says not in said["message"]]
    assert others == []


def test_a_complete_status_is_kept_and_read_back(plane: ControlPlane, namespace: str) -> None:
    plane.apply(deployment(), namespace)
    status = {
        "observedGeneration": 1, "replicas": 2, "readyReplicas": 1, "selector": "a=b", "url": "http://x",
        "conditions": [ready("False", "LoadingModel")], "plan": PLAN, "pools": [POOL],
    }  # fmt: skip
    patch_status(plane, namespace, status)
    read = MambaDeployment.model_validate(stored(plane, namespace)).status
    assert read is not None
    assert read.plan is not None
    assert read.plan.manifest() == PLAN
    assert [pool.manifest() for pool in read.pools] == [POOL]
    assert read.conditions[0].manifest() == ready("False", "LoadingModel")


def test_a_status_cannot_be_written_through_the_object(plane: ControlPlane, namespace: str) -> None:
    plane.apply({**deployment(), "status": {"replicas": 7}}, namespace)
    assert "status" not in stored(plane, namespace)


def test_waiting_for_ready_works(plane: ControlPlane, namespace: str) -> None:
    plane.apply(deployment(), namespace)
    patch_status(plane, namespace, {"conditions": [ready("True", "Serving")]})
    plane.kubectl("wait", "mdep/nano", "--for=condition=Ready", "--timeout=10s", "-n", namespace)


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("mdep.spec.stateCache.strategy", "How a running sequence writes checkpoints"),
        ("mdep.spec.memory.arena", "Exact size of the arena"),
        ("mdep", "A hybrid Mamba2/attention model served behind one"),
    ],
)
def test_kubectl_explains_a_field(plane: ControlPlane, field: str, says: str) -> None:
    explained = " ".join(plane.kubectl("explain", field).split())
    assert says in explained
