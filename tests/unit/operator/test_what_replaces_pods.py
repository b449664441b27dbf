"""Output of `kubectl explain` about each field: whether a change of it replaces pods, and whose."""

import re
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from mamba_api import names
from mamba_api.v1alpha1.schema import custom_resource_definition
from mamba_operator.plan import make_plan
from operator_objects import NOW, TOKEN, nano_config, owner, snapshot

BASE: dict[str, Any] = {
    "model": {"uri": "hf://org/model", "config": nano_config(), "tokenSecretRef": {"name": "a"}},
    "memory": {"deviceMemory": "80Gi"},
    "replicas": 2,
    "gateway": {"auth": {"secretRef": {"name": "a"}}, "inferencePool": {"proxyNamespace": "a"},
                "replicas": 2, "limits": {"keys": [{"name": "a", "weight": 1}]}},
    "prefixIndex": {"redis": {"url": "redis://a"}},
    "telemetry": {"otlpEndpoint": "http://a:1"},
    "scaling": {"minReplicas": 1, "maxReplicas": 9},
}  # fmt: skip
CHANGES: list[tuple[str, Any]] = [
    ("model.uri", "hf://org/other"),
    ("model.servedName", "b"),
    ("model.maxModelLen", 4096),
    ("model.config", {**nano_config(), "rope_theta": 1}),
    ("model.tokenSecretRef.name", "b"),
    ("model.tokenSecretRef.key", "b"),
    ("replicas", 3),
    ("engine.image", "b"),
    ("engine.dtype", "float16"),
    ("engine.pageSize", 32),
    ("engine.kvCacheDtype", "fp8_e4m3"),
    ("engine.chunkedPrefillTokens", 512),
    ("engine.stepTime", "1s"),
    ("engine.maxRunningRequests", 4),
    ("engine.overlapSchedule", False),
    ("engine.batchInvariant", True),
    ("engine.decodeGraphs", "Off"),
    ("engine.speculation", "Auto"),
    ("engine.speculativeTokens", 3),
    ("engine.extraArgs", ["--b"]),
    ("engine.env", [{"name": "B", "value": "b"}]),
    ("stateCache.strategy", "NoBuffer"),
    ("stateCache.stateDtype", "float16"),
    ("stateCache.trackInterval", 512),
    ("stateCache.maxCheckpointsPerPath", 8),
    ("stateCache.minCheckpointDepth", 64),
    ("stateCache.auditShare", 0.5),
    ("stateCache.eviction", "LRU"),
    ("stateCache.prefixCaching", False),
    ("stateCache.hostMemory", "1Gi"),
    ("stateCache.disk", {"size": "1Gi"}),
    ("memory.deviceMemory", "70Gi"),
    ("memory.utilization", 0.8),
    ("memory.arena", "20Gi"),
    ("workload.promptTokens", 4096),
    ("workload.outputTokens", 512),
    ("workload.sharedPrefixRatio", 0.9),
    ("workload.concurrency", 8),
    ("workloadSource", "Declared"),
    ("resources.profile", "nvidia-l40s"),
    ("resources.gpus", 0),
    ("resources.gpuResource", "amd.com/gpu"),
    ("resources.cpu", "3"),
    ("resources.memory", "40Gi"),
    ("scheduling.nodeSelector", {"b": "b"}),
    ("scheduling.tolerations", [{"key": "b"}]),
    ("scheduling.affinity", {"nodeAffinity": {}}),
    ("scheduling.priorityClassName", "b"),
    ("scheduling.runtimeClassName", "b"),
    ("scaling.minReplicas", 2),
    ("scaling.maxReplicas", 8),
    ("scaling.ttftTarget", "1s"),
    ("scaling.tpotTarget", "1s"),
    ("scaling.scaleDownDelay", "1s"),
    ("gateway.image", "b"),
    ("gateway.replicas", 3),
    ("gateway.routing.prefixWeight", 2),
    ("gateway.routing.loadWeight", 2),
    ("gateway.auth.secretRef.name", "b"),
    ("gateway.limits.maxInFlight", 2),
    ("gateway.limits.maxQueued", 2),
    ("gateway.limits.queueTimeout", "2s"),
    ("gateway.limits.requestTimeout", "2s"),
    ("gateway.limits.maxBodySize", "2Mi"),
    ("gateway.limits.perKey.requestsPerMinute", 2),
    ("gateway.limits.perKey.tokensPerMinute", 2),
    ("gateway.limits.perKey.concurrentRequests", 2),
    ("gateway.limits.keys", [{"name": "b", "requestsPerMinute": 2, "tokensPerMinute": 2, "weight": 2}]),
    ("gateway.corsOrigins", ["*"]),
    ("gateway.usage.retentionDays", 30),
    ("gateway.usage.readers", ["finance"]),
    ("gateway.usage.prices", {"deviceHour": 2}),
    ("gateway.podTemplate", {"metadata": {"labels": {"b": "b"}}}),
    ("prefixIndex.redis.url", "redis://b"),
    ("telemetry.otlpEndpoint", "http://b:1"),
    ("telemetry.protocol", "grpc"),
    ("telemetry.sampling", 1),
    ("telemetry.slowAfter", "2s"),
    ("rollout.maxSurge", 2),
    ("rollout.maxUnavailable", 1),
    ("rollout.inPlaceAfter", "1s"),
    ("rollout.minReadyTime", "1s"),
    ("rollout.pause", True),
    ("rollout.drainTimeout", "1s"),
    ("rollout.progressDeadline", "1h"),
    ("podTemplate", {"metadata": {"labels": {"b": "b"}}}),
]
UNCHANGEABLE = {"mode", "disaggregation"}
"""The one takes all away or makes it; the other replaces the Deployment of engines by two."""
SAYS = re.compile(
    r"A change (?:from several to another number )?"
    r"replaces (?:the engine|the gateway|engine and gateway|no) pods?"
    r"|Running engines apply a change"
)
SPEC = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def with_field(field: str, value: Any) -> dict[str, Any]:
    changed = deepcopy(BASE)
    at = changed
    *sections, last = field.split(".")
    for name in sections:
        at = at.setdefault(name, {})
    at[last] = value
    return changed


def templates(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the pod template of each Deployment; engines can be given a strategy."""
    plan = make_plan(snapshot(owner(**spec)), now=NOW, new_token=lambda: TOKEN, key_id="a")
    made = [one.manifest for one in plan.applies if one.manifest["kind"] == "Deployment"]
    return {one["metadata"]["labels"][names.LABEL_COMPONENT]: one["spec"]["template"] for one in made}


@cache
def templates_before() -> dict[str, Any]:
    return templates(BASE)


def explained(field: str) -> set[str]:
    """Return whose pods a change replaces, by the description nearest to the field."""
    at, said = SPEC, set[str]()
    for name in field.split("."):
        at = at["properties"][name]
        if found := SAYS.search(" ".join(at["description"].split())):
            said = {one for one in ("engine", "gateway") if f"{one} " in found[0]}
    return said


@pytest.mark.parametrize(("field", "value"), CHANGES, ids=[field for field, _ in CHANGES])
def test_explain_says_whose_pods_a_change_replaces(field: str, value: Any) -> None:
    before, after = templates_before(), templates(with_field(field, value))
    assert before.keys() == after.keys() == {"engine", "gateway"}

    assert {one for one in before if before[one] != after[one]} == explained(field)


def test_no_section_is_left_out() -> None:
    assert {field.partition(".")[0] for field, _ in CHANGES} == SPEC["properties"].keys() - UNCHANGEABLE
