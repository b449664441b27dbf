"""Each field of the spec that ends in a manifest is found there, at its place and with its value."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from mamba_operator.memory.verdict import Fits
from mamba_operator.objects.manifest import Manifest
from operator_objects import fitting_owner, owner, planned

Children = dict[tuple[str, str], Manifest]
HUB = "hf://org/model"


def children(**spec: Any) -> Children:
    """Return the manifests of a spec, by kind and name."""
    made = [one.manifest for one in planned(owner(**spec)).applies]
    return {(one["kind"], one["metadata"]["name"]): one for one in made}


def engine(made: Children) -> Manifest:
    return made["Deployment", "nano-engine"]["spec"]


def gateway(made: Children) -> Manifest:
    return made["Deployment", "nano"]["spec"]


def pod(made: Children) -> Manifest:
    return engine(made)["template"]["spec"]


def variable(made: Children, name: str) -> Any:
    found = {one["name"]: one.get("value", one.get("valueFrom")) for one in pod(made)["containers"][0]["env"]}
    return found.get(name)


def of_gateway(made: Children, name: str) -> Any:
    container = gateway(made)["template"]["spec"]["containers"][0]
    found = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
    return found.get(name)


def claim(made: Children) -> Manifest:
    return made["PersistentVolumeClaim", "nano-model"]["spec"]


CACHE = {"uri": HUB, "cache": {"size": "7Gi", "storageClassName": "fast", "accessMode": "ReadWriteOnce"}}
OWN = {"uri": f"hf://org/model@{'0' * 40}", "cache": {"claimName": "mine"}}
TOKEN = {"uri": HUB, "tokenSecretRef": {"name": "hub", "key": "read"}}
FROM = {"secretKeyRef": {"name": "s", "key": "k"}}
TOLERATION = {"key": "gpu", "operator": "Exists"}
ROLLING: Callable[[Children], Any] = lambda made: engine(made)["strategy"]["rollingUpdate"]  # noqa: E731
CASES: list[tuple[str, dict[str, Any], Callable[[Children], Any], Any]] = [
    ("model.tokenSecretRef.name", {"model": TOKEN},
     lambda made: variable(made, "HF_TOKEN")["secretKeyRef"]["name"], "hub"),
    ("model.tokenSecretRef.key", {"model": TOKEN},
     lambda made: variable(made, "HF_TOKEN")["secretKeyRef"]["key"], "read"),
    ("model.secretRef.name", {"model": {"uri": "s3://bucket/model", "secretRef": {"name": "keys"}}},
     lambda made: variable(made, "AWS_SECRET_ACCESS_KEY")["secretKeyRef"]["name"], "keys"),
    ("model.cache.size", {"model": CACHE},
     lambda made: claim(made)["resources"]["requests"]["storage"], "7Gi"),
    ("model.cache.claimName", {"model": OWN},
     lambda made: [each for each in pod(made)["volumes"] if each["name"] == "cache"],
     [{"name": "cache", "persistentVolumeClaim": {"claimName": "mine"}}]),
    ("model.cache.storageClassName", {"model": CACHE}, lambda made: claim(made)["storageClassName"], "fast"),
    ("model.cache.accessMode", {"model": CACHE}, lambda made: claim(made)["accessModes"], ["ReadWriteOnce"]),
    ("prefixIndex.redis.url", {"prefixIndex": {"redis": {"url": "redis://r"}}},
     lambda made: (variable(made, "MAMBASERVE_REDIS_URL"), of_gateway(made, "MAMBASERVE_REDIS_URL")),
     ("redis://r", "redis://r")),
    ("prefixIndex.redis.secretRef.name", {"prefixIndex": {"redis": {"secretRef": {"name": "r"}}}},
     lambda made: (variable(made, "MAMBASERVE_REDIS_URL"), of_gateway(made, "MAMBASERVE_REDIS_URL")),
     ({"secretKeyRef": {"name": "r", "key": "url"}}, {"secretKeyRef": {"name": "r", "key": "url"}})),
    ("replicas", {"replicas": 7}, lambda made: engine(made)["replicas"], 7),
    ("engine.image", {"engine": {"image": "mine:1"}},
     lambda made: pod(made)["containers"][0]["image"], "mine:1"),
    ("engine.env.valueFrom", {"engine": {"env": [{"name": "A", "valueFrom": FROM}]}},
     lambda made: variable(made, "A"), FROM),
    ("resources.cpu", {"resources": {"cpu": "3"}},
     lambda made: pod(made)["containers"][0]["resources"]["requests"]["cpu"], "3"),
    ("scheduling.nodeSelector", {"scheduling": {"nodeSelector": {"gpu": "h100"}}},
     lambda made: pod(made)["nodeSelector"], {"gpu": "h100"}),
    ("scheduling.tolerations", {"scheduling": {"tolerations": [TOLERATION]}},
     lambda made: pod(made)["tolerations"][0], TOLERATION),
    ("scheduling.affinity", {"scheduling": {"affinity": {"podAffinity": {}}}},
     lambda made: pod(made)["affinity"], {"podAffinity": {}}),
    ("scheduling.priorityClassName", {"scheduling": {"priorityClassName": "high"}},
     lambda made: pod(made)["priorityClassName"], "high"),
    ("scheduling.runtimeClassName", {"scheduling": {"runtimeClassName": "nvidia"}},
     lambda made: pod(made)["runtimeClassName"], "nvidia"),
    ("gateway.image", {"gateway": {"image": "ours:2"}},
     lambda made: gateway(made)["template"]["spec"]["containers"][0]["image"], "ours:2"),
    ("gateway.replicas", {"gateway": {"replicas": 4}}, lambda made: gateway(made)["replicas"], 4),
    ("gateway.inferencePool.proxyNamespace", {"gateway": {"inferencePool": {"proxyNamespace": "envoy"}}},
     lambda made: made["NetworkPolicy", "nano-engine"]["spec"]["ingress"][0]["from"][1],
     {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "envoy"}}}),
    ("gateway.podTemplate", {"gateway": {"podTemplate": {"spec": {"hostNetwork": True}}}},
     lambda made: gateway(made)["template"]["spec"]["hostNetwork"], True),
    ("telemetry.otlpEndpoint", {"telemetry": {"otlpEndpoint": "http://c:4318"}},
     lambda made: variable(made, "OTEL_EXPORTER_OTLP_ENDPOINT"), "http://c:4318"),
    ("rollout.pause", {"rollout": {"pause": True}}, lambda made: engine(made)["paused"], True),
    ("rollout.maxSurge", {"rollout": {"maxSurge": 3}}, lambda made: ROLLING(made)["maxSurge"], 3),
    ("rollout.maxUnavailable", {"rollout": {"maxUnavailable": 2}},
     lambda made: ROLLING(made)["maxUnavailable"], 2),
    ("rollout.minReadyTime", {"rollout": {"minReadyTime": "45s"}},
     lambda made: engine(made)["minReadySeconds"], 45),
    ("rollout.progressDeadline", {"rollout": {"progressDeadline": "90s"}},
     lambda made: engine(made)["progressDeadlineSeconds"], 90),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "at", "wanted"), [one[1:] for one in CASES], ids=[one[0] for one in CASES])
def test_a_field_reaches_the_manifest(
    spec: dict[str, Any], at: Callable[[Children], Any], wanted: Any
) -> None:
    assert at(children(**spec)) == wanted


CHAT = {"promptTokens": 2000, "outputTokens": 500, "sharedPrefixRatio": 0.5, "concurrency": 16}


@pytest.mark.parametrize(
    ("field", "other"),
    [("promptTokens", 60_000), ("outputTokens", 30_000), ("sharedPrefixRatio", 0.0), ("concurrency", 400)],
    ids=["promptTokens", "outputTokens", "sharedPrefixRatio", "concurrency"],
)
def test_a_field_of_the_workload_moves_the_plan(field: str, other: float) -> None:
    one, changed = (
        planned(fitting_owner(workload={**CHAT, **more}, memory={"deviceMemory": "40Gi"})).verdict
        for more in ({}, {field: other})
    )

    assert isinstance(one, Fits)
    assert isinstance(changed, Fits)
    assert one.plan != changed.plan


@pytest.mark.parametrize("of", [variable, of_gateway], ids=["engine", "gateway"])
@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.25, 0.2, 0.3), (1.0, 1, 1)])
def test_the_share_that_is_traced_is_that_of_the_spec(
    share: float, least: float, most: float, of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = children(telemetry={"otlpEndpoint": "http://c:4318", "sampling": share})
    for name in ("OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"):
        monkeypatch.setenv(name, of(made, name))
    sampler = TracerProvider(shutdown_on_exit=False).sampler
    rng = random.Random(0)

    def traced(parent: Context | None = None) -> bool:
        return bool(sampler.should_sample(parent, rng.getrandbits(128) | 1, "r").decision.is_sampled())

    assert least <= sum(traced() for _ in range(2000)) / 2000 <= most
    for flags in (TraceFlags.SAMPLED, TraceFlags.DEFAULT):
        told = SpanContext(1, 1, is_remote=True, trace_flags=TraceFlags(flags))
        assert traced(set_span_in_context(NonRecordingSpan(told))) is bool(flags)


@pytest.mark.parametrize("of", [variable, of_gateway], ids=["engine", "gateway"])
def test_engines_and_gateways_are_told_where_traces_go_and_which(of: Callable[..., Any]) -> None:
    made = children(telemetry={"otlpEndpoint": "http://c:4317", "protocol": "grpc", "slowAfter": "1m"})
    assert of(made, "OTEL_EXPORTER_OTLP_ENDPOINT") == "http://c:4317"
    assert of(made, "OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc"
    assert of(made, "MAMBASERVE_SLOW_REQUEST") == "60"
    assert "mambaserve.deployment=nano" in of(made, "OTEL_RESOURCE_ATTRIBUTES")
    assert of(children(telemetry={"slowAfter": "1m"}), "MAMBASERVE_SLOW_REQUEST") is None


def test_engines_and_gateways_of_one_deployment_share_one_index_under_the_names_of_the_pods() -> None:
    made = children(prefixIndex={"redis": {"url": "redis://r"}})
    scope = "MAMBASERVE_PREFIX_INDEX_SCOPE"
    assert variable(made, scope) == of_gateway(made, scope)
    assert str(variable(made, scope)).endswith("/nano")
    assert variable(made, "POD_NAME")["fieldRef"]["fieldPath"] == "metadata.name"
    assert variable(children(), scope) is None
