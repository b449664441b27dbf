"""Names that others have, objects that others replace, and what is left when the API server goes away."""

import copy
from typing import Any

import pytest

from fake_cluster import FakeCluster
from mamba_api import names
from mamba_operator.apply import ApplyResult, apply, status_manifest
from mamba_operator.children.child_comparison import Change
from mamba_operator.objects.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    ImageVolumesMissing,
    NameTaken,
    NotFound,
    NotInSchema,
    ObjectRejected,
    Terminating,
    Unreachable,
)
from mamba_operator.objects.manifest import Manifest, Ref, ref
from operator_objects import UID, applied, edited, fitting_owner, planned, snapshot, without

OF = fitting_owner()


async def applying(cluster: FakeCluster, children: list[Manifest], of: Manifest = OF) -> ApplyResult:
    """Carry out what is planned for these children, whatever the cluster holds by now."""
    return await apply(cluster, snapshot(of, children), planned(of, children))


def foreign(kind: str, name: str, **more: Any) -> Manifest:
    return {"kind": kind, "metadata": {"name": name, "namespace": "models", "uid": "theirs"}, **more}


def owned_by(name: str, uid: str) -> list[Manifest]:
    return [
        {
            "apiVersion": "serving.mambaserve.io/v1alpha1",
            "kind": "MambaDeployment",
            "name": name,
            "uid": uid,
            "controller": True,
        }
    ]


def live(children: list[Manifest]) -> FakeCluster:
    return FakeCluster(OF, *children)


async def test_the_children_of_another_deployment_are_a_name_that_is_taken_and_its_owner_is_named() -> None:
    # nano-engine is the engine of nano, and the gateway of a deployment that is called nano-engine.
    theirs = foreign("Service", "nano-engine")
    theirs["metadata"]["ownerReferences"] = owned_by("nano-engine", "another")
    cluster = FakeCluster(OF, theirs)

    outcome = await applying(cluster, [])

    [error] = outcome.errors
    assert isinstance(error, NameTaken)
    assert "Service nano-engine " in str(error)
    assert "MambaDeployment nano-engine" in str(error)
    assert cluster.find("Service", "nano-engine")["metadata"]["uid"] == "theirs"


async def test_the_children_of_an_earlier_object_of_the_same_name_are_waited_for() -> None:
    theirs = foreign("Service", "nano")
    theirs["metadata"]["ownerReferences"] = owned_by("nano", "of another life")

    [error] = (await applying(FakeCluster(OF, theirs), [])).errors

    assert isinstance(error, Terminating)
    assert "nano" in str(error)


async def test_a_foreign_object_that_is_going_is_waited_for_and_one_that_stays_is_not() -> None:
    going = foreign("Service", "nano")
    going["metadata"]["deletionTimestamp"] = "2026-01-02T11:00:00Z"

    outcome = await applying(FakeCluster(OF, going, foreign("ConfigMap", "nano-engine")), [])

    assert [type(one) for one in outcome.errors] == [NameTaken, Terminating]


def left_behind(**metadata: Any) -> Manifest:
    """Return the Service of an object that was deleted without it."""
    [service] = [one for one in applied(OF) if ref(one) == Ref("Service", "nano")]
    meta = {**service["metadata"], "uid": "of before", "ownerReferences": [], **metadata}
    return {**service, "metadata": meta}


async def test_an_orphan_of_its_own_name_is_taken_back_and_nothing_that_only_looks_like_one() -> None:
    cluster = FakeCluster(OF, left_behind())
    assert (await applying(cluster, [])).errors == []
    [owner] = cluster.find("Service", "nano")["metadata"]["ownerReferences"]
    assert owner["uid"] == UID
    assert cluster.find("Service", "nano")["metadata"]["uid"] == "of before"
    theirs = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "x", "controller": True}]
    others: list[dict[str, Any]] = [
        {"ownerReferences": theirs}, {"annotations": {}},
        {"labels": {**left_behind()["metadata"]["labels"], names.LABEL_MANAGED_BY: "Helm"}},
        {"labels": {**left_behind()["metadata"]["labels"], names.LABEL_INSTANCE: "other"}},
    ]  # fmt: skip
    for other in others:
        outcome = await applying(FakeCluster(OF, left_behind(**other)), [])
        assert [type(one) for one in outcome.errors] == [NameTaken], other


@pytest.mark.parametrize(
    ("kind", "name"),
    [(one["kind"], one["metadata"]["name"]) for one in applied(OF) if one["kind"] != "Secret"],
    ids=str,
)
async def test_nothing_of_anybody_else_is_ever_taken_over(kind: str, name: str) -> None:
    theirs = foreign(kind, name, data={"token": "dGhlaXJz"})
    cluster = FakeCluster(OF, theirs)

    outcome = await applying(cluster, [])

    assert [type(one) for one in outcome.errors] == [NameTaken]
    assert cluster.find(kind, name)["data"] == {"token": "dGhlaXJz"}
    assert len(outcome.applied) == len(applied(OF)) - 1


async def test_an_object_that_took_a_childs_name_since_we_looked_is_not_written_to() -> None:
    children = applied(OF)
    drifted = edited(children, "Service", "nano", lambda one: one["spec"].update(type="NodePort"))
    theirs = foreign("Service", "nano", spec={"type": "LoadBalancer"})
    cluster = live(without(children, "Service", "nano"))
    cluster.put(theirs)

    outcome = await applying(cluster, drifted)

    assert [type(one) for one in outcome.errors] == [ObjectRejected]
    assert cluster.find("Service", "nano")["spec"] == {"type": "LoadBalancer"}


async def test_a_child_that_was_deleted_since_we_looked_is_left_to_the_next_look() -> None:
    children = applied(OF)
    drifted = edited(children, "Service", "nano", lambda one: one["spec"].update(type="NodePort"))
    cluster = live(without(children, "Service", "nano"))

    outcome = await applying(cluster, drifted)

    assert [type(one) for one in outcome.errors] == [Conflict]
    assert cluster.find("Service", "nano") is None
    assert (await applying(cluster, without(children, "Service", "nano"))).errors == []
    assert cluster.find("Service", "nano") is not None


def leftover() -> Manifest:
    return foreign("ConfigMap", "nano-old")


async def test_a_leftover_that_was_replaced_since_we_looked_is_not_deleted() -> None:
    children = [*applied(OF), leftover()]
    replaced = leftover()
    replaced["metadata"]["uid"] = "newer"
    cluster = live([*applied(OF), replaced])

    outcome = await applying(cluster, children)

    assert (outcome.applied, outcome.errors) == ([], [])
    assert cluster.find("ConfigMap", "nano-old") is not None


@pytest.mark.parametrize("error", [Forbidden("no", status=403), ObjectRejected("no", status=422)], ids=repr)
async def test_a_leftover_that_may_not_be_deleted_is_an_error_and_no_change(error: ClusterError) -> None:
    children = [*applied(OF), leftover()]
    cluster = live(children)
    cluster.fault = lambda verb, *_: error if verb == "delete" else None

    outcome = await applying(cluster, children)

    assert (outcome.applied, outcome.errors) == ([], [error])


async def test_a_leftover_that_is_gone_already_counts_as_removed() -> None:
    outcome = await applying(live(applied(OF)), [*applied(OF), leftover()])

    assert [(one.ref, one.change) for one in outcome.applied] == [
        (Ref("ConfigMap", "nano-old"), Change.NOT_NEEDED)
    ]


@pytest.mark.parametrize("verb", ["list", "create", "apply", "delete"])
async def test_a_server_that_goes_away_is_not_asked_for_anything_more(verb: str) -> None:
    changed = edited(applied(OF), "Service", "nano", lambda one: one["spec"].update(type="NodePort"))
    children = [*without(changed, "ConfigMap", "nano-engine"), leftover()]
    if verb in ("list", "create"):
        children = []
    # A name is only looked up where there is something.
    cluster = FakeCluster(OF, foreign("Service", "nano")) if verb == "list" else live(children)
    asked: list[str] = []

    def away(what: str, *_: str) -> ClusterError | None:
        asked.append(what)
        return Unreachable("away") if what == verb else None

    cluster.fault = away
    outcome = await applying(cluster, children)

    assert [type(one) for one in outcome.errors] == [Unreachable]
    assert asked.index(verb) == len(asked) - 1


async def test_every_refused_child_is_told_and_every_other_one_is_made() -> None:
    cluster = FakeCluster(OF)
    cluster.fault = lambda verb, kind, name: (
        ObjectRejected(f"{kind} {name}: spec is immutable", status=422)
        if verb == "make" and kind == "Service"
        else None
    )

    outcome = await applying(cluster, [])

    assert [str(one) for one in outcome.errors] == [
        "Service nano-engine: spec is immutable", "Service nano: spec is immutable",
    ]  # fmt: skip
    assert len(outcome.applied) == len(applied(OF)) - 2


async def test_a_token_that_somebody_made_since_we_looked_is_kept() -> None:
    cluster = FakeCluster(OF)
    quicker = next(one for one in applied(OF) if one["kind"] == "Secret")
    fault = [False]

    def race(verb: str, kind: str, _: str) -> None:
        if (verb, kind) == ("create", "Secret") and not fault[0]:
            fault[0] = True
            cluster.put({**copy.deepcopy(quicker), "data": {"token": "cXVpY2tlcg=="}})

    cluster.fault = race
    outcome = await applying(cluster, [])

    assert cluster.find("Secret", "nano-admin-11111111")["data"] == {"token": "cXVpY2tlcg=="}
    assert Ref("Secret", "nano-admin-11111111") not in [one.ref for one in outcome.applied]
    assert outcome.errors == []


async def test_engines_are_not_made_before_the_token_that_they_mount() -> None:
    cluster = FakeCluster(OF)
    cluster.fault = lambda verb, kind, _: (
        ObjectRejected("quota", status=422) if (verb, kind) == ("create", "Secret") else None
    )

    outcome = await applying(cluster, [])

    assert [str(one) for one in outcome.errors] == ["quota"]
    assert cluster.find("Deployment", "nano-engine") is None
    assert cluster.find("Deployment", "nano") is not None


async def test_a_write_that_changed_nothing_is_no_change() -> None:
    children = applied(OF)
    cluster = live(children)
    stored = [copy.deepcopy(cluster.find(one["kind"], one["metadata"]["name"])) for one in children]
    # Our view is old: somebody put the annotation back before we came.
    seen = edited(stored, "Service", "nano", lambda one: one["metadata"].update(annotations={}))

    outcome = await applying(cluster, seen)

    assert (outcome.applied, outcome.errors) == ([], [])


@pytest.mark.parametrize("owner_now", ["gone", "another"])
async def test_a_status_reaches_the_very_object_it_was_made_for(owner_now: str) -> None:
    cluster = FakeCluster()
    if owner_now == "another":
        successor = fitting_owner()
        successor["metadata"]["uid"] = "another"
        cluster.put(successor)

    with pytest.raises(NotFound if owner_now == "gone" else Conflict):
        await cluster.apply(status_manifest(OF, {"replicas": 1}), subresource="status")


def test_conditions_of_others_are_left_to_them() -> None:
    sent = status_manifest(OF, {"conditions": [{"type": "Ready"}, {"type": "Theirs"}, {"type": "Planned"}]})

    assert sent["status"]["conditions"] == [{"type": "Ready"}, {"type": "Planned"}]
    assert sent["metadata"] == {"name": "nano", "namespace": "models", "resourceVersion": "100"}


async def test_what_was_done_and_refused_before_the_server_went_away_is_still_told() -> None:
    cluster = FakeCluster(OF)
    answers: dict[str, ClusterError] = {
        "NetworkPolicy": ObjectRejected("no", status=422), "Deployment": Unreachable("away", status=503),
    }  # fmt: skip
    cluster.fault = lambda verb, kind, _: answers.get(kind) if verb == "make" else None

    outcome = await applying(cluster, [])

    assert [str(one) for one in outcome.errors] == ["no", "away"]
    assert Ref("Service", "nano") in [one.ref for one in outcome.applied]
    assert not any(one.ref.kind == "Deployment" for one in outcome.applied)


MOUNTED = fitting_owner(model={**OF["spec"]["model"], "uri": "oci://r.example/a:v1", "imageVolume": {}})


class WithoutImageVolumes(FakeCluster):
    """A cluster whose API server drops volumes of images, or knows no such field."""

    knows_the_field = True

    async def apply(self, manifest: Manifest, *, subresource: str = "", dry_run: bool = False) -> Manifest:
        stored = copy.deepcopy(await super().apply(manifest, subresource=subresource, dry_run=dry_run))
        if manifest["kind"] == "Deployment":
            pod = stored["spec"]["template"]["spec"]
            others = [volume for volume in pod["volumes"] if "image" not in volume]
            if not self.knows_the_field and others != pod["volumes"]:
                path = '.spec.template.spec.volumes[name="model"].image'
                raise NotInSchema("no such field", status=500, path=path, complaint="no such field")
            pod["volumes"] = others
        return stored


@pytest.mark.parametrize("knows_the_field", [True, False])
async def test_engines_are_not_written_where_the_image_of_their_model_would_be_left_out(
    knows_the_field: bool,
) -> None:
    cluster = WithoutImageVolumes(MOUNTED)
    cluster.knows_the_field = knows_the_field

    outcome = await applying(cluster, [], MOUNTED)

    assert [type(error) for error in outcome.errors] == [ImageVolumesMissing]
    assert "spec.model.imageVolume" in str(outcome.errors[0])
    written = {(key[0], key[2]) for key in cluster.objects}
    assert ("Deployment", "nano-engine") not in written
    assert ("Deployment", "nano") in written


async def test_engines_are_written_where_images_can_be_mounted() -> None:
    cluster = FakeCluster(MOUNTED)

    assert not (await applying(cluster, [], MOUNTED)).errors
    assert ("Deployment", "nano-engine") in {(key[0], key[2]) for key in cluster.objects}
