"""Ten specs that break each rule of the contract, by the words that the refusal must have.

Read by the unit tests, which see that no rule is without its ten, and by those against a real API server.
"""

from typing import Any

COMMIT = "0123456789" * 4
ZEROS = ("0s", "0ms", "0m", "0h", "0.0s", "0h0m", "0h0m0s", "00s", "0.00ms", "0m0s")

WRONG_SPECS: dict[str, list[dict[str, Any]]] = {
    "trackInterval must be a multiple of engine.pageSize": [
        {"stateCache": {"trackInterval": size * 7 + 1}, "engine": {"pageSize": size}} for size in range(2, 12)
    ],
    "spec.replicas is below scaling.minReplicas": [
        {"replicas": few, "scaling": {"minReplicas": 10}} for few in range(10)
    ],
    "spec.replicas is above scaling.maxReplicas": [
        {"replicas": 3 + many, "scaling": {"mode": "External", "maxReplicas": 2}} for many in range(10)
    ],
    "disaggregation is refused": [
        {"disaggregation": {"prefillReplicas": one, "decodeReplicas": 2}} for one in range(1, 11)
    ],
    "only hf:// is downloaded": [
        {"model": {"uri": f"{scheme}{name}", "cache": {"size": "1Gi"}}}
        for scheme in ("pvc://claim/", "file:///srv/")
        for name in "abcde"
    ],
    "only hf:// is one": [
        {"model": {"uri": f"{scheme}{name}", "tokenSecretRef": {"name": "hub"}}}
        for scheme in ("pvc://claim/", "file:///srv/")
        for name in "abcde"
    ],
    "use hf://owner/name": [
        {"model": {"uri": uri}}
        for uri in (
            "nano",
            "hf://",
            "hf://a",
            "hf:/a/b",
            "HF://a/b",
            "s3://a/b",
            "https://hf.co/a/b",
            "pvc://",
            "hf://a/b c",
            "pvc://Claim/x",
        )
    ],
    "a quantity is a number with a unit": [
        {"memory": {"deviceMemory": size}}
        for size in ("80GB", "80 Gi", "Gi", "1.Gi", "-1", "1e3", "80gi", "80GiB", "1,5Gi", -1)
    ],
    "a duration is a number with a unit": [
        {"rollout": {"drainTimeout": time}}
        for time in ("300", "5 m", "m", "1d", "-5s", "5S", "1h 30m", "1.s", "five", "5us")
    ],
    "engine.tensorParallel above 1 is refused": [{"engine": {"tensorParallel": n}} for n in range(2, 12)],
    "model.cache needs either size": [
        {"model": {"uri": f"hf://a/b@{COMMIT}", "cache": cache}}
        for cache in ({}, *({"size": f"{n}Gi", "claimName": "c"} for n in range(1, 10)))
    ],
    "model.cache.storageClassName and accessMode are for a volume that is made": [
        {"model": {"uri": f"hf://a/b@{COMMIT}", "cache": {"claimName": "c", **more}}}
        for more in (
            {"accessMode": "ReadWriteOnce"},
            *({"storageClassName": f"s{n}"} for n in range(9)),
        )
    ],
    "model.cache.claimName is filled by each node for itself": [
        {"model": {"uri": f"hf://a/b{revision}", "cache": {"claimName": "c"}}}
        for revision in (
            "",
            "@main",
            "@v1",
            f"@{COMMIT[1:]}",
            f"@{COMMIT}0",
            f"@{COMMIT[1:]}g",
            f"@{COMMIT[1:]}A",
            "@refs/pr/1",
            f"@x/{COMMIT}",
            f"-{COMMIT}",
        )
    ],
    "resources.gpus above 1 is refused": [{"resources": {"gpus": n}} for n in range(2, 12)],
    "either value or valueFrom": [
        {"engine": {"env": [{"name": f"A{n}", "value": "1", "valueFrom": {"fieldRef": {}}}]}}
        for n in range(10)
    ],
    "minReplicas is above maxReplicas": [
        {"replicas": n, "scaling": {"minReplicas": n + 1, "maxReplicas": n}} for n in range(1, 11)
    ],
    "limits.keys is for keys by name": [
        {"gateway": {"limits": {"keys": [{"name": f"team{n}"}]}}} for n in range(10)
    ],
    "limits.queueTimeout is 0": [{"gateway": {"limits": {"queueTimeout": z}}} for z in ZEROS],
    "limits.requestTimeout is 0": [{"gateway": {"limits": {"requestTimeout": z}}} for z in ZEROS],
    "limits.maxBodySize is 0": [
        {"gateway": {"limits": {"maxBodySize": z}}}
        for z in (0, "0", "0Gi", "0Mi", "0Ki", "0M", "0.0", "0.00Gi", "00", "0m")
    ],
    "redis needs either url or secretRef": [
        {"prefixIndex": {"redis": redis}}
        for redis in ({}, *({"url": f"redis://r{n}:6379", "secretRef": {"name": "r"}} for n in range(9)))
    ],
    "maxSurge and maxUnavailable are both 0": [
        {"rollout": {"maxSurge": 0, "maxUnavailable": 0, "drainTimeout": f"{n}s"}} for n in range(10)
    ],
    "progressDeadline is not longer": [
        {"rollout": {"minReadyTime": f"{n + 1}m", "progressDeadline": f"{n + 1}m"}} for n in range(10)
    ],
    "progressDeadline is beyond": [{"rollout": {"progressDeadline": f"{600_000 + n}h"}} for n in range(10)],
    "engine.quantization int8 is for engines without GPUs": [
        {"engine": {"quantization": "int8", **engine}, **resources}
        for resources in ({}, {"resources": {"gpus": 1}})
        for engine in (
            {},
            *({"dtype": d} for d in ("float32", "bfloat16")),
            {"pageSize": 32},
            {"maxRunningRequests": 4},
        )
    ],
    **{
        f"{field} is held by the operator's autoscaler alone": [
            {"scaling": {field: "1s", **scaling}}
            for scaling in (
                {},
                {"minReplicas": 1},
                {"maxReplicas": 4},
                {"minReplicas": 1, "maxReplicas": 1},
                *({"mode": "External", "minReplicas": 1, "maxReplicas": most} for most in range(1, 7)),
            )
        ]
        for field in ("ttftTarget", "tpotTarget")
    },
    **{
        f"{field} is 0": [{"scaling": {"minReplicas": 1, "maxReplicas": 2, field: zero}} for zero in ZEROS]
        for field in ("ttftTarget", "tpotTarget")
    },
}

CACHE = {"size": "40Gi", "storageClassName": "fast", "accessMode": "ReadWriteMany"}
"""A model cache from which the changes below are refused."""
WRONG_CHANGES: dict[str, list[dict[str, Any]]] = {
    "storageClassName and accessMode cannot change": [
        {"accessMode": "ReadWriteOnce"},
        {"accessMode": "ReadWriteOnce", "size": "41Gi"},
        {"accessMode": "ReadWriteOnce", "storageClassName": "slow"},
        {"storageClassName": None},
        *({"storageClassName": name} for name in ("slow", "faster", "fas", "a", "fast-2", "fast.2")),
    ],
    "model.cache.size cannot shrink": [
        {"size": size}
        for size in ("39Gi", "1Gi", "39.9Gi", "40G", "41M", "40Mi", 1000, "42949672959", 42949672959, "1")
    ],
}
