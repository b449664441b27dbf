"""A pass over what is as wanted asks the API server for nothing; whatever is not, it reads and mends."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from fake_cluster import FakeCluster, Watched
from mamba_operator.children import child_comparison
from mamba_operator.children.child_comparison import drift
from mamba_operator.objects.errors import ClusterError, Conflict, NameTaken
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.reconcile import PassSettings, Reconciler, Runtime
from operator_objects import NOW, TOKEN, creating_pod, fitting_owner

KEY = Key("models", "nano")
NODE = {"kind": "Node", "metadata": {"name": "a", "labels": {"nvidia.com/gpu.memory": "81559"}}}


class Counting(FakeCluster):
    """Counts every request."""

    def __init__(self, *objects: Manifest) -> None:
        self.requests: list[str] = []
        super().__init__(*objects)

    def _enter(self, verb: str, kind: str, name: str) -> None:
        self.requests.append(f"{verb} {kind}/{name}")
        super()._enter(verb, kind, name)


def reconciler(cluster: FakeCluster, indices: Watched) -> Reconciler:
    return Reconciler(
        cluster, OperatorMetrics(), PassSettings("test", resync=lambda: 300.0), indices=indices,
        runtime=Runtime(now=lambda: NOW, new_token=lambda: TOKEN),
    )  # fmt: skip


async def at_rest(of: Manifest, *others: Manifest) -> tuple[Counting, Watched, Reconciler]:
    cluster = Counting(of, *others)
    indices = Watched(cluster)
    again = reconciler(cluster, indices)
    for _ in range(3):
        await again(KEY)
    cluster.requests.clear()
    return cluster, indices, again


@pytest.mark.parametrize(
    ("spec", "others"),
    [
        ({}, []),
        ({"memory": {}}, [NODE]),
        ({"scaling": {"minReplicas": 0}}, []),
        ({"mode": "Plan"}, []),
        ({"memory": {"deviceMemory": "1Gi"}}, []),
    ],
    ids=["active", "planned by nodes", "asleep", "plan mode", "it does not fit"],
)
async def test_a_pass_over_an_unchanged_object_costs_no_request(
    spec: dict[str, Any], others: list[Manifest]
) -> None:
    cluster, _, again = await at_rest(fitting_owner(**spec), *others)

    for _ in range(3):
        assert await again(KEY) == 300.0

    assert cluster.requests == []


def delete_service(cluster: FakeCluster) -> None:
    del cluster.objects["Service", "models", "nano"]


def edit_engine(cluster: FakeCluster) -> None:
    engine = copy.deepcopy(cluster.objects["Deployment", "models", "nano-engine"])
    engine["spec"]["replicas"] = 9
    cluster.put(engine)


def edit_spec(cluster: FakeCluster) -> None:
    old = cluster.objects["MambaDeployment", "models", "nano"]
    cluster.put({**fitting_owner(gateway={"replicas": 2}), "status": old["status"]})


def edit_without_status(cluster: FakeCluster) -> None:
    cluster.put(fitting_owner(gateway={"replicas": 2}))


def lose_status(cluster: FakeCluster) -> None:
    cluster.put(fitting_owner())


def add_pod(cluster: FakeCluster) -> None:
    cluster.put(creating_pod())


@pytest.mark.parametrize("disturb", [delete_service, edit_engine, edit_spec, lose_status, add_pod])
async def test_whatever_is_not_as_wanted_is_read_and_mended(disturb: Callable[[FakeCluster], None]) -> None:
    cluster, _, again = await at_rest(fitting_owner())
    disturb(cluster)

    await again(KEY)

    assert [one for one in cluster.requests if one.startswith(("apply", "make", "create"))]


async def test_what_is_written_is_decided_on_fresh_reads_however_old_the_watches_are() -> None:
    cluster, indices, again = await at_rest(fitting_owner())
    delete_service(cluster)
    indices.stand_still()
    await again(KEY)
    cluster.calls.clear()

    await again(KEY)

    assert cluster.find("Service", "nano") is not None
    assert cluster.calls == [], "the watches still lack what was mended, and nothing is written for it"


async def test_what_stale_watches_do_not_show_is_mended_when_they_are_doubted() -> None:
    cluster, indices, again = await at_rest(fitting_owner())
    indices.stand_still()
    delete_service(cluster)
    await again(KEY)
    assert cluster.find("Service", "nano") is None

    again.mark_stale(KEY)
    await again(KEY)

    assert cluster.find("Service", "nano") is not None


async def test_only_a_child_that_changed_is_compared_field_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _, again = await at_rest(fitting_owner())
    compared: list[str] = []

    def counted(desired: Manifest, observed: Manifest) -> list[str]:
        compared.append(desired["metadata"]["name"])
        return drift(desired, observed)

    monkeypatch.setattr(child_comparison, "drift", counted)
    await again(KEY)
    assert compared == []

    engine = cluster.objects["Deployment", "models", "nano-engine"]
    cluster.put({**engine, "status": {"observedGeneration": 1, "replicas": 1}})
    await again(KEY)
    assert compared == ["nano-engine"]


async def test_until_the_watches_have_listed_everything_the_cluster_is_read() -> None:
    cluster, indices, again = await at_rest(fitting_owner())
    indices.complete = False

    await again(KEY)

    assert [one for one in cluster.requests if one.startswith("list")]


async def test_an_object_that_is_gone_is_asked_for_once() -> None:
    cluster, _, again = await at_rest(fitting_owner())
    del cluster.objects["MambaDeployment", "models", "nano"]

    assert await again(KEY) is None
    assert cluster.requests == ["get MambaDeployment/nano"]


@pytest.mark.parametrize("number", range(0, 40, 3))
async def test_a_fault_at_any_call_leaves_no_difference_that_a_quiet_pass_would_miss(number: int) -> None:
    calm, _, _ = await at_rest(fitting_owner())
    cluster = Counting(fitting_owner())
    left = [number]

    def strike(*_: str) -> ClusterError | None:
        left[0] -= 1
        return ClusterError("away", status=503) if left[0] == -1 else None

    cluster.fault = strike
    again = reconciler(cluster, Watched(cluster))
    for _ in range(4):
        try:
            await again(KEY)
        except ClusterError:
            continue

    def shape(of: FakeCluster) -> dict[tuple[str, str, str], Any]:
        return {
            key: {name: value for name, value in one.items() if name not in ("metadata", "status")}
            for key, one in of.objects.items()
            if key[0] not in ("Event", "Secret")
        }

    assert shape(cluster) == shape(calm)
    cluster.requests.clear()
    await again(KEY)
    assert cluster.requests == []


async def test_a_new_object_costs_no_read_and_one_write_for_each_child() -> None:
    cluster = Counting(fitting_owner())
    again = reconciler(cluster, Watched(cluster))

    await again(KEY)

    assert [one for one in cluster.requests if one.startswith(("list", "get"))] == []
    made = [one.partition(" ")[2] for one in cluster.requests if one.startswith("make ")]
    assert "Deployment/nano-engine" in made
    assert len(made) == len(set(made))


async def test_a_new_object_that_went_since_it_was_seen_leaves_children_for_the_cluster_to_collect() -> None:
    cluster = Counting(fitting_owner())
    indices = Watched(cluster)
    indices.stand_still()
    del cluster.objects["MambaDeployment", "models", "nano"]
    again = reconciler(cluster, indices)

    await again(KEY)

    [owner] = (cluster.find("Service", "nano") or {})["metadata"]["ownerReferences"]
    assert owner["uid"] == fitting_owner()["metadata"]["uid"]
    indices.complete = False
    assert await again(KEY) is None


async def test_a_new_object_that_was_edited_since_it_was_seen_gets_what_it_asks_for_now() -> None:
    cluster = Counting(fitting_owner())
    indices = Watched(cluster)
    indices.stand_still()
    edit_without_status(cluster)
    again = reconciler(cluster, indices)

    with pytest.raises(Conflict):
        await again(KEY)
    await again(KEY)

    assert (cluster.find("Deployment", "nano") or {})["spec"]["replicas"] == 2


async def test_a_new_object_with_a_strangers_child_is_told_without_a_list_of_children() -> None:
    theirs = {"kind": "Service", "metadata": {"name": "nano", "namespace": "models", "uid": "theirs"}}
    cluster = Counting(fitting_owner(), theirs)

    with pytest.raises(NameTaken):
        await reconciler(cluster, Watched(cluster))(KEY)

    assert (cluster.find("Service", "nano") or {})["metadata"]["uid"] == "theirs"


async def test_children_that_were_just_made_and_that_no_watch_shows_yet_are_not_asked_for() -> None:
    cluster = Counting(fitting_owner())
    indices = Watched(cluster)
    indices.stand_still()
    again = reconciler(cluster, indices)
    await again(KEY)
    cluster.requests.clear()

    await again(KEY)

    assert cluster.requests == []


async def test_a_child_that_went_before_a_watch_showed_it_is_made_again() -> None:
    cluster = Counting(fitting_owner())
    indices = Watched(cluster)
    indices.stand_still()
    again = reconciler(cluster, indices)
    await again(KEY)
    service = cluster.objects.pop(("Service", "models", "nano"))

    indices.confirm(KEY, service)
    await again(KEY)

    assert cluster.find("Service", "nano") is not None


async def test_what_came_out_as_it_was_sent_is_not_compared_again_when_a_watch_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Counting(fitting_owner())
    again = reconciler(cluster, Watched(cluster))
    await again(KEY)
    compared: list[str] = []
    monkeypatch.setattr(
        child_comparison, "drift", lambda wanted, seen: compared.append(wanted["kind"]) or drift(wanted, seen)
    )

    await again(KEY)

    assert compared == []


def answer(cluster: FakeCluster, ready: int = 1) -> None:
    for name in ("nano-engine", "nano"):
        child = copy.deepcopy(cluster.objects["Deployment", "models", name])
        child["status"] = {
            "observedGeneration": child["metadata"]["generation"], "replicas": 1, "updatedReplicas": 1,
            "readyReplicas": ready,
        }  # fmt: skip
        cluster.put(child)


def ready(cluster: FakeCluster) -> str:
    status = (cluster.find("MambaDeployment", "nano") or {})["status"]
    return str(next(one["status"] for one in status["conditions"] if one["type"] == "Ready"))


async def test_a_status_alone_is_written_without_a_read() -> None:
    cluster, _, again = await at_rest(fitting_owner())
    answer(cluster)
    await again(KEY)
    assert ready(cluster) == "True"
    answer(cluster, ready=0)
    cluster.requests.clear()

    await again(KEY)

    assert ready(cluster) == "False"
    assert [one for one in cluster.requests if one.startswith(("list", "get"))] == []


async def test_upon_one_version_of_the_object_a_status_is_written_once() -> None:
    cluster, indices, again = await at_rest(fitting_owner())
    answer(cluster)
    await again(KEY)
    answer(cluster, ready=0)
    indices.stand_still()
    await again(KEY)
    cluster.requests.clear()

    await again(KEY)

    assert cluster.requests == []


async def test_a_status_never_overwrites_a_newer_version_of_the_object() -> None:
    cluster, indices, again = await at_rest(fitting_owner())
    answer(cluster)
    indices.stand_still()
    edit_spec(cluster)

    await again(KEY)

    # The write was refused, so the cluster was read, and what the newer spec asks for was done.
    assert (cluster.find("Deployment", "nano") or {})["spec"]["replicas"] == 2
