"""Failure of each write of a deployment's life, on a real API server: the end is the same.

The writes are those of creating, changing, downloading, rolling back and removing. The passes are the
operator's own, in this process, so that a write can be chosen. Each fails in one of the ways that a write
can, eight of them in one life, far apart; with MAMBASERVE_PROPS=large in all ways, each in a life of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kube_life import Life
from mamba_api import names
from mamba_kube.access import connected, load_access
from mamba_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT, OWNED, SECRET
from mamba_operator.objects.manifest import Key
from model_loads import REPORT
from property_runs import BUDGET
from struck_server import Blow
from testcluster.control_plane import ControlPlane

pytestmark = [pytest.mark.kube, pytest.mark.slow]
SIDE_BY_SIDE = 8
TOGETHER = 8
"""Writes that fail in one life."""
LONGEST = 3000 if BUDGET == "large" else 300
"""Seconds of a test."""
Story = Callable[[Life], Awaitable[int]]
"""Returns the number of its first writes that another story has, too, and which fail there."""


async def made_and_changed(life: Life) -> int:
    """Create two engines and two gateways, budgets, keys; then change image, strategy and counts."""
    await life.make(replicas=2, gateway={"replicas": 2, "auth": {"secretRef": {"name": "keys"}}})
    await life.settle()
    await life.change(
        replicas=1,
        gateway={"replicas": 1},
        engine={"image": "registry.test/engine:2"},
        stateCache={"strategy": "NoBuffer"},
    )
    await life.settle()
    return 0


async def downloaded(life: Life) -> int:
    """Create a deployment whose model a loader fetches first; return the first write that may fail."""
    await life.make(model={"uri": "hf://org/model", "cache": {"size": "40Gi"}})
    loaders = await life.until(lambda: life.pods("loader"))
    ended = {"exitCode": 0, "message": REPORT.text(), "reason": "Completed"}
    container = {"name": "loader", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    await life.set_pod_status(
        loaders[0], phase="Succeeded", containerStatuses=[{**container, "state": {"terminated": ended}}]
    )
    await life.until(lambda: life.child(DEPLOYMENT, f"{life.key.name}-engine"))
    return 0


async def taken_back(life: Life) -> int:
    """Roll back a revision without progress; return the first write that may fail."""
    await life.make(rollout={"progressDeadline": "1s", "minReadyTime": "0s"})
    await life.until(lambda: life.pods("engine"))
    # But for two, since more or fewer of them are reports of how far it is.
    made = life.struck.writes - 2
    await life.ready("engine")
    await life.ready("gateway")
    await life.until(lambda: life.child(CONFIG_MAP, f"{life.key.name}-last-ready"))
    await life.change(engine={"image": "registry.test/engine:broken"})

    async def back() -> bool:
        status = (await life.owner()).get("status") or {}
        return bool((status.get("rollout") or {}).get("failedRevision"))

    await life.until(back)
    return made


STORIES: dict[str, Story] = {
    "made and changed": made_and_changed, "downloaded": downloaded, "taken back": taken_back,
}  # fmt: skip


async def many(work: list[Awaitable[None]]) -> None:
    """Run all of them, some at a time."""
    free = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(some: Awaitable[None]) -> None:
        async with free:
            await some

    async with asyncio.TaskGroup() as group:
        for some in work:
            group.create_task(one(some))


def strikes(writes: list[str], together: int) -> list[dict[str, Blow]]:
    """Return what fails in each life, so that each of these writes fails; `together`: most in one life."""
    ways = list(Blow)
    if BUDGET == "large":
        return [{write: blow} for write in writes for blow in ways]
    lives = -(-len(writes) // together)
    return [
        {write: ways[(life + turn) % len(ways)] for turn, write in enumerate(writes[life::lives])}
        for life in range(lives)
    ]


def is_in_each_life(write: str) -> bool:
    """Return whether a write does not depend on what the cluster's controllers have done before it."""
    return not write.startswith("PATCH") or write.endswith(" 0")


def left_over(plane: ControlPlane, namespace: str) -> list[str]:
    kinds = ",".join(kind.plural for kind in (SECRET, *OWNED))
    ours = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
    return [f"{one['kind']} {one['metadata']['name']}" for one in plane.list(kinds, namespace, ours)]


@pytest.mark.timeout(LONGEST)
@pytest.mark.parametrize("story", STORIES.values(), ids=list(STORIES))
async def test_whichever_write_fails_and_however_the_end_is_the_same(
    plane: ControlPlane, namespace: str, story: Story
) -> None:
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        undisturbed = Life(server, Key(namespace, "calm"))
        known = await story(undisturbed)
        expected = await undisturbed.shape()
        assert len(expected) > 11
        ends: dict[str, list[str]] = {}
        failed: set[str] = set()

        async def struck(number: int, blows: dict[str, Blow]) -> None:
            life = Life(server, Key(namespace, f"x{number}"), blows)
            await story(life)
            failed.update(life.struck.struck)
            where = " and ".join(f"{blows[write]} at {write}" for write in life.struck.struck)
            ends[where] = await life.shape()
            await life.remove()

        writes = undisturbed.struck.names[0 if BUDGET == "large" else known :]
        await many([struck(*each) for each in enumerate(strikes(writes, TOGETHER))])
        await undisturbed.remove()

    assert {write for write in writes if is_in_each_life(write)} <= failed
    for where, end in ends.items():
        assert (where, sorted({*end} - {*expected}), sorted({*expected} - {*end})) == (where, [], [])
    plane.wait_for(lambda: not left_over(plane, namespace), "all children to be collected")


@pytest.mark.timeout(LONGEST)
async def test_an_object_that_goes_while_its_children_are_made_leaves_none_however_that_write_ends(
    plane: ControlPlane, namespace: str
) -> None:
    spec = {"model": {"uri": "hf://org/model", "cache": {"size": "40Gi"}}}
    went = []
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        undisturbed = Life(server, Key(namespace, "calm"))
        await undisturbed.make(**spec)
        await undisturbed.pass_is_idle()
        writes = undisturbed.struck.names[:10]

        async def struck(number: int, blows: dict[str, Blow]) -> None:
            life = Life(server, Key(namespace, f"x{number}"), blows, removed=True)
            await life.make(**spec)
            await life.settle()
            went.append(life.struck.struck)

        await many([struck(*each) for each in enumerate(strikes(writes, 1))])
        await undisturbed.remove()

    assert [] not in went
    plane.wait_for(lambda: not left_over(plane, namespace), "all children to be collected")
