"""Custom resource in, manifests out: golden files, and the promises every rendered child keeps.

The minimal spec is recorded whole, fuller ones as what they change of it.

`MAMBASERVE_GOLDEN=write pytest tests/unit/operator/test_render.py` writes the golden files anew.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.documents import load_documents
from mamba_operator.objects.manifest import Manifest, metadata, sealed
from mamba_operator.render import render
from mamba_operator.render.context import OF_THIS_VERSION, Context, DefaultImages, Scraper, operator_pods
from mamba_operator.render.loader import loader_job
from mamba_settings.engine_settings import EngineSettings
from model_loads import loaded
from operator_objects import UID, fitting_owner, nano_config, owner, planned

GOLDEN = Path(__file__).parents[2] / "golden" / "operator"
CASES = sorted(path.name.removesuffix(".in.yaml") for path in GOLDEN.glob("*.in.yaml"))


def stored(text: str, source: str) -> MambaDeployment:
    """Return the object as the API server gives it."""
    [found] = load_documents(text, source)
    identity = {"uid": UID, "namespace": found.metadata.namespace or "models"}
    return found.model_copy(update={"metadata": found.metadata.model_copy(update=identity)})


def rendered(of: MambaDeployment, images: DefaultImages = OF_THIS_VERSION) -> list[Manifest]:
    auth = of.spec.gateway.auth is not None
    context = Context(of, of.spec.replicas, None, images=images, key_presented=auth, key_required=auth)
    loader = [sealed(loader_job(context, "0" * 16))] if of.spec.model.cache is not None else []
    return [*render(context), *loader]


def flat(value: Any, path: str) -> dict[str, Any]:
    """Return every leaf under its path; items of a list by their name where they have one."""
    if isinstance(value, dict) and value:
        return {key: leaf for name in value for key, leaf in flat(value[name], f"{path}.{name}").items()}
    if isinstance(value, list) and value:
        named = all(isinstance(each, dict) and "name" in each for each in value)
        keys = [each["name"] for each in value] if named else range(len(value))
        return {
            name: leaf
            for key, each in zip(keys, value, strict=True)
            for name, leaf in flat(each, f"{path}[{key}]").items()
        }
    if path.endswith(".engine.json"):
        return flat(json.loads(value), path)
    return {path: value}


def leaves(of: MambaDeployment) -> dict[str, Any]:
    """Return all children, leaf by leaf; hashes follow from the rest."""
    found: dict[str, Any] = {}
    for manifest in rendered(of):
        found |= flat(manifest, f"{manifest['kind']}/{manifest['metadata']['name']}")
    return {path: leaf for path, leaf in found.items() if not path.endswith(("-hash", "/revision"))}


def changes(case: str) -> str:
    """Return the changes of `case` to the children that the minimal spec would have under the same name."""
    given = stored((GOLDEN / f"{case}.in.yaml").read_text(), case)
    plain = stored((GOLDEN / "minimal.in.yaml").read_text(), case)
    after, before = leaves(given), leaves(plain.model_copy(update={"metadata": given.metadata}))
    lines = [f"- {path}: {json.dumps(leaf)}" for path, leaf in before.items() if path not in after]
    lines += [
        f"{'~' if path in before else '+'} {path}: {json.dumps(leaf)}"
        for path, leaf in after.items()
        if path not in before or before[path] != leaf
    ]
    return "".join(f"{line}\n" for line in sorted(lines, key=lambda line: (line[2:], line[0])))


def as_recorded(file: Path, made: str) -> None:
    if os.environ.get("MAMBASERVE_GOLDEN") == "write":
        file.write_text(made)
    assert made == file.read_text(), "if this is meant: MAMBASERVE_GOLDEN=write"


def test_the_minimal_spec_renders_as_recorded() -> None:
    given = stored((GOLDEN / "minimal.in.yaml").read_text(), "minimal")
    as_recorded(GOLDEN / "minimal.out.yaml", yaml.safe_dump_all(rendered(given), sort_keys=True))


@pytest.mark.parametrize("case", [case for case in CASES if case != "minimal"])
def test_a_fuller_spec_changes_what_is_recorded_and_nothing_else(case: str) -> None:
    as_recorded(GOLDEN / f"{case}.changes", changes(case))


def test_there_are_golden_files() -> None:
    assert len(CASES) >= 4


def children(of: Manifest) -> dict[tuple[str, str], Manifest]:
    return {
        (one.manifest["kind"], one.manifest["metadata"]["name"]): one.manifest for one in planned(of).applies
    }


def engine_pod(**spec: Any) -> Manifest:
    found: Manifest = children(owner(**spec))["Deployment", "nano-engine"]["spec"]["template"]
    return found


def engine(**spec: Any) -> Manifest:
    found: Manifest = engine_pod(**spec)["spec"]["containers"][0]
    return found


def argument(container: Manifest, name: str) -> str | None:
    arguments = container["args"]
    return arguments[arguments.index(name) + 1] if name in arguments else None


def document(made: dict[tuple[str, str], Manifest]) -> dict[str, Any]:
    """Return the settings that engines read when they start."""
    found: dict[str, Any] = json.loads(made["ConfigMap", "nano-engine"]["data"]["engine.json"])
    return found


def test_the_engine_understands_every_argument_and_setting_it_is_given() -> None:
    of = owner(
        model={"uri": "builtin://tiny-recall", "servedName": "x", "maxModelLen": 4096},
        engine={
            "maxRunningRequests": 4,
            "overlapSchedule": False,
            "batchInvariant": True,
            "dtype": "float32",
        },
        memory={"arena": "1Gi", "deviceMemory": "8Gi"},
        resources={"gpus": 0},
    )
    made = children(of)
    settings = EngineSettings(**document(made))
    container = made["Deployment", "nano-engine"]["spec"]["template"]["spec"]["containers"][0]

    assert container["args"][0] == "serve"
    assert (settings.served_model_name, settings.max_model_len, settings.dtype) == ("x", 4096, "float32")
    assert (settings.overlap, settings.batch_invariant, settings.device) == (False, True, "cpu")
    assert (settings.arena_bytes, settings.device_memory) == (1 << 30, 8 << 30)
    assert (settings.admin_port, settings.port) == (names.ADMIN_PORT, names.HTTP_PORT)


def test_the_admin_port_listens_on_the_pods_address_with_the_deployments_token() -> None:
    pod = engine_pod()["spec"]
    container = pod["containers"][0]

    file = document(children(owner()))["admin_token_file"]
    [mount] = [one for one in container["volumeMounts"] if file.startswith(one["mountPath"] + "/")]
    [volume] = [one for one in pod["volumes"] if one["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == "nano-admin-11111111"
    assert mount["readOnly"]
    fields = {
        one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"]
        for one in container["env"]
        if "valueFrom" in one
    }
    assert fields["MAMBASERVE_ADMIN_HOST"] == "status.podIP"


@pytest.mark.parametrize(("gpus", "expected"), [(0, None), (1, "1")])
def test_gpus_are_asked_for_only_when_there_are_some(gpus: int, expected: str | None) -> None:
    container = engine(resources={"gpus": gpus, "gpuResource": "amd.com/gpu", "cpu": "2", "memory": "4Gi"})

    assert container["resources"]["limits"].get("amd.com/gpu") == expected
    assert container["resources"]["requests"].get("amd.com/gpu") == expected
    assert container["resources"]["limits"]["memory"] == "4Gi"
    assert "cpu" not in container["resources"]["limits"]
    made = children(owner(resources={"gpus": gpus}))
    assert document(made)["device"] == ("cuda" if gpus else "cpu")


THEIRS = {"key": "team", "operator": "Exists"}


def tainted(key: str) -> dict[str, str]:
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("resources", "said", "expected"),
    [
        ({"gpus": 1}, [], [tainted("nvidia.com/gpu")]),
        ({"gpus": 1, "gpuResource": "amd.com/gpu"}, [], [tainted("amd.com/gpu")]),
        (
            {"gpus": 1, "gpuResource": "nvidia.com/mig-1g.10gb"},
            [],
            [tainted("nvidia.com/gpu"), tainted("nvidia.com/mig-1g.10gb")],
        ),
        ({"gpus": 1}, [THEIRS], [THEIRS, tainted("nvidia.com/gpu")]),
        ({"gpus": 1}, [tainted("nvidia.com/gpu")], [tainted("nvidia.com/gpu")]),
        ({"gpus": 0}, [THEIRS], [THEIRS]),
        ({"gpus": 0}, [], None),
    ],
    ids=["a GPU", "of another maker", "a slice", "with others", "said already", "none, with others", "none"],
)
def test_engines_tolerate_the_taints_of_the_gpus_that_they_ask_for(
    resources: dict[str, Any], said: list[dict[str, str]], expected: list[dict[str, str]] | None
) -> None:
    made = engine_pod(resources=resources, scheduling={"tolerations": said})["spec"]

    assert made.get("tolerations") == expected


def test_a_gateway_requests_the_memory_it_is_told_to() -> None:
    def requested(**spec: Any) -> dict[str, str]:
        made = children(owner(**spec))["Deployment", "nano"]["spec"]["template"]["spec"]["containers"][0]
        assert "limits" not in made["resources"]
        found: dict[str, str] = made["resources"]["requests"]
        return found

    more = {"name": "gateway", "resources": {"requests": {"memory": "1Gi"}}}
    told = requested(gateway={"podTemplate": {"spec": {"containers": [more]}}})
    assert told == {**requested(), "memory": "1Gi"}


def test_a_claim_is_mounted_where_the_engine_looks_for_it() -> None:
    pod = engine_pod(model={"uri": "pvc://weights/nano/v2"})["spec"]

    [volume] = [one for one in pod["volumes"] if "persistentVolumeClaim" in one]
    [mount] = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == volume["name"]]
    assert volume["persistentVolumeClaim"]["claimName"] == "weights"
    assert (mount["mountPath"], mount["readOnly"]) == ("/models/weights", True)
    assert (
        document(children(owner(model={"uri": "pvc://weights/nano/v2"})))["model"] == "pvc://weights/nano/v2"
    )


def test_a_mounted_image_is_read_where_it_is_mounted_and_nothing_is_downloaded() -> None:
    model = {
        "uri": "oci://registry.example.com/models/nano:v3",
        "imageVolume": {"path": "/models", "pullPolicy": "Always"},
        "secretRef": {"name": "registry"},
    }
    pod = engine_pod(model=model)["spec"]
    [volume] = [one for one in pod["volumes"] if "image" in one]
    [mount] = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == volume["name"]]
    image = {"reference": "registry.example.com/models/nano:v3", "pullPolicy": "Always"}
    assert (volume["image"], mount["readOnly"]) == (image, True)
    settings = document(children(owner(model=model)))
    assert settings["model"] == f"file://{mount['mountPath']}/models"
    assert settings["served_model_name"] == "nano"
    assert {"name": "registry"} in pod["imagePullSecrets"]
    assert "cache" not in {one["name"] for one in pod["volumes"]}
    assert "registry" not in {
        one.get("valueFrom", {}).get("secretKeyRef", {}).get("name") for one in pod["containers"][0]["env"]
    }
    root = document(children(owner(model={**model, "imageVolume": {}})))
    assert root["model"] == f"file://{mount['mountPath']}"


def test_downloads_go_to_scratch_or_to_the_cache_that_was_asked_for() -> None:
    plain = engine_pod(model={"uri": "hf://org/model"})["spec"]
    of = owner(model={"uri": "hf://org/model", "cache": {"size": "50Gi"}})

    assert {"name": "cache", "emptyDir": {}} in plain["volumes"]
    claim = children(of)["PersistentVolumeClaim", "nano-model"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "50Gi"
    assert ("PersistentVolumeClaim", "nano-model") not in children(owner(model={"uri": "hf://org/model"}))


def test_weights_that_go_to_the_nodes_disk_are_asked_for_there() -> None:
    hub = {"uri": "hf://org/model", "config": nano_config()}
    planned = {"memory": {"deviceMemory": "80Gi"}}

    def requests(**spec: Any) -> dict[str, str]:
        found: dict[str, str] = engine_pod(**spec)["spec"]["containers"][0]["resources"].get("requests", {})
        return found

    # 17.8 GB of weights, and what a download needs beside them.
    assert requests(model=hub, **planned)["ephemeral-storage"] == "18Gi"
    cached = {**hub, "cache": {"size": "50Gi"}}
    assert "ephemeral-storage" not in str(loaded(owner(model=cached, **planned)))
    assert "ephemeral-storage" not in requests(model={"uri": "pvc://a/b", "config": hub["config"]}, **planned)


def test_an_object_that_names_no_image_gets_the_operators_and_its_pull_secrets() -> None:
    images = DefaultImages("mirror/engine:1", "mirror/gateway:2", ("pull", "other"))
    deployments = {
        metadata(one)["name"]: one["spec"]["template"]["spec"]
        for one in rendered(stored((GOLDEN / "minimal.in.yaml").read_text(), "minimal"), images)
        if one["kind"] == "Deployment"
    }

    used = {name.rpartition("-")[2]: pod["containers"][0]["image"] for name, pod in deployments.items()}
    assert used == {"engine": "mirror/engine:1", "tiny": "mirror/gateway:2"}
    assert [pod["imagePullSecrets"] for pod in deployments.values()] == [
        [{"name": "pull"}, {"name": "other"}]
    ] * 2


def test_a_draining_engine_gets_the_time_it_was_promised() -> None:
    made = children(owner(rollout={"drainTimeout": "10m"}))
    pod = made["Deployment", "nano-engine"]["spec"]["template"]["spec"]

    assert pod["terminationGracePeriodSeconds"] >= 600
    assert document(made)["drain_timeout"] == 600
    assert document(made)["drain_quiet"] > 0, "gateways hear later than it does that it goes"


def test_loading_may_take_as_long_as_the_roll_out() -> None:
    probe = engine(rollout={"progressDeadline": "1h"})["startupProbe"]

    assert probe["periodSeconds"] * probe["failureThreshold"] >= 3600
    assert probe["httpGet"]["path"] == "/readyz"


def test_a_gateway_that_starts_beside_all_other_pods_of_its_node_is_not_killed_for_that() -> None:
    pod = children(fitting_owner())["Deployment", "nano"]["spec"]["template"]["spec"]
    probe = pod["containers"][0]["startupProbe"]

    assert probe["periodSeconds"] * probe["failureThreshold"] >= 300
    assert probe["httpGet"]["path"] == "/livez"


@pytest.mark.parametrize("name", ["nano", "nano-engine"])
def test_pods_keep_the_restricted_pod_security_standard(name: str) -> None:
    pod = children(owner())["Deployment", name]["spec"]["template"]["spec"]

    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        security = container["securityContext"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"]


def test_only_the_gateway_holds_a_token_of_the_cluster() -> None:
    made = children(owner())

    def token(name: str) -> bool:
        return bool(made["Deployment", name]["spec"]["template"]["spec"]["automountServiceAccountToken"])

    assert (token("nano"), token("nano-engine")) == (True, False)


def test_the_users_pod_template_wins_and_the_selector_survives_it() -> None:
    template = {
        "metadata": {"labels": {"team": "search", names.LABEL_COMPONENT: "mine"}},
        "spec": {
            "containers": [
                {"name": "engine", "command": ["/opt/python", "-m", "mamba_cli"], "imagePullPolicy": "Never"},
                {"name": "sidecar", "image": "proxy"},
            ],
            "hostNetwork": True,
        },
    }
    deployment = children(owner(podTemplate=template))["Deployment", "nano-engine"]["spec"]

    labels = metadata(deployment["template"])["labels"]
    assert labels["team"] == "search"
    assert deployment["selector"]["matchLabels"].items() <= labels.items()
    assert deployment["template"]["spec"]["hostNetwork"]
    first, second = deployment["template"]["spec"]["containers"]
    assert first["command"] == ["/opt/python", "-m", "mamba_cli"]
    assert first["args"][0] == "serve"
    assert second["name"] == "sidecar"


def test_the_users_environment_wins_over_ours_and_extra_arguments_come_last() -> None:
    container = engine(engine={"env": [{"name": "HF_HOME", "value": "/mine"}], "extraArgs": ["--seed", "7"]})

    assert [one for one in container["env"] if one["name"] == "HF_HOME"] == [
        {"name": "HF_HOME", "value": "/mine"}
    ]
    assert container["args"][-2:] == ["--seed", "7"]


def test_the_gateway_is_reached_on_port_80_and_asks_for_its_own_deployment() -> None:
    made = children(owner())

    [port] = made["Service", "nano"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (80, "http")
    [container] = made["Deployment", "nano"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][:5] == ["gateway", "--deployment", "nano", "--namespace", "models"]
    assert {"name": "http", "containerPort": names.HTTP_PORT, "protocol": "TCP"} in container["ports"]


def test_secrets_reach_the_gateway_by_reference_only() -> None:
    of = owner(gateway={"auth": {"secretRef": {"name": "keys"}}})
    pod = children(of)["Deployment", "nano"]["spec"]["template"]["spec"]

    container = pod["containers"][0]
    assert argument(container, "--api-key-file") == "/run/mambaserve/api-keys/api-keys"
    assert {"name": "api-keys", "secret": {"secretName": "keys", "defaultMode": 0o440}} in pod["volumes"]


def test_the_gateway_may_read_endpoints_and_ask_for_an_engine_and_nothing_more() -> None:
    rules = children(owner())["Role", "nano"]["rules"]

    verbs = {(rule["resources"][0], *rule.get("resourceNames", [])): rule["verbs"] for rule in rules}
    assert verbs == {
        ("endpointslices",): ["list", "watch"],
        ("configmaps", "nano-wake"): ["patch"],
    }


def test_the_admin_port_is_open_to_the_operator_alone() -> None:
    ingress = children(owner())["NetworkPolicy", "nano-engine"]["spec"]["ingress"]

    [admin] = [rule for rule in ingress if rule["ports"][0]["port"] == "admin"]
    [peer] = admin["from"]
    assert peer["podSelector"]["matchLabels"][names.LABEL_COMPONENT] == "operator"


def test_a_pod_that_calls_itself_the_operator_in_another_namespace_is_not_let_in() -> None:
    context = Context(MambaDeployment.model_validate(owner()), 1, None, operator=operator_pods("system"))
    [policy] = [one for one in render(context) if one["kind"] == "NetworkPolicy"]

    for rule in policy["spec"]["ingress"][:2]:
        [peer] = [one for one in rule["from"] if "operator" in json.dumps(one)]
        assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "system"}}
    assert policy["spec"]["ingress"][0]["from"].count(operator_pods("system").peer()) == 1
    # One outside of the cluster has no namespace, and no pod to be taken for.
    assert operator_pods(None).peer()["namespaceSelector"] == {}


def test_scrapers_reach_the_metrics_and_nothing_else() -> None:
    scraper = Scraper(namespaces={"team": "sre"}, pods={"app": "agent"})
    context = Context(MambaDeployment.model_validate(owner()), 1, None, scrapers=(scraper,))
    [policy] = [one for one in render(context) if one["kind"] == "NetworkPolicy"]

    served, *others = policy["spec"]["ingress"]
    assert scraper.peer() in served["from"]
    assert all(scraper.peer() not in rule["from"] for rule in others)
    assert "prometheus" not in json.dumps(policy)


def test_a_restart_annotation_rolls_both_deployments() -> None:
    def templates(of: Manifest) -> list[Manifest]:
        made = children(of)
        return [made["Deployment", name]["spec"]["template"] for name in ("nano", "nano-engine")]

    before = templates(owner())
    after = templates(owner(metadata={"annotations": {names.ANNOTATION_RESTART: "2026-01-02"}}))

    assert all(old != new for old, new in zip(before, after, strict=True))


def test_a_change_of_the_strategy_rolls_the_engines() -> None:
    def revision(strategy: str) -> str:
        template = children(fitting_owner(stateCache={"strategy": strategy}))["Deployment", "nano-engine"][
            "spec"
        ]["template"]
        return str(template["metadata"]["labels"][names.LABEL_REVISION])

    assert revision("NoBuffer") != revision("ExtraBuffer")


def test_children_carry_a_hash_of_themselves_that_moves_with_them() -> None:
    def hashes(**spec: Any) -> dict[tuple[str, str], str]:
        return {
            key: child["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH]
            for key, child in children(owner(**spec)).items()
            if key[0] != "Secret"
        }

    first, same, other = hashes(), hashes(), hashes(gateway={"replicas": 2})

    assert first == same
    assert {key for key in first if first[key] != other[key]} == {("Deployment", "nano")}


def test_several_gateways_are_kept_apart_and_a_drain_takes_one_at_a_time() -> None:
    def made(replicas: int) -> dict[tuple[str, str], Manifest]:
        of = fitting_owner(gateway={"replicas": replicas})
        found = [one.manifest for one in planned(of).applies]
        return {(one["kind"], one["metadata"]["name"]): one for one in found}

    one, two = made(1), made(2)

    budget = two["PodDisruptionBudget", "nano"]["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert budget["selector"] == two["Deployment", "nano"]["spec"]["selector"]
    pod = two["Deployment", "nano"]["spec"]["template"]["spec"]
    [spread] = pod["topologySpreadConstraints"]
    assert spread["labelSelector"] == budget["selector"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway", "one node serves, too"
    assert ("PodDisruptionBudget", "nano") not in one
    assert "topologySpreadConstraints" not in one["Deployment", "nano"]["spec"]["template"]["spec"]


def budgets_of_engines(replicas: int) -> list[Manifest]:
    made = [one.manifest for one in planned(fitting_owner(replicas=replicas)).applies]
    return [one for one in made if one["kind"] == "PodDisruptionBudget"]


def test_an_engine_that_is_not_ready_does_not_hold_up_the_drain_of_its_node() -> None:
    [budget] = budgets_of_engines(2)

    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert budget["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_single_engine_has_no_budget_which_would_keep_nothing_back(replicas: int) -> None:
    assert budgets_of_engines(replicas) == []


def test_engines_that_cache_read_states_from_each_other_and_from_nobody_else() -> None:
    rules = children(owner())["NetworkPolicy", "nano-engine"]["spec"]["ingress"]
    [transfer] = [rule for rule in rules if rule["ports"][0]["port"] == "transfer"]

    assert [
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in transfer["from"]
    ] == ["engine"]
    assert document(children(owner()))["warm_peers"] == "nano-engine.models.svc:8002"
    without = children(owner(stateCache={"prefixCaching": False}))
    assert "warm_peers" not in document(without)
    assert all(
        rule["ports"][0]["port"] != "transfer"
        for rule in without["NetworkPolicy", "nano-engine"]["spec"]["ingress"]
    )
