"""Fields that act only in a cluster: `up` names each; fields that act here too are not mentioned."""

from typing import Any

import pytest

from mamba_api.v1alpha1 import Spec
from mamba_cli.local.cluster_only import CLUSTER_ONLY, TARGETS, not_in_local_mode


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
    (
        "gateway.auth",
        {"gateway": {"auth": {"secretRef": {"name": "s"}}}},
        "everyone who reaches the endpoint",
    ),
    (
        "gateway.limits.keys[]",
        {"gateway": {"auth": {"secretRef": {"name": "s"}}, "limits": {"keys": [{"name": "a"}]}}},
        "everyone who reaches the endpoint",
    ),
    (
        "gateway.usage.readers",
        {"gateway": {"auth": {"secretRef": {"name": "s"}}, "usage": {"readers": ["finance"]}}},
        "everyone who reaches the endpoint",
    ),
    ("engine.env[].valueFrom", {"engine": {"env": [{"name": "A", "valueFrom": {}}]}}, "A: valueFrom"),
    ("model.tokenSecretRef", {"model": {"uri": "hf://a/b", "tokenSecretRef": {"name": "s"}}}, "cluster"),
    ("model.secretRef", {"model": {"uri": "s3://bucket/a", "secretRef": {"name": "s"}}}, "cluster"),
    ("model.imageVolume", {"model": {"uri": "oci://r.example/a:v1", "imageVolume": {}}}, "only in a cluster"),
    ("model.cache", {"model": {"uri": "hf://a/b", "cache": {"size": "1Gi"}}}, "only in a cluster"),
    ("engine.image", {"engine": {"image": "mine"}}, "only in a cluster"),
    ("resources.profile", {"resources": {"profile": "nvidia-l4"}}, "gpus has an effect here"),
    ("resources.gpuResource", {"resources": {"gpuResource": "amd.com/gpu"}}, "only in a cluster"),
    ("resources.cpu", {"resources": {"cpu": "2"}}, "only in a cluster"),
    ("resources.memory", {"resources": {"memory": "2Gi"}}, "only in a cluster"),
    ("scheduling.nodeSelector", {"scheduling": {"nodeSelector": {"a": "b"}}}, "only in a cluster"),
    ("scheduling.tolerations", {"scheduling": {"tolerations": [{"key": "gpu"}]}}, "only in a cluster"),
    ("scheduling.affinity", {"scheduling": {"affinity": {"nodeAffinity": {}}}}, "only in a cluster"),
    ("scheduling.priorityClassName", {"scheduling": {"priorityClassName": "high"}}, "only in a cluster"),
    ("scheduling.runtimeClassName", {"scheduling": {"runtimeClassName": "nvidia"}}, "only in a cluster"),
    ("gateway.image", {"gateway": {"image": "mine"}}, "only in a cluster"),
    ("gateway.replicas", {"gateway": {"replicas": 2}}, "only in a cluster"),
    (
        "gateway.inferencePool",
        {"gateway": {"inferencePool": {"proxyNamespace": "envoy"}}},
        "only in a cluster",
    ),
    ("gateway.podTemplate", {"gateway": {"podTemplate": {"spec": {}}}}, "only in a cluster"),
    ("rollout.maxSurge", {"rollout": {"maxSurge": 2}}, "only in a cluster"),
    ("rollout.maxUnavailable", {"rollout": {"maxUnavailable": 1}}, "only in a cluster"),
    ("rollout.inPlaceAfter", {"rollout": {"inPlaceAfter": "1m"}}, "only in a cluster"),
    ("rollout.minReadyTime", {"rollout": {"minReadyTime": "1m"}}, "only in a cluster"),
    ("rollout.pause", {"rollout": {"pause": True}}, "only in a cluster"),
    ("rollout.progressDeadline", {"rollout": {"progressDeadline": "1h"}}, "only in a cluster"),
    ("rollout.canary", {"rollout": {"canary": {"steps": [{"weight": 5}]}}}, "only in a cluster"),
    ("podTemplate", {"podTemplate": {"spec": {}}}, "only in a cluster"),
    ("workloadSource", {"workloadSource": "Declared"}, "only in a cluster"),
    (
        "prefixIndex.redis.secretRef",
        {"prefixIndex": {"redis": {"secretRef": {"name": "s"}}}},
        "export MAMBASERVE_REDIS_URL",
    ),
    *(
        (
            f"stateCache.disk.{field}",
            {"stateCache": {"disk": {"size": "1Gi", field: "ssd"}}},
            "only in a cluster",
        )
        for field in ("storageClassName", "claimName")
    ),
    *(
        (f"disaggregation.{pool}.{path}", {"disaggregation": {pool: parts}}, words)
        for pool in ("prefill", "decode")
        for path, parts, words in (
            ("replicas", {"replicas": 2}, "one engine of it runs here"),
            ("scaling.minReplicas", {"scaling": {"minReplicas": 1}}, "one engine of it runs here"),
            ("scaling.maxReplicas", {"scaling": {"maxReplicas": 2}}, "one engine of it runs here"),
            ("scaling.scaleDownDelay", {"scaling": {"scaleDownDelay": "1s"}}, "one engine of it runs here"),
            (
                f"scaling.{TARGETS[pool]}",
                {"scaling": {**RANGE, TARGETS[pool]: "1s"}},
                "one engine of it runs here",
            ),
            ("resources.profile", {"resources": {"profile": "nvidia-l4"}}, "only in a cluster"),
            ("resources.gpuResource", {"resources": {"gpuResource": "amd.com/gpu"}}, "only in a cluster"),
            ("resources.cpu", {"resources": {"cpu": "2"}}, "only in a cluster"),
            ("resources.memory", {"resources": {"memory": "2Gi"}}, "only in a cluster"),
            *(
                (
                    f"stateCache.disk.{field}",
                    {"stateCache": {"disk": {"size": "1Gi", field: "ssd"}}},
                    "only in a cluster",
                )
                for field in ("storageClassName", "claimName")
            ),
        )
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
        gateway={
            "limits": {"maxQueued": 1, "maxBodySize": "1Mi", "queueTimeout": "1s"},
            "usage": {"retentionDays": 1, "prices": {"deviceHour": 1}},
        },
        disaggregation={"prefill": {"resources": {"gpus": 0}}, "decode": {"stateCache": {"eviction": "LRU"}}},
    )  # fmt: skip

    assert not_in_local_mode(acting) == []
