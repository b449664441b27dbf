"""The chart, rendered by helm and judged by a real API server: accepted, confined, least privilege."""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from eventually import wait_until
from mamba_api import names
from mamba_api.v1alpha1.profiles import Profiles, read_profiles
from mamba_api.v1alpha1.schema import CUSTOM_KINDS
from observability.series import series
from parsed_yaml import load_all_yaml, load_yaml
from testcluster.control_plane import ControlPlane
from testcluster.errors import CommandFailed
from testcluster.kubectl import Command

pytestmark = pytest.mark.kube

CHART = Path(__file__).parents[2] / "charts/mambaserve"


@pytest.fixture(scope="module")
def helm(control_plane: ControlPlane) -> Command:
    return control_plane.helm


@cache
def rendered(helm: Command, namespace: str, *options: str) -> list[dict[str, Any]]:
    """Return the objects of the chart with these options, which nobody changes."""
    text = helm("template", "rel", str(CHART), "-n", namespace, *options)
    return [document for document in load_all_yaml(text) if document]


def one(documents: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [d for d in documents if d["kind"] == kind and name in ("", d["metadata"]["name"])]
    return found


VARIANTS = {
    "as it comes": (),
    "with a mounted Python and profiles": (
        "--set-json", 'operator.command=["/opt/python","-m","mamba_cli"]',
        "--set-json", 'operator.extraVolumes=[{"name":"python","hostPath":{"path":"/opt"}}]',
        "--set-json", 'operator.extraVolumeMounts=[{"name":"python","mountPath":"/opt","readOnly":true}]',
        "--set", "operator.hostUsers=false", "--set", "operator.priorityClassName=",
        "--set-json", 'operator.tolerations=[{"operator":"Exists"}]', "--set", "operator.nodeSelector.a=b",
        "--set-json", 'operator.env=[{"name":"A","value":"b"}]', "--set", "operator.podLabels.team=x",
        "--set-json", 'imagePullSecrets=[{"name":"pull"}]', "--set", "serviceAccount.annotations.a=b",
        "--set", "image.digest=sha256:" + "0" * 64, "--set", "commonLabels.owner=us",
        "--set-json", 'resourceProfiles={"ours":{"gpus":1,"cpu":6,"nodeSelector":{"a":"b"}}}',
    ),
    "in namespaces, with external metrics and a Redis": (
        "--set", "externalMetrics.enabled=true,externalMetrics.port=7443,watchNamespaces={NS}",
        "--set", "redis.enabled=true,commonLabels.owner=us,redis.nodeSelector.a=b",
        "--set-json", 'imagePullSecrets=[{"name":"pull"}]',
        "--set-json", 'redis.tolerations=[{"operator":"Exists"}]',
    ),
}  # fmt: skip


def test_one_value_takes_all_images_from_another_registry(helm: Command) -> None:
    documents = rendered(
        helm, "any", "--set", "image.registry=mirror.test:5000/ai", "--set", "servingImagePullSecrets={pull}"
    )
    (operator,) = one(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    check = one(documents, "Pod")["spec"]["containers"][0]

    control = names.CONTROL_PLANE_IMAGE.replace("ghcr.io", "mirror.test:5000/ai")
    assert operator["image"] == check["image"] == control
    engine = names.IMAGE.replace("ghcr.io", "mirror.test:5000/ai")
    given = {f"--engine-image={engine}", f"--gateway-image={control}", "--image-pull-secret=pull"}
    assert given <= set(operator["args"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_api_server_would_take_every_object(
    control_plane: ControlPlane, helm: Command, namespace: str, variant: str
) -> None:
    options = [option.replace("NS", namespace) for option in VARIANTS[variant]]
    text = helm("template", "rel", str(CHART), "-n", namespace, *options)
    # A dry run stores nothing, and pods are refused whose account is not there.
    control_plane.kubectl("create", "serviceaccount", "rel-mambaserve", "-n", namespace)
    applied = control_plane.kubectl(
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
        stdin=text,
    )
    assert len(applied.splitlines()) == len([d for d in load_all_yaml(text) if d])


def test_the_operator_is_started_as_the_reference_says(helm: Command) -> None:
    documents = rendered(
        helm, "sys", "--set", "watchNamespaces={a,b}", "--set-json", 'operator.extraArgs=["--x"]'
    )
    spec = one(documents, "Deployment")["spec"]
    container = spec["template"]["spec"]["containers"][0]
    assert spec["strategy"]["type"] == "RollingUpdate"
    assert container["command"] == ["mambaserve"]
    assert container["args"] == [
        "operator", "--namespace=a", "--namespace=b", "--liveness-port=8081",
        f"--engine-image={names.IMAGE}", f"--gateway-image={names.CONTROL_PLANE_IMAGE}",
        '--scrapers=[{"namespaces":{},"pods":{"app.kubernetes.io/name":"prometheus"}}]', "--x",
    ]  # fmt: skip
    # Two releases in one namespace, for namespaces of their own, each act.
    assert {"name": "MAMBASERVE_LEASE", "value": "rel-mambaserve-operator"} in container["env"]
    paths = {probe: container[probe]["httpGet"]["path"] for probe in container if probe.endswith("Probe")}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    waits = {
        kind: container[kind]["periodSeconds"] * container[kind].get("failureThreshold", 3) for kind in paths
    }
    # Of a process that is short of the processor, which has even less of it when it begins anew.
    assert (waits["startupProbe"], waits["livenessProbe"]) == (300, 60)
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_profiles_of_the_values_are_a_file_of_the_operator_and_a_change_starts_it_anew(helm: Command) -> None:
    def made(cpu: int) -> tuple[dict[str, Any], Profiles]:
        ours = {
            "gpus": 1,
            "cpu": cpu,
            "deviceMemory": "40Gi",
            "nodeSelector": {"a": "b"},
            "tolerations": [{}],
        }
        documents = rendered(helm, "sys", "--set-json", f"resourceProfiles={json.dumps({'ours': ours})}")
        pod = one(documents, "Deployment")["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        (option,) = [each for each in container["args"] if each.startswith("--resource-profiles=")]
        path = Path(option.partition("=")[2])
        (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == str(path.parent)]
        (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == mount["name"]]
        data = one(documents, "ConfigMap", volume["configMap"]["name"])["data"]
        return pod["metadata"], read_profiles(data[path.name], path.name)

    before, profiles = made(6)
    assert profiles["ours"].node_selector == {"a": "b"}
    assert (str(profiles["ours"].cpu), profiles["ours"].gpus) == ("6", 1)
    assert before != made(7)[0]
    assert before == made(6)[0]


def test_two_operators_are_installed_on_two_nodes_where_there_are_as_many(helm: Command) -> None:
    spec = one(rendered(helm, "sys"), "Deployment")["spec"]
    assert spec["replicas"] == 2
    [spread] = spec["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert spread["labelSelector"] == spec["selector"]

    alone = one(rendered(helm, "sys", "--set", "operator.replicas=1"), "Deployment")["spec"]
    assert alone["replicas"] == 1
    assert "topologySpreadConstraints" not in alone["template"]["spec"]


def test_what_a_cluster_without_images_needs_can_be_mounted(helm: Command) -> None:
    documents = rendered(helm, "sys", *VARIANTS["with a mounted Python and profiles"])
    spec = one(documents, "Deployment")["spec"]["template"]["spec"]
    container = spec["containers"][0]
    assert container["command"] == ["/opt/python", "-m", "mamba_cli"]
    assert container["image"].endswith("@sha256:" + "0" * 64)
    assert {"name": "python", "hostPath": {"path": "/opt"}} in spec["volumes"]
    assert {"name": "python", "mountPath": "/opt", "readOnly": True} in container["volumeMounts"]
    assert spec["hostUsers"] is False
    assert "hostUsers" not in one(rendered(helm, "sys"), "Deployment")["spec"]["template"]["spec"]


def test_the_crd_comes_with_the_chart_and_stays_when_it_goes(helm: Command) -> None:
    def definitions(*arguments: str) -> list[dict[str, Any]]:
        documents = rendered(helm, "sys", *arguments)
        return [one["metadata"] for one in documents if one["kind"] == "CustomResourceDefinition"]

    kept = definitions()
    assert len(kept) == len(CUSTOM_KINDS)
    assert all(metadata["annotations"] == {"helm.sh/resource-policy": "keep"} for metadata in kept)
    assert not any("annotations" in metadata for metadata in definitions("--set", "crds.keep=false"))
    without = rendered(helm, "sys", "--set", "crds.enabled=false")
    assert "CustomResourceDefinition" not in {document["kind"] for document in without}


def test_a_key_nobody_knows_is_refused(helm: Command) -> None:
    with pytest.raises(CommandFailed, match="additional properties 'bogus' not allowed"):
        helm("template", "rel", str(CHART), "--set", "operator.bogus=2")


def test_each_dashboard_comes_as_it_is_with_the_label_that_grafana_looks_for(helm: Command) -> None:
    found = [document for document in rendered(helm, "sys") if document["kind"] == "ConfigMap"]
    shipped = {path.name: json.loads(path.read_text()) for path in (CHART / "dashboards").glob("*.json")}
    assert {name: json.loads(text) for each in found for name, text in each["data"].items()} == shipped
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in found} == {"1"}
    without = rendered(helm, "sys", "--set", "monitoring.dashboards=false")
    assert [document for document in without if document["kind"] == "ConfigMap"] == []


def test_rules_and_pod_monitors_come_where_the_cluster_knows_them(helm: Command) -> None:
    kinds = {"PrometheusRule", "PodMonitor"}
    assert not kinds & {document["kind"] for document in rendered(helm, "sys")}
    options = ["--api-versions", "monitoring.coreos.com/v1", "--set", "monitoring.runbooks=https://r.example/",
               "--set", "monitoring.labels.release=prom", "--set", "watchNamespaces={a,b}"]  # fmt: skip
    documents = rendered(helm, "sys", *options)
    found = [document for document in documents if document["kind"] in kinds]
    assert {each["metadata"]["labels"]["release"] for each in found} == {"prom"}
    groups = one(documents, "PrometheusRule")["spec"]["groups"]
    shipped = load_yaml((CHART / "files/rules.yaml").read_text())["groups"]
    assert [rule["expr"] for rule in groups[0]["rules"]] == [rule["expr"] for rule in shipped[0]["rules"]]
    links = {rule["annotations"]["runbook_url"] for rule in groups[0]["rules"]}
    assert "https://r.example/no-engine-ready.md" in links
    assert all(link.startswith("https://r.example/") for link in links)
    serving = one(documents, "PodMonitor", "rel-mambaserve-serving")["spec"]
    assert serving["namespaceSelector"] == {"matchNames": ["a", "b"]}
    # What the monitors select is what the pods carry.
    assert serving["selector"]["matchLabels"].items() <= names.labels("x", "engine").items()
    assert {each["port"] for each in serving["podMetricsEndpoints"]} == {names.HTTP_PORT_NAME}
    # The Prometheus operator gives a target these labels, and renames those of a series that are called so.
    for endpoint in serving["podMetricsEndpoints"]:
        given = {"namespace", "pod", "container", "job", "instance", "endpoint"}
        dropped = {rule["regex"] for rule in endpoint["relabelings"] if rule["action"] == "labeldrop"}
        for alert in shipped[0]["rules"]:
            assert "exported_" not in alert["expr"]
        assert (given - dropped) & series("gateway_endpoint_ready").labels == set()
    pod = one(documents, "Deployment")["spec"]["template"]
    monitor = one(documents, "PodMonitor", "rel-mambaserve-operator")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert {each["port"] for each in monitor["podMetricsEndpoints"]} <= ports
    off = rendered(helm, "sys", *options, "--set", "monitoring.rules=false,monitoring.podMonitors=false")
    assert not kinds & {document["kind"] for document in off}


def test_helm_finds_nothing_wrong(helm: Command) -> None:
    assert "0 chart(s) failed" in helm("lint", str(CHART), "--strict")


def test_rules_are_bound_per_namespace_when_namespaces_are_given(helm: Command) -> None:
    documents = rendered(helm, "sys", "--set", "watchNamespaces={a,b}")
    assert {d["metadata"]["namespace"] for d in documents if d["kind"] == "Role"} == {"a", "b", "sys"}
    own = one(documents, "ClusterRole", "sys-rel-mambaserve")
    assert {resource for rule in own["rules"] for resource in rule["resources"]} == {"nodes"}
    nothing = ("--set", "rbac.readNodes=false", "--set", "crds.enabled=false")
    without = rendered(helm, "sys", "--set", "watchNamespaces={a}", *nothing)
    assert not {"ClusterRole", "ClusterRoleBinding"} & {document["kind"] for document in without}


def test_an_operator_of_the_whole_cluster_has_the_rules_of_a_namespace_and_watches_crds(
    helm: Command,
) -> None:
    """Which rules these are, `test_chart_operator` shows for one namespace."""
    whole = one(rendered(helm, "sys"), "ClusterRole", "sys-rel-mambaserve")["rules"]
    single = rendered(helm, "sys", "--set", "watchNamespaces={a}")
    beside = [{"customresourcedefinitions"} == {*rule["resources"]} for rule in whole]
    assert beside.count(True) == 1
    others = [rule for rule, crds in zip(whole, beside, strict=True) if not crds]
    nodes = one(single, "ClusterRole", "sys-rel-mambaserve")["rules"]
    assert others == [*nodes, *one(single, "Role", "rel-mambaserve")["rules"]]


def test_no_rule_has_a_wildcard(helm: Command) -> None:
    for document in rendered(helm, "sys"):
        for rule in document.get("rules", []) if document["kind"] in {"Role", "ClusterRole"} else []:
            assert "*" not in rule["resources"] + rule["verbs"] + rule["apiGroups"]


class Installed(NamedTuple):
    """A release that serves its own namespace alone."""

    namespace: str
    account: str
    """The API server's name of the operator's account."""


def install(helm: Command, namespace: str) -> Installed:
    helm("install", "rel", str(CHART), "-n", namespace, "--set", f"watchNamespaces={{{namespace}}}")
    return Installed(namespace, f"system:serviceaccount:{namespace}:rel-mambaserve")


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane, helm: Command) -> Installed:
    """Return the release of the tests that change nothing of it."""
    return install(helm, control_plane.create_namespace())


ALLOWED = [
    (verb, resource)
    for verb in ("list", "watch", "create", "patch", "delete")
    for resource in (
        "deployments.apps", "services", "configmaps", "serviceaccounts",
        "poddisruptionbudgets.policy",
        "networkpolicies.networking.k8s.io", "persistentvolumeclaims", "jobs.batch",
    )
    # What was downloaded outlives what asked for it.
    if (verb, resource) != ("delete", "persistentvolumeclaims")
] + [
    # Those of engines that are to go are marked.
    ("patch", "pods"),
] + [
    ("create", "secrets"),
    ("get", "mambadeployments.serving.mambaserve.io"), ("watch", "mambadeployments.serving.mambaserve.io"),
    ("patch", "mambadeployments.serving.mambaserve.io/status"),
    ("create", "events"), ("get", "events"), ("patch", "events"),
    ("create", "leases.coordination.k8s.io"),
    ("watch", "endpointslices.discovery.k8s.io"), ("watch", "pods"),
    ("list", "nodes"),
]  # fmt: skip
REFUSED = [
    ("get", "secrets"), ("list", "secrets"), ("watch", "secrets"), ("patch", "secrets"),
    ("delete", "secrets"),
    # Those of schedulers, controllers and nodes.
    ("update", "leases.coordination.k8s.io"), ("get", "leases.coordination.k8s.io"),
    # What is there is found by lists.
    ("get", "deployments.apps"), ("get", "configmaps"), ("get", "jobs.batch"), ("get", "pods"),
    ("create", "pods"), ("create", "pods/exec"), ("delete", "mambadeployments.serving.mambaserve.io"),
    ("patch", "mambadeployments.serving.mambaserve.io"), ("delete", "pods"), ("update", "pods"),
    ("create", "clusterroles.rbac.authorization.k8s.io"), ("delete", "nodes"), ("patch", "nodes"),
    ("delete", "customresourcedefinitions.apiextensions.k8s.io"), ("delete", "namespaces"),
    ("escalate", "roles.rbac.authorization.k8s.io"), ("bind", "roles.rbac.authorization.k8s.io"),
    ("impersonate", "serviceaccounts"),
]  # fmt: skip


def test_the_operator_may_do_its_work_and_nothing_else(
    control_plane: ControlPlane, installed: Installed
) -> None:
    namespace, account = installed
    lacking = [pair for pair in ALLOWED if not control_plane.may(account, *pair, namespace)]
    assert lacking == []
    excess = [pair for pair in REFUSED if control_plane.may(account, *pair, namespace)]
    assert excess == []


def test_the_operator_has_no_say_in_other_namespaces(
    control_plane: ControlPlane, installed: Installed
) -> None:
    assert not control_plane.may(installed.account, "get", "secrets", "default")
    assert not control_plane.may(installed.account, "create", "deployments.apps", "default")
    assert not control_plane.may(
        installed.account, "get", "mambadeployments.serving.mambaserve.io", "default"
    )


def role(namespace: str, *rules: dict[str, list[str]]) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "gateway", "namespace": namespace},
            "rules": list(rules),
        }
    )


def test_the_operator_can_give_a_gateway_what_it_reads_and_not_more(
    control_plane: ControlPlane, installed: Installed
) -> None:
    namespace, account = installed
    reads = {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["list", "watch"],
    }
    wakes = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": ["x-wake"],
        "verbs": ["patch"],
    }
    control_plane.kubectl(
        "apply", "--server-side", "-f", "-", f"--as={account}", stdin=role(namespace, reads, wakes)
    )
    executes = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}
    with pytest.raises(CommandFailed, match="attempting to grant RBAC permissions not currently held"):
        control_plane.kubectl(
            "apply", "--server-side", "-f", "-", f"--as={account}", stdin=role(namespace, reads, executes)
        )


@pytest.mark.slow
def test_uninstalling_keeps_the_crd_and_the_objects_of_the_users(
    control_plane: ControlPlane, helm: Command, namespace: str
) -> None:
    install(helm, namespace)
    quick = (CHART.parents[1] / "examples/01-quick-start/mamba.yaml").read_text()
    control_plane.apply(quick, namespace)
    helm("upgrade", "rel", str(CHART), "-n", namespace, "--reuse-values", "--set", "operator.logLevel=debug")
    helm("uninstall", "rel", "-n", namespace)
    assert control_plane.get("mdep", "quick-start", namespace) is not None
    assert control_plane.get("deployment", "rel-mambaserve", namespace) is None


@pytest.mark.slow
def test_a_second_release_needs_no_word_about_the_crd_and_leaves_it_to_the_first(
    plane: ControlPlane, helm: Command, namespace: str
) -> None:
    other, crd = plane.create_namespace("second"), f"crd/{names.CRD_NAME}"
    # As if the first release had made it: other tests of this cluster need it before and after.
    marks = ["meta.helm.sh/release-name=first", f"meta.helm.sh/release-namespace={namespace}"]
    plane.kubectl("annotate", "--overwrite", crd, *marks)
    plane.kubectl("label", "--overwrite", crd, "app.kubernetes.io/managed-by=Helm")

    def brings_it(release: str, where: str) -> bool:
        return "kind: CustomResourceDefinition" in helm("get", "manifest", release, "-n", where)

    def install(release: str, where: str) -> str:
        return helm("install", release, str(CHART), "-n", where, "--set", f"watchNamespaces={{{where}}}")

    first, second = install("first", namespace), install("second", other)
    helm("upgrade", "second", str(CHART), "-n", other, "--reuse-values")

    assert (brings_it("first", namespace), brings_it("second", other)) == (True, False)
    assert "NOTE: the CRD" not in first
    assert "NOTE: the CRD" in second
    assert f"release first in {namespace}" in second
    assert plane.get("deployment", "second-mambaserve", other) is not None
    helm("uninstall", "second", "-n", other)
    assert plane.get("crd", names.CRD_NAME) is not None


def test_the_notes_say_what_to_do_next_and_warn_first(
    helm: Command, namespace: str, control_plane: ControlPlane
) -> None:
    notes = helm(
        "install", "rel", str(CHART), "-n", namespace, "--dry-run=server",
        "--set", "crds.keep=false", "--set", f"watchNamespaces={{{namespace}}}",
    )  # fmt: skip
    notes = notes[notes.index("NOTES:") :]
    assert notes.index("WARNING: crds.keep is false") < notes.index(
        "kubectl apply -f examples/01-quick-start"
    )
    assert f"serves the namespaces {namespace}" in notes


@pytest.mark.parametrize(
    ("role", "allowed"), [("view", {"get", "list", "watch"}), ("edit", {"get", "list", "create", "delete"})]
)
def test_whoever_may_view_or_edit_a_namespace_may_do_so_with_its_deployments(
    control_plane: ControlPlane, installed: Installed, role: str, allowed: set[str]
) -> None:
    namespace = installed.namespace
    user = f"{role}-{namespace}"
    control_plane.kubectl(
        "create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}", "-n", namespace
    )
    deployments = "mambadeployments.serving.mambaserve.io"

    def held() -> set[str]:
        return {verb for verb in allowed if control_plane.may(user, verb, deployments, namespace)}

    wait_until(lambda: held() == allowed, "the aggregation")
    if role == "view":
        assert not control_plane.may(user, "patch", deployments, namespace)


def test_the_default_account_is_never_given_the_operator_s_rights(helm: Command, namespace: str) -> None:
    with pytest.raises(CommandFailed, match=r"serviceAccount\.name"):
        helm("template", "rel", str(CHART), "-n", namespace, "--set", "serviceAccount.create=false")
    named = rendered(
        helm, namespace, "--set", "serviceAccount.create=false", "--set", "serviceAccount.name=ours"
    )
    accounts = {
        subject["name"] for one in named if one["kind"].endswith("Binding") for subject in one["subjects"]
    }
    assert accounts == {"ours"}
