"""What acts in a cluster alone is said by `up`, field by field; what acts here too is not mentioned."""

from typing import Any

import pytest

from mamba_api.v1alpha1 import Spec
from mamba_cli.local.cluster_only import CLUSTER_ONLY, not_in_local_mode


def spec(**parts: Any) -> Spec:
    return Spec.model_validate({"model": {"uri": "hf://a/b"}, **parts})


RANGE = {"minReplicas": 1, "maxReplicas": 2}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("replicas", {"replicas": 2}, "one engine runs here"),
    ("scaling.mode", {"scaling": {"mode": "External"}}, "one engine runs here"),
    ("scaling.minReplicas", {"scaling": {"minReplicas": 0}}, "one engine runs here"),
    ("scaling.maxReplicas", {"scaling": {"maxReplicas": 3}}, "one engine runs here"),
    ("scaling.ttftTarget", {"scaling": {**RANGE, "ttftTarget": "1s"}}, "one engine runs here"),
    ("scaling.tpotTarget", {"scaling": {**RANGE, "tpotTarget": "1s"}}, "one engine runs here"),
    ("scaling.scaleDownDelay", {"scaling": {"scaleDownDelay": "1s"}}, "one engine runs here"),
    ("gateway.auth", {"gateway": {"auth": {"secretRef": {"name": "s"}}}}, "anyone on this machine"),
    (
        "gateway.limits.keys[]",
        {"gateway": {"auth": {"secretRef": {"name": "s"}}, "limits": {"keys": [{"name": "a"}]}}},
        "anyone on this machine",
    ),
    ("engine.env[].valueFrom", {"engine": {"env": [{"name": "A", "valueFrom": {}}]}}, "A: valueFrom"),
    ("model.tokenSecretRef", {"model": {"uri": "hf://a/b", "tokenSecretRef": {"name": "s"}}}, "cluster"),
    ("model.cache", {"model": {"uri": "hf://a/b", "cache": {"size": "1Gi"}}}, "cluster alone"),
    ("engine.image", {"engine": {"image": "mine"}}, "cluster alone"),
    ("resources.profile", {"resources": {"profile": "nvidia-l4"}}, "gpus acts here"),
    ("resources.gpuResource", {"resources": {"gpuResource": "amd.com/gpu"}}, "cluster alone"),
    ("resources.cpu", {"resources": {"cpu": "2"}}, "cluster alone"),
    ("resources.memory", {"resources": {"memory": "2Gi"}}, "cluster alone"),
    ("scheduling.nodeSelector", {"scheduling": {"nodeSelector": {"a": "b"}}}, "cluster alone"),
    ("scheduling.tolerations", {"scheduling": {"tolerations": [{"key": "gpu"}]}}, "cluster alone"),
    ("scheduling.affinity", {"scheduling": {"affinity": {"nodeAffinity": {}}}}, "cluster alone"),
    ("scheduling.priorityClassName", {"scheduling": {"priorityClassName": "high"}}, "cluster alone"),
    ("scheduling.runtimeClassName", {"scheduling": {"runtimeClassName": "nvidia"}}, "cluster alone"),
    ("gateway.image", {"gateway": {"image": "mine"}}, "cluster alone"),
    ("gateway.replicas", {"gateway": {"replicas": 2}}, "cluster alone"),
    ("gateway.inferencePool", {"gateway": {"inferencePool": {"proxyNamespace": "envoy"}}}, "cluster alone"),
    ("gateway.podTemplate", {"gateway": {"podTemplate": {"spec": {}}}}, "cluster alone"),
    ("rollout.maxSurge", {"rollout": {"maxSurge": 2}}, "cluster alone"),
    ("rollout.maxUnavailable", {"rollout": {"maxUnavailable": 1}}, "cluster alone"),
    ("rollout.inPlaceAfter", {"rollout": {"inPlaceAfter": "1m"}}, "cluster alone"),
    ("rollout.minReadyTime", {"rollout": {"minReadyTime": "1m"}}, "cluster alone"),
    ("rollout.pause", {"rollout": {"pause": True}}, "cluster alone"),
    ("rollout.progressDeadline", {"rollout": {"progressDeadline": "1h"}}, "cluster alone"),
    ("podTemplate", {"podTemplate": {"spec": {}}}, "cluster alone"),
    ("workloadSource", {"workloadSource": "Declared"}, "cluster alone"),
    (
        "prefixIndex.redis.secretRef",
        {"prefixIndex": {"redis": {"secretRef": {"name": "s"}}}},
        "export MAMBASERVE_REDIS_URL",
    ),
]


@pytest.mark.parametrize(("path", "parts", "words"), CASES, ids=[one[0] for one in CASES])
def test_a_field_that_acts_in_a_cluster_alone_is_named(path: str, parts: dict[str, Any], words: str) -> None:
    [note] = not_in_local_mode(spec(**parts))

    assert f"spec.{path.partition('[]')[0]}" in note
    assert words in note


def test_every_such_field_is_tried() -> None:
    assert {path for path, *_ in CASES} == CLUSTER_ONLY


def test_nothing_is_said_about_what_acts_here_too() -> None:
    acting = spec(
        engine={"pageSize": 32, "env": [{"name": "A", "value": "b"}]}, memory={"arena": "1Gi"},
        stateCache={"strategy": "NoBuffer"}, rollout={"drainTimeout": "1s"}, resources={"gpus": 0},
        gateway={"limits": {"maxQueued": 1, "maxBodySize": "1Mi", "queueTimeout": "1s"}},
    )  # fmt: skip

    assert not_in_local_mode(acting) == []
