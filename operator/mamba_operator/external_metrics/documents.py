"""Answers of the external metrics API: discovery, lists of values, refusals. Pure."""

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from mamba_operator.autoscale.scaling_metrics import PREFIX, Sample
from mamba_operator.external_metrics.label_selector import Requirement

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"
SERVED = ("desired_engines", "demand_engines", "pool_usage", "waiting_requests")
"""Metrics of the autoscaler that help to decide on the number of engines."""
NAMES = {PREFIX + metric: metric for metric in SERVED}


def group() -> dict[str, Any]:
    """Return the APIGroup."""
    version = {"groupVersion": API_VERSION, "version": VERSION}
    return {
        "kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version],
        "preferredVersion": version,
    }  # fmt: skip


def resources() -> dict[str, Any]:
    """Return the APIResourceList, in which each metric is a resource of the same name."""
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
    metric: str, timed_samples: Iterable[tuple[str, datetime, Sample]], selected: Requirement
) -> dict[str, Any]:
    """Return the ExternalMetricValueList of (deployment, time of the sample, sample)."""
    items = []
    for name, when, sample in timed_samples:
        labels = {"name": name}
        if sample.role != "unified":
            labels["role"] = sample.role
        if sample.unit:
            labels["unit"] = sample.unit
        if selected(labels):
            items.append(
                {
                    "metricName": metric, "metricLabels": labels, "value": quantity(sample.value),
                    "timestamp": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
            )  # fmt: skip
    return {"kind": "ExternalMetricValueList", "apiVersion": API_VERSION, "metadata": {}, "items": items}


def quantity(value: float) -> str:
    """Return a quantity, rounded up to thousandths: one engine too many is better than one too few."""
    thousandths = math.ceil(value * 1000 - 1e-6)
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def refusal(code: int, reason: str, message: str) -> dict[str, Any]:
    """Return a Status, with which the Kubernetes API answers refused requests."""
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code,
    }  # fmt: skip
