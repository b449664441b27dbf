"""What the external metrics API answers: discovery, lists of values, refusals. Pure."""

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from mamba_operator.autoscale.scaling_metrics import PREFIX, Sample
from mamba_operator.external_metrics.label_selector import Requirement

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"
SERVED = ("desired_engines", "demand_engines", "pool_usage", "waiting_requests")
"""Of the autoscaler's series those that say something about how many engines there should be."""
NAMES = {PREFIX + metric: metric for metric in SERVED}


def group() -> dict[str, Any]:
    """The APIGroup."""
    version = {"groupVersion": API_VERSION, "version": VERSION}
    return {
        "kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version],
        "preferredVersion": version,
    }  # fmt: skip


def resources() -> dict[str, Any]:
    """The APIResourceList: each metric is a resource whose name is the metric's."""
    return {
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API_VERSION,
        "resources": [
            {
                "name": name, "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList",
                "verbs": ["get"],
            }
            for name in NAMES
        ],
    }  # fmt: skip


def values(
    metric: str, found: Iterable[tuple[str, datetime, Sample]], selected: Requirement
) -> dict[str, Any]:
    """The ExternalMetricValueList of (deployment, when it was seen, sample)."""
    items = []
    for name, when, one in found:
        labels = {"name": name, **({"unit": one.unit} if one.unit else {})}
        if selected(labels):
            items.append(
                {
                    "metricName": metric, "metricLabels": labels, "value": quantity(one.value),
                    "timestamp": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
            )  # fmt: skip
    return {"kind": "ExternalMetricValueList", "apiVersion": API_VERSION, "metadata": {}, "items": items}


def quantity(value: float) -> str:
    """A Kubernetes quantity, to the thousandth upwards: an engine too few is worse than one too many."""
    thousandths = math.ceil(value * 1000 - 1e-6)
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def refusal(code: int, reason: str, message: str) -> dict[str, Any]:
    """A Status, as all of the Kubernetes API answers where it does not do what it was asked."""
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code,
    }  # fmt: skip
