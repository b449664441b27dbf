"""Further conditions on a real API server with its controllers: transitions, and refusals without a pod.

Causes that lie in pods are in test_operator_reasons.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eventually import wait_until
from kube_life import READY, Life
from mamba_api import names
from mamba_kube.access import connected, load_access
from mamba_operator.objects.kinds import POD
from mamba_operator.objects.manifest import Key, metadata
from model_configs import unserved_config
from testcluster.control_plane import ControlPlane
from testcluster.pki import Identity

ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

pytestmark = pytest.mark.kube
CONFIGS = Path(__file__).parents[1] / "golden" / "configs"


async def refuse(_address: str, _token: str, _body: object) -> tuple[int, str]:
    """Answer like an engine whose running requests need the memory."""
    return 409, "12 requests hold 40 slots and 30 would be left"


@pytest.fixture
async def life(plane: ControlPlane, namespace: str) -> AsyncIterator[Life]:
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        yield Life(server, Key(namespace, "nano"), put=refuse)


async def serve(life: Life, **spec: Any) -> None:
    await life.make(**{"rollout": {"minReadyTime": "0s"}, **spec})
    await life.ready("engine")
    await life.ready("gateway")
    await life.becomes("Ready", "Serving")


@pytest.mark.parametrize(
    ("spec", "kind", "reason", "says"),
    [
        ({"memory": {}}, "Planned", "DeviceMemoryUnknown", "set spec.memory.deviceMemory"),
        ({"model": {"uri": "hf://org/model", "config": unserved_config()}},
         "Ready", "ModelNotServed", "cannot serve mixers with the activation gelu"),
    ],
)  # fmt: skip
async def test_what_is_not_known_or_not_there_yet_is_named(
    life: Life, spec: dict[str, Any], kind: str, reason: str, says: str
) -> None:
    await life.make(**spec)

    assert says in await life.becomes(kind, reason)


async def test_a_model_that_only_engines_know_has_a_row_that_says_as_much(
    plane: ControlPlane, life: Life
) -> None:
    await life.make(model={"uri": "hf://org/model"}, replicas=2)
    assert "spec.model.config" in await life.becomes("Planned", "ModelUnknown")
    assert "0 of 2 engines are ready" in await life.becomes("Available", "NoReadyReplica")
    await life.becomes("Progressing", "ScalingUp")

    header, row = plane.kubectl("get", "mdep", "-n", life.key.namespace).splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "STRATEGY", "REPLICAS", "MODEL", "AGE", "MESSAGE"]
    assert row.split()[:6] == ["nano", "False", "ScalingUp", "Auto", "0/2", "hf://org/model"]
    assert "0 of 2 engines are ready" in row


async def test_the_states_on_the_way_to_serving(life: Life) -> None:
    await life.make(replicas=2, scaling={"minReplicas": 2, "maxReplicas": 2}, rollout={"minReadyTime": "0s"})
    assert not await life.pass_is_idle()
    status, reason, message = await life.condition("Progressing")
    assert (status, reason) == ("True", "RollingOut")
    assert "desired number of engines: 2" in message

    first, second = await life.until(lambda: two(life))
    await life.set_pod_status(first, phase="Running")
    assert "1 of 2 engines load the model" in await life.becomes("Progressing", "LoadingModel")

    await life.set_pod_status(first, phase="Running", conditions=[READY])
    assert "1 of the 2 engines that spec.scaling.minReplicas requires" in await life.becomes(
        "Available", "BelowMinimum"
    )

    await life.set_pod_status(second, phase="Running", conditions=[READY])
    assert "no gateway is ready yet" in await life.becomes("Available", "GatewayNotReady")

    await life.ready("gateway")
    await life.becomes("Ready", "Serving")


async def two(life: Life) -> list[dict[str, Any]]:
    found = await life.pods("engine")
    return found if len(found) == 2 else []


async def test_an_endpoint_without_engines_is_ready_to_wake_one(life: Life) -> None:
    await life.make(replicas=0, scaling={"minReplicas": 0})
    await life.ready("gateway")

    assert "the first request starts one" in await life.becomes("Ready", "ScaledToZero")


async def test_an_engine_more_than_is_wanted_is_named_for_as_long_as_it_is_there(
    plane: ControlPlane, namespace: str, life: Life
) -> None:
    await life.make(replicas=2, rollout={"minReadyTime": "0s"})
    engines = await life.until(lambda: two(life))
    await life.ready("engine")
    await life.ready("gateway")
    await life.becomes("Ready", "Serving")
    with pods_stay(plane, namespace, metadata(engines[0])["name"]):
        await life.change(replicas=1)

        assert "2 engines run, more than the desired 1" in await life.becomes("Progressing", "ScalingDown")
        assert (await life.condition("Progressing"))[0] == "True"
        assert (await life.condition("UpToDate"))[:2] == ("False", "ScalingDown")
        assert (await life.condition("Ready"))[:2] == ("True", "Serving")

    await life.becomes("Progressing", "UpToDate")


@contextmanager
def pods_stay(plane: ControlPlane, namespace: str, pod: str) -> Iterator[None]:
    """Keep the namespace's pods from being deleted during the block, by a policy of the cluster."""
    group = "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}
    name, here = f"pods-stay-{namespace}", {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    policy = {
        "apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false"}]},
    }  # fmt: skip
    binding = {
        "apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
        "spec": {
            "policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": here},
        },
    }  # fmt: skip
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    plane.apply([policy, binding])
    try:
        plane.wait_for(
            lambda: plane.api.request("DELETE", path, {"dryRun": ["All"]})[0] >= 400,
            "the policy to be in force",
        )
        yield
    finally:
        for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
            plane.kubectl("delete", kind, name)


async def test_an_engine_that_finishes_its_requests_is_waited_for(life: Life) -> None:
    await serve(life)
    [pod] = await life.pods("engine")
    # That of no node fails when its controller looks next, at any moment; this one waits for a kubelet.
    await life.bind(pod, "without-a-kubelet")
    await life.kube.delete(POD, life.key.namespace, metadata(pod)["name"], metadata(pod)["uid"])
    assert "completes its requests" in await life.becomes("Progressing", "Draining")


async def test_a_strategy_that_does_not_fit_and_a_roll_out_that_is_paused_are_told_while_engines_serve(
    life: Life,
) -> None:
    await life.make(rollout={"minReadyTime": "0s"}, stateCache={"strategy": "NoBuffer"})
    [pod] = await life.until(lambda: life.pods("engine"))
    await life.set_pod_status(
        pod, phase="Running", podIP="10.9.8.7", podIPs=[{"ip": "10.9.8.7"}], conditions=[READY]
    )
    await life.ready("gateway")
    await life.becomes("Ready", "Serving")
    await life.change(stateCache={"strategy": "ExtraBufferLazy"})

    said = await life.becomes("Degraded", "StrategyRefused")
    assert "12 requests hold 40 slots" in said
    assert (await life.condition("Ready"))[:2] == ("True", "Serving")

    paused = {"rollout": {"pause": True}, "engine": {"image": "registry.test/engine:2"}}
    await life.change(stateCache={"strategy": "NoBuffer"}, **paused)
    assert "until you set spec.rollout.pause to false" in await life.becomes("Progressing", "RolloutPaused")
    assert (await life.condition("Ready"))[:2] == ("True", "Serving")


async def test_a_claim_that_cannot_grow_yet_is_used_as_it_is(life: Life) -> None:
    await life.make(model={"uri": "hf://org/model", "cache": {"size": "40Gi"}})
    await life.until(lambda: life.pods("loader"))
    await life.change(model={"cache": {"size": "80Gi"}})

    assert "delete it" in await life.becomes("Degraded", "CacheKept")


async def test_a_rule_that_the_role_lacks_is_named(plane: ControlPlane, namespace: str) -> None:
    certificate = plane.authority.issue(Identity(f"few-{namespace}", f"/CN=few-{namespace}", ("DNS:few",)))
    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [names.GROUP], "resources": ["*"], "verbs": ["*"]}]
    role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": "few"}, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": {"name": "few"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "few"},
        "subjects": [{"kind": "User", "name": f"few-{namespace}", "apiGroup": group}],
    }  # fmt: skip
    plane.apply([role, binding], namespace)
    review = {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": f"few-{namespace}", "resourceAttributes": {
            "namespace": namespace, "group": names.GROUP, "resource": "mambadeployments", "verb": "create",
        }},
    }  # fmt: skip
    wait_until(
        lambda: plane.api.request("POST", ACCESS_REVIEWS, review)[1]["status"]["allowed"],
        "the role, which the API server learns of by a watch,",
    )
    kubeconfig = plane.write_kubeconfig(f"few-{namespace}", certificate)
    async with connected(await load_access(str(kubeconfig))) as server:
        life = Life(server, Key(namespace, "nano"))
        await life.make()
        for _ in range(3):
            await life.pass_is_idle()

        status, reason, message = await life.condition("Degraded")
    assert (status, reason) == ("True", "Forbidden")
    assert "cannot list resource" in message or "cannot create resource" in message
