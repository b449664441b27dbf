"""One observation: everything or nothing, also of objects that others broke."""

import asyncio
import copy
from typing import Any

import pytest

from fake_cluster import FakeCluster
from mamba_operator.objects.errors import Forbidden, NotFound, Unreachable
from mamba_operator.objects.kinds import OWNED, Kind
from mamba_operator.objects.manifest import Key, Manifest, Ref, ref
from mamba_operator.observe import observe
from operator_objects import UID, applied, fitting_owner, owner

KEY = Key("models", "nano")


def cluster_of(*objects: Manifest) -> FakeCluster:
    return FakeCluster(fitting_owner(), *objects)


def node(memory: str, **labels: str) -> Manifest:
    return {
        "kind": "Node",
        "metadata": {
            "name": f"node-{memory}-{len(labels)}",
            "labels": {"nvidia.com/gpu.memory": memory, **labels},
        },
    }


async def test_children_are_told_from_objects_that_only_carry_our_labels() -> None:
    children = applied(fitting_owner())
    copied = copy.deepcopy(children[1])
    copied["metadata"] |= {"name": "copied-by-hand", "uid": "theirs", "ownerReferences": []}

    seen = await observe(cluster_of(*children, copied), KEY)

    assert set(seen.children) == {ref(one) for one in children if one["kind"] != "Secret"}
    assert set(seen.foreign) == {Ref(copied["kind"], "copied-by-hand")}


@pytest.mark.parametrize(
    "reference",
    [
        {"apiVersion": "apps/v1", "kind": "MambaDeployment", "controller": True, "uid": UID},
        {"apiVersion": "serving.mambaserve.io/v1alpha1", "kind": "Other", "controller": True, "uid": UID},
        {"apiVersion": "serving.mambaserve.io/v1alpha1", "kind": "MambaDeployment", "uid": UID},
        {"apiVersion": "serving.mambaserve.io/v1alpha1", "kind": "MambaDeployment", "controller": True,
         "uid": "of another life"},
    ],
    ids=["another group", "another kind", "not its controller", "another uid"],
)  # fmt: skip
async def test_only_a_controlling_reference_to_this_very_object_makes_a_child(reference: Manifest) -> None:
    one = applied(fitting_owner())[1]
    one["metadata"]["ownerReferences"] = [reference]

    seen = await observe(cluster_of(one), KEY)

    assert seen.children == {}
    assert len(seen.foreign) == 1


async def test_children_of_a_later_version_of_the_api_are_still_children() -> None:
    one = applied(fitting_owner())[1]
    one["metadata"]["ownerReferences"][0]["apiVersion"] = "serving.mambaserve.io/v1"

    assert len((await observe(cluster_of(one), KEY)).children) == 1


async def test_nothing_of_another_namespace_or_another_deployment_is_seen() -> None:
    elsewhere, other = (copy.deepcopy(applied(fitting_owner())[1]) for _ in range(2))
    elsewhere["metadata"]["namespace"] = "elsewhere"
    other["metadata"]["labels"]["app.kubernetes.io/instance"] = "nano-2"

    seen = await observe(cluster_of(elsewhere, other), KEY)

    assert (seen.children, seen.foreign) == ({}, {})


@pytest.mark.parametrize("kind", [*OWNED], ids=lambda kind: kind.plural)
async def test_one_list_without_an_answer_is_no_look_at_all(kind: Kind) -> None:
    cluster = cluster_of(*applied(fitting_owner()))
    cluster.fault = lambda verb, of, _: (
        Unreachable("expired", status=410) if (verb, of) == ("list", kind.kind) else None
    )

    with pytest.raises(Unreachable):
        await observe(cluster, KEY)


async def test_what_was_listed_is_told_only_when_everything_was() -> None:
    told: list[str] = []
    cluster = cluster_of(*applied(fitting_owner()))
    cluster.fault = lambda verb, of, _: NotFound("gone", status=404) if of == "Pod" else None

    with pytest.raises(NotFound):
        await observe(cluster, KEY, on_listed=lambda kind, _: told.append(kind.kind))

    assert told == []


async def test_the_first_failure_ends_the_other_requests() -> None:
    ended: list[str] = []

    class Slow(FakeCluster):
        async def list(self, kind: Kind, *arguments: Any, **named: Any) -> list[Manifest]:
            if kind.kind == "Pod":
                raise Unreachable("away")
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(kind.kind)
            return []

    with pytest.raises(Unreachable):
        await asyncio.wait_for(observe(Slow(fitting_owner()), KEY), 5)

    assert len(ended) >= len(OWNED)


@pytest.mark.parametrize(
    "spec",
    [
        None, [], "text", 5,
        {"memory": "80Gi", "resources": ["gpu"], "scheduling": 1},
        {"scheduling": {"nodeSelector": ["a"]}},
        {"model": "builtin://tiny-recall"},
        {"model": {"uri": 5}},
    ],
    ids=str,
)  # fmt: skip
async def test_a_broken_spec_is_observed_like_any_other(spec: Any) -> None:
    cluster = FakeCluster({**owner(), "spec": spec}, node("1024"))

    seen = await observe(cluster, KEY)

    assert seen.owner is not None
    assert seen.owner["spec"] == spec
    assert [one.labels["nvidia.com/gpu.memory"] for one in seen.nodes] == ["1024"]


async def test_nodes_that_may_not_be_read_tell_nothing() -> None:
    cluster = FakeCluster(fitting_owner(memory={}))
    cluster.fault = lambda _verb, kind, _name: Forbidden("no", status=403) if kind == "Node" else None

    assert (await observe(cluster, KEY)).nodes == ()


async def test_nodes_that_give_no_answer_end_the_look() -> None:
    cluster = FakeCluster(fitting_owner(memory={}))
    cluster.fault = lambda _verb, kind, _name: Unreachable("away") if kind == "Node" else None

    with pytest.raises(Unreachable):
        await observe(cluster, KEY)


@pytest.mark.parametrize(
    "spec",
    [{"memory": {"deviceMemory": "80Gi"}}, {"memory": {}, "resources": {"gpus": 0}}],
    ids=["the spec says it", "there is no GPU"],
)
async def test_nodes_are_not_read_when_their_answer_would_not_count(spec: dict[str, Any]) -> None:
    cluster = FakeCluster(fitting_owner(**spec))
    cluster.fault = lambda _verb, kind, _name: pytest.fail("read") if kind == "Node" else None

    assert (await observe(cluster, KEY)).nodes == ()


async def test_an_object_whose_kind_is_not_served_any_more_is_gone() -> None:
    seen = await observe(FakeCluster(), KEY)

    assert seen.owner is None
    assert seen.uid == ""
