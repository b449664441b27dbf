"""Nodes are read whole and kept small, and passes share what was read a moment ago."""

import asyncio

import pytest

from fake_cluster import FakeCluster
from mamba_operator.objects.errors import Forbidden, Unreachable
from mamba_operator.objects.manifest import Manifest
from mamba_operator.observation.node_reader import NODES_PER_PAGE, SHARED_SECONDS, VALID_SECONDS, NodeReader

MEMORY = "nvidia.com/gpu.memory"


def node(name: str, **spec: object) -> Manifest:
    images = [{"names": [f"registry/{name}:{n}"]} for n in range(50)]
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {MEMORY: "81559"}},
        "spec": spec,
        "status": {"images": images},
    }


class Counting(FakeCluster):
    """Counts the lists of nodes."""

    lists = 0

    def _enter(self, verb: str, kind: str, name: str) -> None:
        self.lists += (verb, kind) == ("list", "Node")
        super()._enter(verb, kind, name)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_of_a_node_its_labels_its_name_and_the_taints_that_keep_off_are_kept() -> None:
    kept = {"key": "team", "value": "vision", "effect": "NoExecute"}
    passing = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    preferred = {"key": "old", "effect": "PreferNoSchedule"}

    [one] = await NodeReader(FakeCluster(node("a", taints=[kept, passing, preferred]))).read()

    assert one.labels == {MEMORY: "81559", "metadata.name": "a"}
    assert one.taints == (kept,)


async def test_passes_at_one_time_share_one_list_and_later_ones_read_anew() -> None:
    cluster, clock = Counting(node("a")), Clock()
    reader = NodeReader(cluster, clock=clock)

    await asyncio.gather(*(reader.read() for _ in range(8)))
    clock.now = SHARED_SECONDS
    await reader.read()
    assert cluster.lists == 1

    cluster.put(node("b"))
    clock.now = SHARED_SECONDS + 1
    assert len(await reader.read()) == 2
    assert cluster.lists == 2


async def test_what_was_never_read_or_long_ago_is_old() -> None:
    clock = Clock()
    reader = NodeReader(FakeCluster(node("a")), clock=clock)
    assert reader.is_old

    await reader.read()
    clock.now = VALID_SECONDS
    assert not reader.is_old
    clock.now = VALID_SECONDS + 1
    assert reader.is_old


async def test_a_failure_is_not_shared() -> None:
    cluster = Counting(node("a"))
    cluster.fault = lambda *_: Unreachable("away")
    reader = NodeReader(cluster, clock=Clock())
    with pytest.raises(Unreachable):
        await reader.read()
    assert reader.is_old

    cluster.fault = lambda *_: None
    assert len(await reader.read()) == 1


async def test_nodes_that_may_not_be_read_are_none_and_not_asked_for_by_each_pass() -> None:
    cluster = Counting(node("a"))
    cluster.fault = lambda *_: Forbidden("no", status=403)
    reader = NodeReader(cluster, clock=Clock())

    assert [await reader.read() for _ in range(3)] == [(), (), ()]
    assert cluster.lists == 1


async def test_nodes_come_in_small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    cluster = FakeCluster(node("a"))
    whole = cluster.pages
    monkeypatch.setattr(
        cluster, "pages", lambda *kind, **named: (asked.append(named), whole(*kind, **named))[1]
    )

    await NodeReader(cluster).read()

    assert [named["page"] for named in asked] == [NODES_PER_PAGE]
    assert not asked[0].get("metadata_only"), "taints are no metadata"
