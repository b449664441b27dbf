"""On a real API server and its controllers: roll-outs without room, within a quota, and on a broken node."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kube_life import READY, Life
from mamba_kube.access import connected, load_access
from mamba_kube.errors import ApiError
from mamba_operator.autoscale.decide import ScalingDecision
from mamba_operator.autoscale.demand import Demand
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.scaling_record import LatestDecision
from mamba_operator.objects.manifest import Key, Manifest, metadata
from mamba_operator.objects.pod_trouble import says_ready
from mamba_operator.render.context import DefaultImages
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube
OLD, NEW = "registry.test/engine:old", "registry.test/engine:new"
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
ROLLOUT = {"minReadyTime": "0s", "progressDeadline": "120s", "inPlaceAfter": "6s"}


@pytest.fixture
async def life(plane: ControlPlane, namespace: str) -> AsyncIterator[Life]:
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        yield Life(server, Key(namespace, "nano"))


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def image_of(pod: Manifest) -> str:
    return str(pod["spec"]["containers"][0]["image"])


async def serve(life: Life, **spec: Any) -> None:
    await life.make(rollout=ROLLOUT, engine={"image": OLD}, **spec)
    await life.ready("engine")
    await life.ready("gateway")
    await life.becomes("Ready", "Serving")


async def play(life: Life, gpus: int, *, broken: Callable[[Manifest], bool] = lambda _: False) -> None:
    """Play the scheduler and the kubelets of a cluster with `gpus` GPUs; engines that are `broken` crash."""
    pods = await life.pods("engine")
    taken = sum(says_ready(pod["status"]) or pod["status"].get("phase") == "Running" for pod in pods)
    for pod in sorted(pods, key=lambda one: str(metadata(one)["creationTimestamp"])):
        if pod["status"].get("phase") == "Running" or metadata(pod).get("deletionTimestamp"):
            continue
        waits = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_GPU,
            "lastTransitionTime": metadata(pod)["creationTimestamp"],
        }  # fmt: skip
        crashed = {
            "name": "engine", "image": "i", "imageID": "", "ready": False, "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "CUDA error: ECC"}},
        }  # fmt: skip
        status: dict[str, Any] = {"phase": "Pending", "conditions": [waits]}
        if taken < gpus:
            taken += 1
            ready = {**READY, "lastTransitionTime": now()}
            status = {"phase": "Running", "conditions": [ready]}
            if broken(pod):
                ready["status"] = "False"
                status["containerStatuses"] = [crashed]
        try:
            await life.set_pod_status(pod, **status)
        except ApiError as error:
            if error.status != 404:
                raise


async def until(life: Life, gpus: int, done: Callable[[list[Manifest]], bool], **more: Any) -> list[int]:
    """Return how many engines served at each look, until `done` accepts the pods."""
    served = []
    for _ in range(240):
        await life.pass_is_idle()
        await play(life, gpus, **more)
        pods = await life.pods("engine")
        served.append(sum(says_ready(pod["status"]) for pod in pods))
        if done(pods):
            return served
        await asyncio.sleep(0.5)
    raise AssertionError(
        f"{(await life.owner()).get('status')} {[(image_of(pod), pod['status']) for pod in pods]}"
    )


def all_new(count: int) -> Callable[[list[Manifest]], bool]:
    return lambda pods: sum(says_ready(pod["status"]) and image_of(pod) == NEW for pod in pods) == count


@pytest.mark.slow
async def test_one_engine_more_than_there_are_gpus_keeps_no_change_from_the_others(life: Life) -> None:
    await serve(life, replicas=3)
    await life.change(replicas=4, engine={"image": NEW})

    assert min(await until(life, 3, all_new(3))) >= 2

    await life.becomes("Degraded", "Unschedulable")
    assert (await life.condition("Stalled"))[0] == "False"


async def test_a_quota_of_the_gpus_that_there_are_lets_a_change_through(
    plane: ControlPlane, life: Life
) -> None:
    quota = {"requests.nvidia.com/gpu": "1"}
    plane.apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpu"}, "spec": {"hard": quota}},
        life.key.namespace,
    )
    await serve(life)
    await life.change(engine={"image": NEW})

    await until(life, 8, all_new(1))

    await life.becomes("UpToDate", "UpToDate")


@pytest.mark.slow
async def test_one_engine_that_crashes_beside_two_that_serve_takes_nothing_back(life: Life) -> None:
    await serve(life, replicas=3)
    later = timedelta()
    life.set_clock(lambda: datetime.now(UTC) + later)
    await life.change(engine={"image": NEW})
    names: list[str] = []

    def third(pod: Manifest) -> bool:
        """Tell whether the pod is the last of the new ones."""
        name = str(metadata(pod)["name"])
        if image_of(pod) == NEW and name not in names:
            names.append(name)
        return name in names[2:]

    def a_minute_later(pods: list[Manifest]) -> bool:
        nonlocal later
        if len(names) > 2:
            later += timedelta(seconds=3)
        return later.total_seconds() > 75

    await until(life, 4, a_minute_later, broken=third)

    assert sum(says_ready(pod["status"]) and image_of(pod) == NEW for pod in await life.pods("engine")) == 2
    await life.becomes("Degraded", "EngineCrashing")


async def test_engines_of_an_upgraded_operator_wait_for_their_turn_and_serve(life: Life) -> None:
    await life.make(rollout=ROLLOUT)
    await life.ready("engine")
    await life.ready("gateway")
    await life.becomes("UpToDate", "UpToDate")
    [engine] = await life.pods("engine")
    life.images, life.most_rollouts = DefaultImages(NEW, "registry.test/gateway:new"), 0
    life.restart()

    await life.becomes("Progressing", "RolloutQueued")
    assert [metadata(pod)["name"] for pod in await life.pods("engine")] == [metadata(engine)["name"]]

    life.most_rollouts = 1
    life.restart()
    await life.becomes("Progressing", "RollingOut")


async def test_pods_that_do_not_answer_the_operator_are_told_and_ready_stays(life: Life) -> None:
    await serve(life)
    blind = ScalingDecision(
        target=1, reason="", binding="data", blind="gateway-1 is silent", demand=Demand(),
        memory=AutoscalerMemory(),
    )  # fmt: skip
    life.latest_decision = LatestDecision(1, 1, blind, "")

    assert "gateway-1" in await life.becomes("Degraded", "MetricsMissing")
    assert (await life.condition("Ready"))[0] == "True"
