"""Specs at the boundary of each rule of the contract, by the words that the refusal must have.

Read by the unit tests, which see that each rule has some, and by those against a real API server.
"""

from typing import Any

COMMIT = "0123456789" * 4
ZEROS = ("0s", "0h0m", "0.00ms")

OBJECT = "nano"
"""Name of the object that the tests make of a spec."""


def _adapters(*names: str, **model: Any) -> dict[str, Any]:
    """Return a spec with adapters of these names."""
    adapters = [{"name": name, "uri": f"hf://a/{name}"} for name in names]
    return {"model": {"uri": "hf://a/b", **({"adapters": adapters} if adapters else {}), **model}}


WRONG_SPECS: dict[str, list[dict[str, Any]]] = {
    "trackInterval must be a multiple of engine.pageSize": [
        {"stateCache": {"trackInterval": interval}, "engine": {"pageSize": 16}} for interval in (15, 17)
    ],
    "spec.replicas is below scaling.minReplicas": [
        {"replicas": few, "scaling": {"minReplicas": 10}} for few in (0, 9)
    ],
    "spec.replicas is above scaling.maxReplicas": [
        {"replicas": 3, "scaling": {"maxReplicas": 2}},
        {"replicas": 3, "scaling": {"mode": "External", "maxReplicas": 2}},
    ],
    "spec.replicas and scaling are for unified engines": [
        {"disaggregation": {}, **more}
        for more in (
            {"replicas": 2},
            {"scaling": {"mode": "External"}},
            {"scaling": {"minReplicas": 1}},
            {"scaling": {"maxReplicas": 1}},
            {"scaling": {"scaleDownDelay": "301s"}},
        )
    ],
    "mode External is refused in a pool": [
        {"disaggregation": {pool: {"scaling": {"mode": "External"}}}} for pool in ("prefill", "decode")
    ],
    "minReplicas 0 is refused in a pool": [
        {"disaggregation": {pool: {"scaling": {"minReplicas": 0}}}} for pool in ("prefill", "decode")
    ],
    "replicas of the pool is below its scaling.minReplicas": [
        {"disaggregation": {"prefill": {"replicas": 2, "scaling": {"minReplicas": 3, **most}}}}
        for most in ({}, {"maxReplicas": 3})
    ],
    "replicas of the pool is above its scaling.maxReplicas": [
        {"disaggregation": {"decode": {"replicas": 3, "scaling": {"maxReplicas": 2}}}}
    ],
    **{
        f"{pool}.scaling.{field} is refused": [
            {"disaggregation": {pool: {"scaling": {"minReplicas": 1, "maxReplicas": 2, field: "1s"}}}}
        ]
        for pool, field in (("prefill", "tpotTarget"), ("decode", "ttftTarget"))
    },
    "disaggregation.handOverTokens is above model.maxModelLen": [
        {
            "model": {"uri": "builtin://tiny-recall", "maxModelLen": 512},
            "disaggregation": {"handOverTokens": 513},
        }
    ],
    "engines hand states over through their prefix caches": [
        {"disaggregation": {"decode": {"replicas": 2}}, "stateCache": {"prefixCaching": False}}
    ],
    "sends each request to one engine": [
        {"disaggregation": {}, "gateway": {"inferencePool": {"proxyNamespace": "envoy"}}}
    ],
    **{
        f"disaggregation.{pool}.stateCache.trackInterval must be a multiple": [
            {"disaggregation": {pool: {"stateCache": {"trackInterval": interval}}}} for interval in (15, 17)
        ]
        for pool in ("prefill", "decode")
    },
    **{
        f"set disaggregation.{pool}.resources.gpus to 0": [
            {
                "engine": {"quantization": "int8"},
                "resources": {"gpus": 0},
                "disaggregation": {pool: {"resources": {"gpus": 1}}},
            }
        ]
        for pool in ("prefill", "decode")
    },
    **{
        f"or set disaggregation.{pool}.resources.gpus to 0": [
            {"disaggregation": {"transport": "Nixl", other: {"resources": {"gpus": 0}}, **own}, **spec}
            for own, spec in (
                ({}, {}),
                ({pool: {"resources": {"gpus": 1}}}, {"resources": {"gpus": 0}}),
                ({pool: {"resources": {"profile": "small"}}}, {"resources": {"gpus": 1}}),
            )
        ]
        for pool, other in (("prefill", "decode"), ("decode", "prefill"))
    },
    "stateCache.hostMemory and disk keep states": [
        {"stateCache": {"prefixCaching": False, **tier}}
        for tier in ({"hostMemory": "1Gi"}, {"disk": {"size": "1Gi"}})
    ],
    "stateCache.hostMemory is 0": [
        {"stateCache": {"hostMemory": "0Gi"}},
        {"disaggregation": {"prefill": {"stateCache": {"hostMemory": 0}}}},
    ],
    "stateCache.disk has either storageClassName": [
        {"stateCache": {"disk": {"size": "1Gi", "storageClassName": "ssd", "claimName": "states"}}}
    ],
    "stateCache.disk.size is 0": [{"stateCache": {"disk": {"size": size}}} for size in (0, "0.0Gi")],
    "nothing is downloaded from pvc://": [
        {"model": {"uri": uri, "cache": {"size": "1Gi"}}} for uri in ("pvc://claim/a", "file:///srv/a")
    ],
    "only hf:// is one": [
        {"model": {"uri": uri, "tokenSecretRef": {"name": "hub"}}}
        for uri in ("pvc://claim/a", "file:///srv/a")
    ],
    "model.imageVolume mounts an image": [
        {"model": {"uri": uri, "imageVolume": {}}} for uri in ("pvc://claim/a", "https://oci/oci://a/")
    ],
    "model.imageVolume and model.cache exclude": [
        {"model": {"uri": "oci://r.example/a:v1", "imageVolume": {}, "cache": {"size": "1Gi"}}},
        {
            "model": {
                "uri": f"oci://r.example/a@sha256:{'0' * 64}",
                "imageVolume": {"path": "/m"},
                "cache": {"claimName": "c"},
            }
        },
    ],
    "model.secretRef holds credentials": [
        {"model": {"uri": uri, "secretRef": {"name": "bucket"}}} for uri in ("hf://a/b", "pvc://claim/s3://a")
    ],
    "names more adapters than model.maxAdapters": [_adapters("x", "y", maxAdapters=1)],
    "model.maxAdapterRank is the rank": [_adapters(maxAdapterRank=16)],
    "model.maxAdapterExpertRank is a rank": [_adapters(maxAdapterExpertRank=16)],
    "an adapter of model.adapters has the name of the model": [_adapters("x", "y", servedName="y")],
    "an adapter of model.adapters has the name of the object": [_adapters("x", OBJECT)],
    "each node downloads adapters": [
        {"model": {**model, "uri": f"hf://a/b@{COMMIT}", "cache": {"claimName": "c"}}}
        for model in (_adapters("x")["model"],)
    ],
    "no adapter is built in": [
        {"model": {"uri": "hf://a/b", "adapters": [{"name": "x", "uri": "builtin://tiny-recall"}]}}
    ],
    "engine.batchInvariant and model.adapters exclude": [
        {**model, "engine": {"batchInvariant": True}} for model in (_adapters("x"), _adapters(maxAdapters=1))
    ],
    "engine.speculation Mtp and model.adapters exclude": [
        {**model, "engine": {"speculation": "Mtp"}} for model in (_adapters("x"), _adapters(maxAdapters=1))
    ],
    "use hf://owner/name": [
        {"model": {"uri": uri}}
        for uri in (
            "nano",
            "hf://a",
            "hf:/a/b",
            "HF://a/b",
            "ftp://a/b",
            "s3://",
            "s3://Bucket/b",
            "s3://bucket/b?revision=main",
            "gs://",
            "gs://Bucket/b",
            "gs://bucket/b?revision=main",
            f"gs://bucket/b?sha256={COMMIT}",
            f"s3://bucket/b?sha256={COMMIT}",
            "oci://registry/a",
            "oci://registry/a@sha256:0",
            "https://user@host/a",
            "https://host/a?token=x",
            "pvc://",
            "hf://a/b c",
            "pvc://Claim/x",
        )
    ],
    "a quantity is a number with a unit": [
        {"memory": {"deviceMemory": size}} for size in ("80GB", "80 Gi", "Gi", "1.Gi", "1e3", "1,5Gi", -1)
    ],
    "a duration is a number with a unit": [
        {"rollout": {"drainTimeout": time}}
        for time in ("300", "5 m", "m", "1d", "-5s", "5S", "1h 30m", "1.s")
    ],
    "engine.speculation and batchInvariant exclude each other": [
        {"engine": {"speculation": kind, "batchInvariant": True}} for kind in ("Auto", "Ngram")
    ],
    "use Off, Auto, Ngram, Mtp, or draft=": [
        {"engine": {"speculation": kind}} for kind in ("off", "draft", "draft=", "draft=a/b", "draft=hf://a")
    ],
    "in this version no draft model": [
        {
            "model": {"uri": f"hf://a/b@{COMMIT}", "cache": cache},
            "engine": {"speculation": f"draft={uri}"},
        }
        for cache in ({"size": "1Gi"}, {"claimName": "c"})
        for uri in (f"hf://a/c@{COMMIT}", "s3://bucket/c", "gs://bucket/c", "https://host/c/")
    ],
    "engine.tensorParallel above 1 is refused": [{"engine": {"tensorParallel": n}} for n in (2, 8)],
    "model.cache needs either size": [
        {"model": {"uri": f"hf://a/b@{COMMIT}", "cache": cache}}
        for cache in ({}, {"size": "1Gi", "claimName": "c"})
    ],
    "model.cache.storageClassName and accessMode are for a new volume": [
        {"model": {"uri": f"hf://a/b@{COMMIT}", "cache": {"claimName": "c", **more}}}
        for more in ({"accessMode": "ReadWriteOnce"}, {"storageClassName": "s"})
    ],
    "the claim of model.cache.claimName is filled by each node separately": [
        {"model": {"uri": f"hf://a/b{revision}", "cache": {"claimName": "c"}}}
        for revision in ("", "@main", f"@{COMMIT[1:]}", f"@{COMMIT}0", f"@{COMMIT[1:]}A", f"@x/{COMMIT}")
    ],
    "resources.gpus above 1 is refused": [{"resources": {"gpus": n}} for n in (2, 8)],
    "either value or valueFrom": [
        {"engine": {"env": [{"name": "A", "value": value, "valueFrom": {"fieldRef": {}}}]}}
        for value in ("1", "")
    ],
    "minReplicas is above maxReplicas": [
        {"replicas": 1, "scaling": {"minReplicas": 2, "maxReplicas": 1}},
        {"replicas": 2, "scaling": {"minReplicas": 9, "maxReplicas": 2}},
    ],
    "limits.keys applies to named keys": [
        {"gateway": {"limits": {"keys": [{"name": name} for name in names]}}} for names in ("a", "ab")
    ],
    "limits.queueTimeout is 0": [{"gateway": {"limits": {"queueTimeout": z}}} for z in ZEROS],
    "limits.requestTimeout is 0": [{"gateway": {"limits": {"requestTimeout": z}}} for z in ZEROS],
    "limits.maxBodySize is 0": [
        {"gateway": {"limits": {"maxBodySize": z}}} for z in (0, "0", "0Gi", "0.00Gi")
    ],
    "redis needs either url or secretRef": [
        {"prefixIndex": {"redis": redis}}
        for redis in ({}, {"url": "redis://r:6379", "secretRef": {"name": "r"}})
    ],
    "usage.readers names keys, and without auth there are none": [
        {"gateway": {"usage": {"readers": readers}}} for readers in (["finance"], ["a", "b"])
    ],
    "prices has no price": [
        {"gateway": {"usage": {"prices": prices}}} for prices in ({}, {"currency": "EUR"})
    ],
    "maxSurge and maxUnavailable are both 0": [
        {"rollout": {"maxSurge": 0, "maxUnavailable": 0, **more}} for more in ({}, {"drainTimeout": "1s"})
    ],
    "a later step of rollout.canary has a lower weight": [
        {"rollout": {"canary": {"steps": [{"weight": weight} for weight in weights]}}}
        for weights in ((2, 1), (1, 5, 4))
    ],
    "rollout.canary is for unified engines": [
        {"rollout": {"canary": {"steps": [{"weight": 1}]}}, "disaggregation": pools}
        for pools in ({}, {"handOverTokens": 8})
    ],
    "rollout.canary needs gateways that see whole requests": [
        {"rollout": {"canary": {"steps": [{"weight": 99}]}}, "gateway": {"inferencePool": pool}}
        for pool in ({"proxyNamespace": "envoy"}, {"proxyNamespace": "gateways"})
    ],
    "progressDeadline is not longer": [
        {"rollout": {"minReadyTime": "2m", "progressDeadline": deadline}} for deadline in ("2m", "119s")
    ],
    "progressDeadline is beyond": [
        {"rollout": {"progressDeadline": beyond}} for beyond in ("596524h", "600000h")
    ],
    "engine.quantization fp8 and batchInvariant exclude": [
        {"engine": {"quantization": "fp8", "batchInvariant": True}},
    ],
    "engine.quantization int8 is for engines without GPUs": [
        {"engine": {"quantization": "int8"}},
        {"engine": {"quantization": "int8", "dtype": "bfloat16"}, "resources": {"gpus": 1}},
    ],
    **{
        f"{field} can only be held by the operator's autoscaler": [
            {"scaling": {field: "1s", **scaling}}
            for scaling in (
                {},
                {"minReplicas": 1, "maxReplicas": 1},
                {"mode": "External", "minReplicas": 1, "maxReplicas": 2},
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
        {"storageClassName": None},
        {"storageClassName": "slow"},
    ],
    "model.cache.size cannot shrink": [
        {"size": size} for size in ("39.9Gi", "40G", "40Mi", "42949672959", 42949672959)
    ],
}
