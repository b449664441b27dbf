"""Every request the operator makes is one the chart grants; hardly anything is granted in vain."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

from fake_cluster import FakeCluster
from mamba_api import names
from mamba_operator.children.engine_admin import EngineAccess
from mamba_operator.gateway_reconcile import GatewayReconciler
from mamba_operator.objects.errors import OperatorError
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import BY_NAME, LEASE, Kind
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.pass_events import EventRecorder
from mamba_operator.process.leadership import Leadership, LeaseName
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.reconcile import PassSettings, Reconciler, Runtime
from mamba_operator.render.context import DefaultImages
from model_loads import cached, loading
from operator_objects import NOW, TOKEN, applied, creating_pod, fitting_owner, planned
from parsed_yaml import load_yaml
from virtual_time import in_virtual_time

TEMPLATES = Path(__file__).parents[3] / "charts/mambaserve/templates"
POOLED = fitting_owner(replicas=2, gateway={"inferencePool": {"proxyNamespace": "envoy"}, "replicas": 2})
CACHED = cached(memory={})
KEY = Key("models", "nano")
Right = tuple[str, str, str]


def granted() -> set[Right]:
    """Return (verb, group, resource) of all the chart's rules together."""
    text = (TEMPLATES / "_helpers.tpl").read_text()
    text = text[text.index('{{- define "mambaserve.rules" -}}') :].split("\n", 1)[1].split("{{- end -}}")[0]
    rules: list[dict[str, Any]] = load_yaml(text)
    for block in re.findall(
        r"^  - apiGroups: .*\n    resources: .*\n(?:    resourceNames: \[LEASE\]\n)?    verbs: .*$",
        (TEMPLATES / "rbac.yaml").read_text().replace('{{ printf "%s-operator" $name }}', "LEASE"),
        re.MULTILINE,
    ):
        rules += load_yaml(block)
    return rights(rules)


def rights(rules: Iterable[Mapping[str, Any]]) -> set[Right]:
    return {
        (verb, group, resource)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


class Watched(FakeCluster):
    """Remembers each request as the right that the API server would ask for."""

    def __init__(self, *objects: Manifest) -> None:
        self.used: set[Right] = set()
        super().__init__(*objects)

    def _use(self, verb: str, kind: Kind, part: str = "") -> None:
        self.used.add((verb, kind.group, f"{kind.plural}/{part}" if part else kind.plural))

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        self._use("get", kind)
        return await super().get(kind, namespace, name)

    async def pages(self, kind: Kind, *arguments: Any, **named: Any) -> AsyncIterator[list[Manifest]]:
        self._use("list", kind)
        async for page in super().pages(kind, *arguments, **named):
            yield page

    async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        kind = kind_of(manifest)
        self._use("patch", kind, subresource)
        if not subresource:
            # An apply that makes the object needs both.
            self._use("create", kind)
        return await super().apply(manifest, subresource=subresource)

    async def make(self, manifest: Manifest) -> Manifest:
        self._use("create", kind_of(manifest))
        return await super().make(manifest)

    async def create(self, manifest: Manifest, *, validation: str = "Ignore") -> Manifest:
        self._use("create", kind_of(manifest))
        return await super().create(manifest, validation=validation)

    async def replace(self, manifest: Manifest) -> Manifest:
        self._use("update", kind_of(manifest))
        return await super().replace(manifest)

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]) -> Manifest:
        self._use("patch", kind)
        return await super().merge(kind, namespace, name, patch)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self._use("delete", kind)
        await super().delete(kind, namespace, name, uid)


def kind_of(manifest: Manifest) -> Kind:
    return BY_NAME[manifest["kind"]]


def leftover(kind: str) -> Manifest:
    one = next(child for child in (*applied(POOLED), *loading(CACHED)) if child["kind"] == kind)
    return {**one, "metadata": {**one["metadata"], "name": "nano-old", "uid": f"old-{kind}"}}


async def silent(_: str) -> None:
    """Simulate silent engines."""


def ready_engine(name: str) -> Manifest:
    labels, ready = names.labels("nano", "engine"), {"type": "Ready", "status": "True"}
    return {
        "kind": "Pod", "metadata": {"name": name, "namespace": "models", "labels": labels},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [ready]},
    }  # fmt: skip


def damage(cluster: Watched) -> None:
    """Remove the record of the source from all children, so that each is applied again."""
    for one in cluster.objects.values():
        one["metadata"].get("annotations", {}).pop(names.ANNOTATION_SPEC_HASH, None)


async def work(cluster: Watched) -> None:
    """Make, mend, shrink, prune, repeat an event after a restart, meet a stranger."""
    theirs = {"kind": "Service", "metadata": {"name": "nano", "namespace": "models", "uid": "theirs"}}
    for kind in {one["kind"] for one in applied(POOLED)} - {"Secret"} | {"Job"}:
        cluster.put(leftover(kind))
    for step in range(6):
        again = Reconciler(
            cluster, OperatorMetrics(), PassSettings("test"), engines=EngineAccess(read=silent),
            runtime=Runtime(now=lambda: NOW, new_token=lambda: TOKEN),
        )  # fmt: skip
        with contextlib.suppress(OperatorError):
            await again(KEY)
        await again.events.flush()
        if step in (1, 3) and (engine := cluster.find("Deployment", "nano-engine")) is not None:
            engine["spec"]["replicas"] = 9
        if step == 2:
            cluster.put(creating_pod())
            for name in ("one", "other"):
                cluster.put(ready_engine(name))
            damage(cluster)
        if step == 4:
            cluster.put(theirs)


async def work_on_gateway(cluster: Watched) -> None:
    """Make the children of a MambaGateway, change each, and remove its HTTPRoute."""
    key = Key("models", "team", "MambaGateway")
    spec: dict[str, Any] = {"selector": {}, "httpRoute": {"parentRefs": [{"name": "public"}]}}
    metadata = {"name": "team", "namespace": "models", "uid": "team-uid"}
    of = {"apiVersion": names.API_VERSION, "kind": key.kind, "metadata": metadata, "spec": spec}
    for step in range(3):
        if step == 1:
            damage(cluster)
        cluster.put(of if step < 2 else {**of, "spec": {"selector": {}}})
        events = EventRecorder(cluster, reporter="test")
        await GatewayReconciler(
            cluster, OperatorMetrics(), events, Indices(), DefaultImages(), PassSettings("test"),
            now=lambda: NOW,
        )(key)  # fmt: skip
        await events.flush()


async def test_a_working_operator_never_asks_for_more_than_the_chart_grants() -> None:
    cluster = Watched(fitting_owner(memory={}))

    await work(cluster)
    await work_on_gateway(cluster)

    assert cluster.used - granted() == set()
    assert {verb for verb, _, _ in cluster.used} == {"get", "list", "create", "patch", "delete"}


async def test_of_the_writing_rights_to_children_none_is_granted_in_vain() -> None:
    cluster = Watched(CACHED)
    await work(cluster)
    await work(plain := Watched(fitting_owner(memory={})))
    await work(pooled := Watched(POOLED))
    await work_on_gateway(plain)
    # The API server alone asks for finalizers.
    kept = {"mambadeployments/finalizers", "mambagateways/finalizers", "leases"}
    # A Job is made and never changed, unless one of ours has its name and no watch has shown it yet.
    seldom = {("patch", "batch", "jobs")}

    writing = {
        right
        for right in granted() - seldom
        if right[0] in ("create", "patch", "delete", "update") and right[2] not in kept
    }

    assert writing - cluster.used - plain.used - pooled.used == set()


@in_virtual_time
async def test_the_lease_is_taken_renewed_and_given_back_with_what_the_chart_grants() -> None:
    cluster = Watched()
    leadership = Leadership(cluster, LeaseName("models", "lease", "me", 15, 4))

    await leadership.hold(lambda: asyncio.sleep(10))

    assert cluster.used == {(verb, LEASE.group, LEASE.plural) for verb in ("get", "create", "update")}
    assert cluster.used <= granted()


def test_no_secret_can_be_read_but_the_operators_own() -> None:
    assert {verb for verb, _, resource in granted() if resource == "secrets"} == {"create"}
    text = (TEMPLATES / "rbac.yaml").read_text()
    named = re.findall(r"resources: \[secrets\]\n +resourceNames: \[(.*)\]\n +verbs: \[(.*)\]", text)
    assert named == [(names.ADMIN_KEY_NAME, "get")]
    assert text.count("secrets") == 2


def test_a_role_the_operator_makes_holds_nothing_that_the_operator_does_not_hold() -> None:
    roles = [one.manifest for one in planned(fitting_owner()).applies if one.manifest["kind"] == "Role"]

    assert len(roles) == 1
    assert rights(roles[0]["rules"]) <= granted()
