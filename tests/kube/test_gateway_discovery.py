"""The gateway follows the EndpointSlices of a Service through changes, restarts and expired versions."""

import asyncio
import contextlib
import re
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_gateway.endpoints.discovery import watch_engines
from mamba_gateway.endpoints.pool import Target
from mamba_gateway.endpoints.watch import Watch, WatchExpired
from mamba_gateway.operator_note import Waker
from mamba_kube.access import connected, load_access
from mamba_kube.api_server import MERGE_PATCH, ApiServer
from mamba_kube.errors import ApiError
from mamba_operator.autoscale.scaling_status import woken_at
from mamba_operator.render.access import gateway_role, wake_request
from mamba_operator.render.context import Context
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube


def slice_of(service: str, name: str, *pods: tuple[str, str, dict[str, bool]]) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "name": pod}}
            for pod, address, conditions in pods
        ],
    }


WELL = {"ready": True, "serving": True, "terminating": False}
TLS_GOODBYE = 0.25
"""Closing a TLS connection takes a few turns of the loop after the client is closed."""
GOING = {"ready": False, "serving": True, "terminating": True}


class Seen:
    """The sink: what the watch said last, and how often it spoke."""

    def __init__(self) -> None:
        self.names: dict[str, bool] = {}
        self.calls = 0

    def __call__(self, targets: Iterable[Target]) -> None:
        self.names = {target.name: target.draining for target in targets}
        self.calls += 1

    async def until(self, names: dict[str, bool], seconds: float = 15.0) -> None:
        """Return when exactly these pods are known, each with whether it drains."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.names != names or not self.calls:  # noqa: ASYNC110 - polled on purpose
                    await asyncio.sleep(0.02)
        assert self.names == names


@contextlib.asynccontextmanager
async def api_server(file: Any) -> AsyncIterator[ApiServer]:
    async with connected(await load_access(str(file))) as server:
        yield server
    await asyncio.sleep(TLS_GOODBYE)


@contextlib.asynccontextmanager
async def watching(file: Any, namespace: str) -> AsyncIterator[Seen]:
    seen = Seen()
    async with api_server(file) as server:
        task = asyncio.create_task(watch_engines(server, namespace, "x", seen, Random(0)))
        try:
            yield seen
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def put(plane: ControlPlane, namespace: str, *slices: dict[str, Any]) -> None:
    for one in slices:
        await asyncio.to_thread(plane.apply, one, namespace)


async def test_slices_are_followed_as_they_come_change_and_go(control_plane, namespace) -> None:
    async with watching(control_plane.kubeconfig, namespace) as seen:
        await seen.until({})
        await put(control_plane, namespace, slice_of("x-engine", "s1", ("a", "10.1.0.1", WELL)))
        await seen.until({"a": False})
        other = slice_of("y-engine", "other", ("z", "10.1.0.9", WELL))
        await put(control_plane, namespace, other, slice_of("x-engine", "s2", ("b", "10.1.0.2", WELL)))
        await seen.until({"a": False, "b": False})
        await put(control_plane, namespace, slice_of("x-engine", "s1", ("a", "10.1.0.1", GOING)))
        await seen.until({"a": True, "b": False})
        calls = seen.calls
        await asyncio.sleep(1.5)
        assert seen.calls == calls, "without a change there is nothing to say: it lists again and again"
        await asyncio.to_thread(control_plane.kubectl, "delete", "endpointslice", "s1", "-n", namespace)
        await seen.until({"b": False})


@pytest.mark.slow
async def test_losing_the_api_server_loses_no_endpoint_and_changes_meanwhile_arrive(
    control_plane, namespace
) -> None:
    await put(control_plane, namespace, slice_of("x-engine", "s1", ("a", "10.1.0.1", WELL)))
    async with watching(control_plane.kubeconfig, namespace) as seen:
        await seen.until({"a": False})
        with control_plane.api_server_down():
            await asyncio.sleep(1.0)
            assert seen.names == {"a": False}
        await put(control_plane, namespace, slice_of("x-engine", "s2", ("b", "10.1.0.2", WELL)))
        await seen.until({"a": False, "b": False}, seconds=40)


async def test_an_expired_version_is_stale_and_leads_to_a_new_list(plane, namespace) -> None:
    # The API server keeps the versions since its first list of a kind, which may be all of EndpointSlices.
    model = {"metadata": {"name": "nano", "labels": {"of": "this"}}, "spec": {"model": {"uri": "hf://a/b"}}}
    kind = {"apiVersion": f"{names.GROUP}/{names.VERSION}", "kind": names.KIND}
    await asyncio.to_thread(plane.apply, {**kind, **model}, namespace)
    found: list[list[str]] = []
    path = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{names.PLURAL}"
    async with api_server(plane.kubeconfig) as server:
        objects_of = Watch(server, path, "of=this", lambda objects: found.append(list(objects)))
        with pytest.raises(WatchExpired):
            await objects_of.watch("1")
        version = await objects_of.list()
    assert int(version) > 1
    assert found == [["nano"]]


async def test_a_held_request_writes_the_time_and_the_gateway_may_write_nothing_else(
    control_plane, namespace
) -> None:
    from testcluster.pki import Identity

    user = f"gateway-{namespace}"
    certificate = control_plane.authority.issue(Identity(user, f"/CN={user}", (f"DNS:{user}",)))
    file = control_plane.write_kubeconfig(user, certificate)
    of = MambaDeployment.model_validate(
        {"metadata": {"name": "nano", "namespace": namespace}, "spec": {"model": {"uri": "hf://a/b"}}}
    )
    context = Context(of, 1, None)
    for child in (wake_request(context), gateway_role(context)):
        child["metadata"].pop("ownerReferences")
        await asyncio.to_thread(control_plane.apply, child, namespace)
    bind = ("create", "rolebinding", "gateway", "--role=nano", f"--user={user}", "-n", namespace)
    await asyncio.to_thread(control_plane.kubectl, *bind)
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def asked() -> datetime | None:
        return woken_at(control_plane.get("configmap", "nano-wake", namespace))

    async with api_server(file) as server:
        waker = Waker(server, namespace, "nano", lambda: at, every=0.05)
        task = asyncio.create_task(waker.work())
        await asyncio.sleep(0.3)
        assert await asyncio.to_thread(asked) is None
        waker.request()
        async with asyncio.timeout(15):
            while await asyncio.to_thread(asked) is None:  # noqa: ASYNC110 - in another process
                await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for path in (
            f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/nano",
            f"/api/v1/namespaces/{namespace}/configmaps/nano-engine",
            f"/apis/apps/v1/namespaces/{namespace}/deployments/nano-engine",
        ):
            with pytest.raises(ApiError) as refused:
                await server.request("PATCH", path, body={"data": {}}, content_type=MERGE_PATCH)
            assert refused.value.status == 403
    assert await asyncio.to_thread(asked) == at


async def test_a_namespace_that_forbids_it_is_tried_again_and_not_fatal(control_plane, namespace) -> None:
    from testcluster.pki import Identity

    nobody = control_plane.authority.issue(Identity("nobody", "/CN=nobody", ("DNS:nobody",)))
    file = control_plane.write_kubeconfig("nobody", nobody)
    async with watching(file, namespace) as seen:
        await asyncio.sleep(1.5)
        assert seen.calls == 0
        role = (
            "create",
            "role",
            "seer",
            "--verb=get,list,watch",
            "--resource=endpointslices.discovery.k8s.io",
        )
        await asyncio.to_thread(control_plane.kubectl, *role, "-n", namespace)
        bind = ("create", "rolebinding", "seer", "--role=seer", "--user=nobody", "-n", namespace)
        await asyncio.to_thread(control_plane.kubectl, *bind)
        await seen.until({})


async def test_the_command_watches_the_engines_of_its_deployment(control_plane, namespace) -> None:
    await put(control_plane, namespace, slice_of("nano-engine", "s1", ("nano-engine-0", "10.1.0.1", WELL)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mamba_cli", "gateway", "--port", "0", "--deployment", "nano"),
        *("--namespace", namespace, "--kubeconfig", str(control_plane.kubeconfig)),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            url = ""
            while not url and (line := (await process.stderr.readline()).decode()):
                if found := re.search(r"ready at (http://\S+)", line):
                    url = found[1]
            series = '{endpoint="nano-engine-0"}'
            while series not in await asyncio.to_thread(read, f"{url}/metrics"):  # noqa: ASYNC110 - other process
                await asyncio.sleep(0.05)
        assert '"known":1' in await asyncio.to_thread(read, f"{url}/readyz")
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read().decode())
