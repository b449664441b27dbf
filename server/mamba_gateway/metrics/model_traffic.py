"""`model_traffic`: the requests of each served model, read from the gateway's own series for `/v1/status`.

Called by `GatewayMetrics`. It creates no series, and counts nothing itself.
"""

from collections import defaultdict
from collections.abc import Iterable

from prometheus_client.samples import Sample

from mamba_api.serving_status import ModelTraffic

REFUSED = "429"


def model_traffic(
    requests: Iterable[Sample], first_bytes: Iterable[Sample], *, unknown: str
) -> list[ModelTraffic]:
    """Return the traffic of each model by name, without requests for models that no engine serves.

    `requests` are the samples of the counter by model and code, and `first_bytes` those of the histogram of
    times to the first byte by model. `unknown` is the label of models that no engine serves.
    """
    counts: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for sample in requests:
        if sample.name.endswith("_total"):
            model, code = sample.labels["model"], sample.labels["code"]
            counts[model]["requests"] += sample.value
            counts[model]["failed"] += sample.value * (code >= "500")
            counts[model]["refused"] += sample.value * (code == REFUSED)
    for sample in first_bytes:
        for ending, name in (("_count", "first_bytes"), ("_sum", "first_byte_seconds")):
            if sample.name.endswith(ending):
                counts[sample.labels["model"]][name] += sample.value
    return [
        ModelTraffic(
            model=model,
            requests=int(count["requests"]),
            failed=int(count["failed"]),
            refused=int(count["refused"]),
            first_bytes=int(count["first_bytes"]),
            first_byte_seconds=count["first_byte_seconds"],
        )
        for model, count in sorted(counts.items())
        if model not in (unknown, "")
    ]
