"""A MambaGateway: which model has which name, what its pods may do, and what one pass over it changes."""

from pathlib import Path
from typing import Any

import pytest

from fake_cluster import FakeCluster
from mamba_api.v1alpha1.mamba_gateway import MambaGateway
from mamba_edge.usage.prices import Prices
from mamba_edge.usage.usage_sum import UsageSum
from mamba_gateway.errors import ModelForbidden
from mamba_gateway.models.model_table import ModelTable
from mamba_gateway.models.models_file import ModelsFile, model_settings
from mamba_gateway.settings import GatewaySettings
from mamba_operator.gateway_reconcile import GatewayReconciler
from mamba_operator.objects.errors import NameTaken
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.manifest import Key, Manifest, Ref, name_of
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.pass_events import EventRecorder
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.reconcile import PassSettings
from mamba_operator.render.context import DefaultImages
from mamba_operator.shared_gateway.candidates import model_state
from mamba_operator.shared_gateway.plan import GatewayPlan, plan_gateway
from mamba_operator.shared_gateway.status import models_resolved
from operator_objects import NOW, owner

KEY = Key("models", "team", "MambaGateway")


def gateway(**spec: Any) -> Manifest:
    raw = {"metadata": {"name": "team", "namespace": "models"}, "spec": {"selector": {}, **spec}}
    stored = MambaGateway.model_validate(raw).manifest()
    stored["metadata"] |= {"uid": "team-uid", "generation": 1, "resourceVersion": "5"}
    return stored


def served(name: str, age: int = 0, served_name: str | None = None, **spec: Any) -> Manifest:
    """Return a MambaDeployment; the smaller `age`, the older it is."""
    model = {"uri": "builtin://tiny-recall", **({"servedName": served_name} if served_name else {})}
    metadata = {"uid": f"{name}-uid-0", "creationTimestamp": f"2026-01-01T00:{age:02}:00Z", "labels": {}}
    return owner(name, metadata=metadata, model=model, **spec)


def planned(of: Manifest, *deployments: Manifest, children: tuple[Manifest, ...] = ()) -> GatewayPlan:
    known = {Ref(child["kind"], name_of(child)): child for child in children}
    return plan_gateway(Snapshot(KEY, of, known), deployments, images=DefaultImages())


def names(plan: GatewayPlan) -> dict[str, tuple[str, ...]]:
    """Return the deployment and the further names of each model."""
    assert plan.resolution is not None
    entries = plan.resolution.document.models
    return {entry.name: (entry.settings["deployment"], *entry.aliases) for entry in entries}


def children(plan: GatewayPlan) -> dict[str, Manifest]:
    return {apply.manifest["kind"]: apply.manifest for apply in plan.changes.applies}


def problem(plan: GatewayPlan) -> tuple[str, str]:
    assert plan.resolution is not None
    _, reason, message = models_resolved(plan.resolution)
    return reason, message


def test_an_alias_wins_over_a_served_name_and_the_older_over_the_younger() -> None:
    objects = served("young", 9, "chat"), served("old", 1, "chat"), served("third", 5, "gpt-4o")
    spec = {"aliases": [{"model": "chat", "names": ["gpt-4o"]}]}

    one, other = planned(gateway(**spec), *objects), planned(gateway(**spec), *reversed(objects))

    assert names(one) == {
        "chat": ("old", "old", "gpt-4o"), "young": ("young",), "third": ("third",),
    }  # fmt: skip
    assert one.resolution == other.resolution
    reason, message = problem(one)
    assert reason == "NamesConflict"
    assert "'chat' is the served name of old and of young: old has it" in message
    assert "'gpt-4o' is an alias of 'chat' in the spec, and the served name of third" in message


def test_names_that_no_model_has_are_reported_and_count_as_absent() -> None:
    spec = {
        "default": "gone",
        "aliases": [{"model": "lost", "names": ["a"]}],
        "fallbacks": [{"model": "chat", "to": ["gone", "small", "chat-object"]}],
        "auth": {"secretRef": {"name": "keys"}},
        "keys": [{"name": "web", "models": ["small", "never"]}, {"name": "all", "models": ["*"]}],
    }

    plan = planned(gateway(**spec), served("chat-object", 1, "chat"), served("small", 2))

    assert plan.resolution is not None
    document = plan.resolution.document
    assert (document.default, document.models[0].fallbacks) == (None, ("small",))
    assert [(access.key, access.models) for access in document.access or ()] == [
        ("web", ("small",)), ("all", ("*",)),
    ]  # fmt: skip
    assert plan.resolution.unknown == ("aliases: lost", "fallbacks: gone", "default: gone", "keys: never")
    assert problem(plan)[0] == "NamesUnknown"


def test_the_youngest_beyond_the_bound_and_those_without_the_label_are_not_served() -> None:
    many = [served(f"m{number}", number % 60) for number in range(66)]
    plan = planned(gateway(), *many)
    assert plan.resolution is not None
    assert (len(plan.resolution.models), plan.resolution.left_out) == (64, ("m58", "m59"))
    assert problem(plan)[0] == "TooManyModels"
    many[0]["metadata"]["labels"] = {"team": "a"}
    many[1]["metadata"] |= {"labels": {"team": "a"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    chosen = {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}
    assert names(planned(gateway(selector=chosen), *many)) == {"m0": ("m0",)}
    assert problem(planned(gateway(), served("p", mode="Plan")))[0] == "NoModels"


def test_a_deployment_that_an_edit_has_broken_keeps_its_entry() -> None:
    before = planned(gateway(), served("chat", 1, "v1/chat", gateway={"limits": {"maxQueued": 7}}))
    broken = served("chat", 1)
    broken["spec"]["engine"]["pageSize"] = "many"
    file = children(before)["ConfigMap"]

    after = planned(gateway(), broken, children=(file,))

    assert after.resolution is not None
    assert before.resolution is not None
    assert after.resolution.document == before.resolution.document
    assert names(planned(gateway(), broken)) == {}


def test_the_file_has_limits_keys_and_addresses_that_the_gateway_takes(tmp_path: Path) -> None:
    limits = {"maxQueued": 9, "keys": [{"name": "web", "requestsPerMinute": 5}]}
    closed = served(
        "closed", 1, gateway={"auth": {"secretRef": {"name": "own"}}, "limits": limits},
        prefixIndex={"redis": {"secretRef": {"name": "cache"}}},
    )  # fmt: skip
    plan = planned(gateway(auth={"secretRef": {"name": "keys"}}), closed, served("open", 2))
    found = children(plan)

    pod = found["Deployment"]["spec"]["template"]["spec"]
    sources = {
        volume["name"]: [
            (source["secret"]["name"], source["secret"]["items"]) for source in volume["projected"]["sources"]
        ]
        for volume in pod["volumes"]
        if "projected" in volume
    }
    assert sources == {
        "engine-keys": [("closed-engine-key-closed-u", [{"key": "key", "path": "closed"}])],
        "redis": [("cache", [{"key": "url", "path": "closed"}])],
    }
    file = tmp_path / "models.json"
    file.write_text(found["ConfigMap"]["data"]["models.json"])
    keys = tmp_path / "keys"
    keys.write_text("sk web\n")
    base = GatewaySettings(models_file=str(file), namespace="models", api_key_file=str(keys))
    settings = {entry.name: model_settings(base, entry) for entry in ModelsFile(file).read().models}
    one = settings["closed"]
    assert (one.deployment, one.namespace, one.max_queue) == ("closed", "models", 9)
    assert one.backend_key_file == "/run/mambaserve/engine-keys/closed"
    assert one.redis_url_file == "/run/mambaserve/redis/closed"
    assert one.key_limit == ("web:requests=5,weight=1",)
    assert settings["open"].backend_key_file is None


ROUTE = {"parentRefs": [{"name": "p", "namespace": "n", "sectionName": "s"}], "hostnames": ["a.example.org"]}
REACHES: list[tuple[str, Any, Any]] = [
    ("auth.secretRef.name", "keys", {"secretName": "keys", "defaultMode": 0o440}),
    ("replicas", 17, 17),
    ("image", "mine:1", "mine:1"),
    ("resources.cpu", "3", "3"),
    ("resources.memory", "3Gi", "3Gi"),
    ("maxBodySize", "2Mi", str(2 << 20)),
    ("drainTimeout", "7s", "7"),
    ("corsOrigins", ["https://a.example.org"], "https://a.example.org"),
    ("usage.prices.deviceHour", 2.5, "2.5"),
    ("usage.prices.promptTokens", 0.25, "0.25"),
    ("usage.prices.resumedTokens", 0, "0.0"),
    ("redis.url", "redis://cache:6379/1", "redis://cache:6379/1"),
    ("redis.secretRef.name", "cache", {"secretKeyRef": {"name": "cache", "key": "url"}}),
    ("podTemplate", {"metadata": {"labels": {"a": "own label"}}}, "own label"),
    ("httpRoute", ROUTE, ROUTE["hostnames"]),
]


def values(part: Any) -> list[Any]:
    """Return every value inside a manifest, at all depths."""
    inner = list(part.values()) if isinstance(part, dict) else part if isinstance(part, list) else []
    return [*inner, *(value for each in inner for value in values(each))]


@pytest.mark.parametrize(("field", "value", "rendered"), REACHES, ids=[field for field, *_ in REACHES])
def test_a_field_reaches_the_children(field: str, value: Any, rendered: Any) -> None:
    spec: dict[str, Any] = {}
    *sections, last = field.split(".")
    at = spec
    for name in sections:
        at = at.setdefault(name, {})
    at[last] = value
    kind = "HTTPRoute" if field == "httpRoute" else "Deployment"

    with_field = children(planned(gateway(**spec), served("chat")))[kind]

    assert rendered in values(with_field["spec"])
    assert kind == "HTTPRoute" or rendered not in values(
        children(planned(gateway(), served("chat")))[kind]["spec"]
    )
    if kind == "HTTPRoute":
        assert with_field["spec"]["parentRefs"] == ROUTE["parentRefs"]


def test_the_ledger_of_the_address_has_its_own_days_readers_and_prices() -> None:
    own = {"auth": {"secretRef": {"name": "own"}}, "usage": {"prices": {"deviceHour": 9}}}
    usage = {"retentionDays": 7, "readers": ["finance"], "prices": {"currency": "EUR", "outputTokens": 0.6}}
    spec = {"auth": {"secretRef": {"name": "keys"}}, "usage": usage}
    made = children(planned(gateway(**spec), served("chat", gateway=own)))
    [container] = made["Deployment"]["spec"]["template"]["spec"]["containers"]
    variables = {each["name"].removeprefix("MAMBASERVE_").lower(): each["value"] for each in container["env"]}
    ledger = {name: value for name, value in variables.items() if name.startswith(("usage_", "price_"))}
    told = GatewaySettings(models_file="m", api_key_file="k", **ledger)
    assert (told.usage_days, told.usage_reader) == (7, ("finance",))
    assert told.prices == Prices("EUR", output_tokens=0.6)
    assert "price_" not in made["ConfigMap"]["data"]["models.json"]


def test_models_at_one_address_have_prices_of_their_own() -> None:
    every = {"deviceHour": 2.5, "promptTokens": 0.25, "resumedTokens": 0, "outputTokens": 1e-7}
    prices = {"currency": "EUR", "models": [{"model": "org/a b:c", **every}, {"model": "m", "deviceHour": 1}]}
    made = children(planned(gateway(usage={"prices": prices}), served("chat")))
    [container] = made["Deployment"]["spec"]["template"]["spec"]["containers"]
    variables = {each["name"].removeprefix("MAMBASERVE_").lower(): each["value"] for each in container["env"]}
    ledger = {name: value for name, value in variables.items() if name.startswith(("model_price", "price_"))}
    told = GatewaySettings(models_file="m", **ledger).prices
    assert not Prices(told.currency, told.device_hour).known
    assert told.of("org/a b:c") == Prices("EUR", 2.5, 0.25, 0.0, 1e-7)
    assert told.of("m") == Prices("EUR", 1.0)
    assert told.of("another").cost(UsageSum(1, 10**6, 0, 10**6, 10**15)) == 0


def test_the_redis_of_the_address_is_no_prefix_index_of_models_that_publish_none(tmp_path: Path) -> None:
    own = served("own", prefixIndex={"redis": {"url": "redis://own:6379"}})
    made = children(planned(gateway(redis={"url": "redis://shared:6379"}), own, served("team", 2)))
    [container] = made["Deployment"]["spec"]["template"]["spec"]["containers"]
    variables = {each["name"].removeprefix("MAMBASERVE_").lower(): each["value"] for each in container["env"]}
    (tmp_path / "models.json").write_text(made["ConfigMap"]["data"]["models.json"])
    shared = {name: variables[name] for name in ("redis_url", "prefix_index_scope")}
    base = GatewaySettings(models_file=str(tmp_path / "models.json"), **shared)
    # A MambaDeployment of the name of the gateway has another scope.
    assert (base.redis_url, base.index_scope) == ("redis://shared:6379", "models/team.gateway")
    entries = ModelsFile(tmp_path / "models.json").read().models
    settings = {entry.name: model_settings(base, entry) for entry in entries}
    assert {name: (one.redis_url, one.index_scope) for name, one in settings.items()} == {
        "own": ("redis://own:6379", "models/own"), "team": (None, "models/team"),
    }  # fmt: skip


def test_a_deployment_that_requires_keys_is_not_opened_by_a_gateway_without_keys() -> None:
    closed = served("closed", gateway={"auth": {"secretRef": {"name": "own"}}})
    plan = planned(gateway(), closed, served("open"))
    assert names(plan) == {"open": ("open",)}
    reason, message = problem(plan)
    assert reason == "KeysRequired"
    assert ": closed; set spec.auth" in message
    assert names(planned(gateway(auth={"secretRef": {"name": "keys"}}), closed)) == {"closed": ("closed",)}


def test_gateways_may_request_engines_of_their_models_alone() -> None:
    rules = children(planned(gateway(), served("chat"), served("other")))["Role"]["rules"]
    [patch] = [rule for rule in rules if "patch" in rule["verbs"]]
    assert patch["resourceNames"] == ["chat-wake", "other-wake"]
    # Without names a rule would hold for every ConfigMap.
    [only] = children(planned(gateway()))["Role"]["rules"]
    assert only["verbs"] == ["list", "watch"]
    assert "NetworkPolicy" not in children(planned(gateway()))


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ({}, "Starting"),
        ({"Available": ("True", "ReplicasAvailable"), "Degraded": ("True", "NodeLost")}, "Ready"),
        ({"Available": ("True", "ScaledToZero")}, "Zero"),
        ({"Available": ("False", "NoReadyReplica"), "Degraded": ("True", "ImagePullFailed")}, "Unavailable"),
    ],
)
def test_the_state_of_a_model_follows_from_its_conditions(
    conditions: dict[str, tuple[str, str]], state: str
) -> None:
    listed = [{"type": name, "status": one[0], "reason": one[1]} for name, one in conditions.items()]
    assert model_state({"status": {"conditions": listed}}) == state


def reconciler(cluster: FakeCluster) -> GatewayReconciler:
    return GatewayReconciler(
        cluster, OperatorMetrics(), EventRecorder(cluster, reporter="test"), Indices(), DefaultImages(),
        PassSettings("test"), now=lambda: NOW,
    )  # fmt: skip


async def test_a_pass_makes_the_children_and_a_third_one_changes_nothing() -> None:
    cluster = FakeCluster(gateway(httpRoute={"parentRefs": [{"name": "public"}]}), served("chat"))
    again = reconciler(cluster)
    assert await again(KEY) == 300.0
    kinds = [call.partition("/")[0] for call in cluster.calls[:-1]]
    assert kinds == [
        f"make {kind}"
        for kind in (
            "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Service", "NetworkPolicy", "HTTPRoute",
            "Deployment",
        )
    ]  # fmt: skip
    await again(KEY)
    cluster.calls.clear()
    await again(KEY)
    assert cluster.calls == []


async def test_a_name_that_a_deployment_has_is_not_taken_over() -> None:
    theirs = {
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "team", "namespace": "models",
            "ownerReferences": [
                {"apiVersion": "serving.mambaserve.io/v1alpha1", "kind": "MambaDeployment", "name": "team",
                 "uid": "another", "controller": True},
            ],
        },
    }  # fmt: skip
    cluster = FakeCluster(gateway(), theirs)
    with pytest.raises(NameTaken, match="Service team exists and belongs to the MambaDeployment team"):
        await reconciler(cluster)(KEY)
    stored = cluster.find("MambaGateway", "team")
    assert stored is not None
    degraded = next(one for one in stored["status"]["conditions"] if one["type"] == "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ApplyFailed")


def test_an_object_that_is_going_or_cannot_be_read_changes_nothing() -> None:
    going = gateway()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert planned(going, served("chat")) == GatewayPlan()
    wrong = gateway()
    wrong["spec"]["replicas"] = "two"
    plan = planned(wrong, served("chat"))
    assert plan.changes.applies == ()
    [failure] = plan.failures
    assert failure.message.startswith("spec.replicas: 'two' should be an integer")


def test_adapters_have_names_aliases_and_rights_at_one_address() -> None:
    adapters = [{"name": name, "uri": f"hf://a/{name}"} for name in ("sql", "old")]
    base = owner("base", metadata={"uid": "u", "labels": {}}, model={"uri": "hf://a/b", "adapters": adapters})
    spec = {
        "auth": {"secretRef": {"name": "keys"}},
        "aliases": [{"model": "sql", "names": ["analyst"]}],
        "keys": [{"name": "web", "models": ["sql"]}, {"name": "app", "models": ["base"]}],
    }

    plan = planned(gateway(**spec), base, served("old", 5))

    assert plan.resolution is not None
    table = ModelTable(plan.resolution.document)
    assert (table.named("analyst", "web").name, table.named("sql", "app").parent) == ("sql", "base")
    assert [entry.name for entry in table.visible("web")] == ["sql"]
    with pytest.raises(ModelForbidden):
        table.named("base", "web")
    assert table.requested(None, "web").name == "sql"
    assert table.requested(None, "app").name == "base"
    [model] = [model for model in plan.resolution.models if model.name == "base"]
    assert (model.adapters, plan.resolution.unknown) == (["sql"], ())
    assert problem(plan) == ("NamesConflict", plan.resolution.conflicts[0])
    assert "'old' is an adapter of base, and a name of old" in plan.resolution.conflicts[0]
    # An edit that cannot be read changes nothing of what is served.
    broken = {**base, "spec": {"model": {"uri": "nowhere"}}}
    models = children(plan)["ConfigMap"]
    again = planned(gateway(**spec), broken, served("old", 5), children=(models,))
    assert again.resolution is not None
    assert again.resolution.document == plan.resolution.document
