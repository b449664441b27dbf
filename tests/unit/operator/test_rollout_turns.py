"""Order of roll-outs after an upgrade of the operator: deployment by deployment.

A person's change waits for no other.
"""

from datetime import timedelta
from typing import Any

from mamba_api import names
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.objects.indices import Indices, index_id
from mamba_operator.objects.kinds import DEPLOYMENT, MAMBA_DEPLOYMENT
from mamba_operator.objects.manifest import Key, Manifest, label_of, name_of, ref
from mamba_operator.plan import make_plan
from mamba_operator.render.context import OF_THIS_VERSION, DefaultImages
from mamba_operator.rollout.turns import RolloutTurns
from operator_objects import NOW, TOKEN, applied, fitting_owner, running, snapshot

NEWER = DefaultImages("registry.test/engine:newer", "registry.test/gateway:newer")


class Cluster:
    """Deployments that serve, and an operator that may be a newer one."""

    def __init__(self, count: int, most: int) -> None:
        self.now, self.images = NOW, OF_THIS_VERSION
        self.owners: dict[Key, Manifest] = {}
        self.children: dict[Key, list[Manifest]] = {}
        self.by_id: dict[str, dict[Key, list[Manifest]]] = {
            index_id(MAMBA_DEPLOYMENT): {}, index_id(DEPLOYMENT): {},
        }  # fmt: skip
        indices = Indices()
        indices.take(self.by_id)
        self.turns = RolloutTurns(indices, most, lambda: self.now)
        for number in range(count):
            key = Key(f"team-{number}", "nano")
            owner = fitting_owner()
            owner["metadata"]["namespace"] = key.namespace
            owner["status"] = {"observedGeneration": owner["metadata"]["generation"]}
            self.owners[key], self.children[key] = owner, running(applied(owner))
            self.look(key)

    def look(self, key: Key) -> ReconcilePlan:
        """Run one pass over a deployment, whose controllers are done with the one before."""
        self.by_id[index_id(MAMBA_DEPLOYMENT)][key] = [self.owners[key]]
        seen = snapshot(self.owners[key], self.children[key], may_begin=self.turns.may_begin(key))
        plan = make_plan(seen, now=self.now, new_token=lambda: TOKEN, images=self.images)
        if plan.begins_unasked:
            self.turns.begin(key)
        kept = {ref(child): child for child in self.children[key]}
        for apply in plan.applies:
            meta = {**apply.manifest["metadata"], "uid": name_of(apply.manifest), "resourceVersion": "1"}
            kept[ref(apply.manifest)] = {**apply.manifest, "metadata": {**meta, "generation": 1}}
        self.children[key] = running(list(kept.values()))
        self.show(key, old=0)
        return plan

    def show(self, key: Key, *, old: int) -> None:
        """Let the watches show so many pods of an older revision."""
        shown: list[Manifest] = []
        for child in self.children[key]:
            if child["kind"] == "Deployment":
                status: dict[str, Any] = {**child["status"]}
                status["replicas"] += old
                shown.append({**child, "status": status})
        self.by_id[index_id(DEPLOYMENT)][key] = shown

    def image(self, key: Key) -> str:
        engine = next(
            one for one in self.children[key] if one["kind"] == "Deployment" and name_of(one) == "nano-engine"
        )
        assert label_of(engine)
        return str(engine["spec"]["template"]["spec"]["containers"][0]["image"])


def test_after_an_upgrade_so_many_are_replaced_at_once_and_in_the_end_all() -> None:
    cluster = Cluster(7, most=3)
    cluster.images = NEWER
    queued = [cluster.look(key).queued for key in cluster.owners]
    newer = [key for key in cluster.owners if cluster.image(key) == NEWER.engine]
    assert len(newer) == 3
    assert queued.count(True) == 4

    for key in newer:
        cluster.show(key, old=1)
    cluster.now += timedelta(minutes=5)
    assert all(cluster.look(key).queued for key in cluster.owners if key not in newer)

    cluster.show(newer[0], old=0)
    cluster.now += timedelta(minutes=5)
    assert [cluster.look(key).queued for key in cluster.owners if key not in newer].count(False) == 1
    for _ in range(7):
        cluster.now += timedelta(minutes=5)
        for key in cluster.owners:
            cluster.look(key)
    assert {cluster.image(key) for key in cluster.owners} == {NEWER.engine}


def test_what_a_person_changes_waits_for_nobody() -> None:
    cluster = Cluster(3, most=1)
    cluster.images = NEWER
    first, second, third = cluster.owners
    assert not cluster.look(first).queued
    assert cluster.look(second).queued

    cluster.owners[second]["metadata"]["generation"] += 1
    assert not cluster.look(second).queued
    cluster.owners[third]["metadata"]["annotations"] = {names.ANNOTATION_RESTART: "now"}
    assert not cluster.look(third).queued


def end_engines(cluster: Cluster, key: Key) -> None:
    """Let no engine of the deployment answer from now on, as when its nodes are gone, after its roll-out."""
    shown = []
    for child in cluster.children[key]:
        if child["kind"] == "Deployment":
            since = cluster.now.isoformat()
            conditions = [
                {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
                {"type": "Available", "status": "False", "lastTransitionTime": since},
            ]
            shown.append(
                {**child, "status": {**child["status"], "readyReplicas": 0, "conditions": conditions}}
            )
    cluster.by_id[index_id(DEPLOYMENT)][key] = shown


def test_deployments_whose_engines_died_long_ago_do_not_keep_an_upgrade_from_the_others() -> None:
    cluster = Cluster(4, most=3)
    *dead, well = cluster.owners
    for key in dead:
        end_engines(cluster, key)
    cluster.images = NEWER
    cluster.now += timedelta(minutes=5)
    assert cluster.look(well).queued
    cluster.now += timedelta(hours=1)
    assert not cluster.look(well).queued


def test_a_roll_out_that_a_person_paused_does_not_keep_an_upgrade_from_the_others() -> None:
    cluster = Cluster(2, most=1)
    paused, well = cluster.owners
    cluster.show(paused, old=1)
    shown = cluster.by_id[index_id(DEPLOYMENT)][paused]
    cluster.images = NEWER
    assert cluster.look(well).queued
    cluster.by_id[index_id(DEPLOYMENT)][paused] = [
        {**one, "spec": {**one["spec"], "paused": True}} for one in shown
    ]
    assert not cluster.look(well).queued
