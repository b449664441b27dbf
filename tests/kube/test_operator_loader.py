"""A loader that the cluster hinders, on a real API server with its Job controller."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kube_life import LONG_AGO, Life
from mamba_api import names
from mamba_kube.access import connected, load_access
from mamba_operator.objects.kinds import JOB
from mamba_operator.objects.manifest import Key, Manifest, metadata
from model_loads import REPORT
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
CACHED = {"uri": "hf://org/model", "cache": {"size": "40Gi"}}


@pytest.fixture
async def life(plane: ControlPlane, namespace: str) -> AsyncIterator[Life]:
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        yield Life(server, Key(namespace, "nano"))


async def jobs(life: Life) -> list[Manifest]:
    return await life.kube.list(JOB, life.key.namespace, selector=f"{names.LABEL_INSTANCE}={life.key.name}")


async def test_a_loader_that_may_make_no_pod_is_told_after_a_minute(plane: ControlPlane, life: Life) -> None:
    plane.kubectl("create", "quota", "none", "--hard=pods=0", "-n", life.key.namespace)
    await life.make(model=CACHED)
    await life.until(lambda: jobs(life))
    await life.becomes("Progressing", "DownloadingModel")

    life.set_clock(lambda: datetime.now(UTC) + timedelta(minutes=2))

    async def told() -> bool:
        _, reason, message = await life.condition("Degraded")
        return reason == "PodsRefused" and "kubectl describe job nano-load-" in message

    await life.until(told)


def beside_a_sidecar(code: int, message: str) -> dict[str, Any]:
    """Return the status of a pod whose loader has ended and whose other container never does."""
    ended = {"exitCode": code, "message": message, "reason": "Error" if code else "Completed"}
    common = {"image": "i", "imageID": "", "restartCount": 0}
    return {
        "phase": "Running",
        "containerStatuses": [
            {**common, "name": "istio-proxy", "ready": True, "state": {"running": {"startedAt": LONG_AGO}}},
            {**common, "name": "loader", "ready": False, "state": {"terminated": ended}},
        ],
    }


async def test_a_download_counts_when_the_loader_has_ended_though_a_sidecar_keeps_its_pod(life: Life) -> None:
    await life.make(model=CACHED)
    [pod] = await life.until(lambda: life.pods("loader"))

    await life.set_pod_status(pod, **beside_a_sidecar(0, REPORT.text()))

    await life.until(lambda: life.pods("engine"))
    await life.becomes("Planned", "PlanComputed")
    assert await jobs(life) == [], "it would never end, and would keep its volume"


async def test_a_download_that_failed_beside_a_sidecar_is_told(life: Life) -> None:
    await life.make(model=CACHED)
    [pod] = await life.until(lambda: life.pods("loader"))

    await life.set_pod_status(pod, **beside_a_sidecar(1, "the Hub is away"))

    assert "the Hub is away" in await life.becomes("Degraded", "DownloadFailed")
    [job] = await jobs(life)
    await life.kube.delete(JOB, life.key.namespace, metadata(job)["name"], metadata(job)["uid"])

    async def another() -> bool:
        return [metadata(one)["uid"] for one in await life.pods("loader")] not in ([], [metadata(pod)["uid"]])

    await life.until(another)
