"""Guards of the operator's writes against a real API server; the fake one gives the same answers."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mamba_api.names import FIELD_MANAGER
from mamba_api.v1alpha1 import MambaDeployment
from mamba_kube.access import connected, load_access
from mamba_operator.apply import status_manifest
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import Conflict, NotFound, NotInSchema, ObjectRejected
from mamba_operator.objects.kinds import DEPLOYMENT, MAMBA_DEPLOYMENT
from mamba_operator.objects.manifest import Manifest
from mamba_operator.render.context import Context
from mamba_operator.render.engine import engine_deployment
from operator_objects import owner
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
READY = {"type": "Ready", "status": "True", "reason": "Serving", "lastTransitionTime": "2026-01-02T12:00:00Z"}
AUDITED = '{"status":{"conditions":[{"type":"Audited","status":"True","reason":"Seen","lastTransitionTime":"2026-01-02T12:00:00Z"}]}}'  # noqa: E501 - one patch


@asynccontextmanager
async def client(plane: ControlPlane) -> AsyncIterator[KubeClient]:
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        yield KubeClient(server)


def fresh(namespace: str) -> Manifest:
    return {**owner(), "metadata": {"name": "nano", "namespace": namespace}}


def config_map(namespace: str, **meta: str) -> Manifest:
    metadata = {"name": "nano-engine", "namespace": namespace, **meta}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}}


async def test_a_status_reaches_the_version_it_was_made_for_alone(
    plane: ControlPlane, namespace: str
) -> None:
    async with client(plane) as kube:
        before = await kube.apply(fresh(namespace))
        await kube.delete(MAMBA_DEPLOYMENT, namespace, "nano", before["metadata"]["uid"])
        with pytest.raises(NotFound):
            await kube.apply(status_manifest(before, {"conditions": [READY]}), subresource="status")

        now = await kube.apply(fresh(namespace))
        with pytest.raises(Conflict):
            await kube.apply(status_manifest(before, {"conditions": [READY]}), subresource="status")
        await kube.apply(status_manifest(now, {"conditions": [READY]}), subresource="status")


async def test_a_condition_of_another_manager_stays_when_ours_are_written(
    plane: ControlPlane, namespace: str
) -> None:
    async with client(plane) as kube:
        await kube.apply(fresh(namespace))
        plane.kubectl(
            "patch", "mdep/nano", "-n", namespace, "--subresource=status", "--type=merge", "-p", AUDITED
        )
        now = await kube.get(MAMBA_DEPLOYMENT, namespace, "nano")
        assert now is not None

        after = await kube.apply(status_manifest(now, {"conditions": [READY]}), subresource="status")

    assert {one["type"] for one in after["status"]["conditions"]} == {"Audited", "Ready"}


def fields_of_ours(found: Manifest) -> Any:
    """Return the fields of our manager, by how they are owned."""
    entries = [one for one in found["metadata"]["managedFields"] if one["manager"] == FIELD_MANAGER]
    return [(one["operation"], one["fieldsV1"]) for one in entries]


async def own(kube: KubeClient, namespace: str) -> None:
    """Write as passes do: once more where a controller of the cluster has written since the read."""
    while True:
        (seen,) = await kube.list(DEPLOYMENT, namespace, name="nano-engine")
        with contextlib.suppress(Conflict):
            return await kube.own(seen)


async def test_a_child_that_was_created_ends_like_one_that_was_applied_as_soon_as_it_is_changed(
    plane: ControlPlane, namespace: str
) -> None:
    of = MambaDeployment.model_validate(
        {"metadata": {"name": "nano", "namespace": namespace}, "spec": {"model": {"uri": "hf://org/model"}}}
    )
    deployment = engine_deployment(Context(of, 1, None))
    deployment["metadata"].pop("ownerReferences")
    noted = {**deployment["metadata"], "annotations": {"example.com/note": "old"}}
    ends = []
    async with client(plane) as kube:
        for make in (kube.make, kube.apply):
            made = await make({**deployment, "metadata": noted})
            plane.kubectl("annotate", "deployment/nano-engine", "-n", namespace, "example.com/theirs=kept")
            plane.kubectl("scale", "deployment/nano-engine", "-n", namespace, "--replicas=3")
            await own(kube, namespace)

            ends.append(await kube.apply(deployment))

            await kube.delete(DEPLOYMENT, namespace, "nano-engine", made["metadata"]["uid"])
            plane.wait_for(lambda: not plane.get("deployment", "nano-engine", namespace), "it to be gone")
    created, applied = ends
    assert fields_of_ours(created) == fields_of_ours(applied)
    assert [how for how, _ in fields_of_ours(created)] == ["Apply"]
    assert created["metadata"]["annotations"].get("example.com/note") is None, "it is applied no more"
    assert created["metadata"]["annotations"]["example.com/theirs"] == "kept"
    assert created["spec"] == applied["spec"]
    assert created["spec"]["replicas"] == 1


async def test_what_was_created_is_not_owned_again_in_another_version(
    plane: ControlPlane, namespace: str
) -> None:
    async with client(plane) as kube:
        made = await kube.make(config_map(namespace))
        plane.kubectl("annotate", "configmap/nano-engine", "-n", namespace, "example.com/theirs=kept")
        with pytest.raises(Conflict):
            await kube.own(made)
        with pytest.raises(Conflict):
            await kube.make(config_map(namespace))


async def test_an_update_that_names_a_uid_reaches_that_object_alone(
    plane: ControlPlane, namespace: str
) -> None:
    other = "11111111-2222-3333-4444-555555555555"
    async with client(plane) as kube:
        with pytest.raises(Conflict):
            await kube.apply(config_map(namespace, uid=other))
        made = await kube.apply(config_map(namespace))
        with pytest.raises(ObjectRejected):
            await kube.apply(config_map(namespace, uid=other))
        again = await kube.apply(config_map(namespace, uid=made["metadata"]["uid"]))

    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"spec": {"containers": [{"name": "engine", "volumeMount": []}]}}, ".volumeMount"),
        ({"spec": {"dnsPolice": "Default"}}, ".spec.template.spec.dnsPolice"),
        ({"spec": {"dnsConfig": "none"}}, ".spec.template.spec.dnsConfig"),
        ({"spec": {"aa": 1, "bb": 2}}, ".spec.template.spec."),
    ],
)
async def test_a_field_that_pods_do_not_have_is_told_apart_from_an_outage(
    template: Manifest, path: str, plane: ControlPlane, namespace: str
) -> None:
    of = MambaDeployment.model_validate(
        {
            "metadata": {"name": "nano", "namespace": namespace},
            "spec": {"model": {"uri": "hf://org/model"}, "podTemplate": template},
        }
    )
    deployment = engine_deployment(Context(of, 1, None))
    deployment["metadata"].pop("ownerReferences")
    async with client(plane) as kube:
        for write in (kube.make, kube.apply):
            with pytest.raises(NotInSchema) as caught:
                await write(deployment)
            assert path in caught.value.path
            assert caught.value.complaint
