"""Metrics of the operator, served at /metrics. `main` creates one registry per process."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class OperatorMetrics:
    """The operator's metrics, without those of `ScalingMetrics`. No label names an object of a user."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "mambaserve_operator_reconciles",
            "Passes over a MambaDeployment or MambaGateway, by result.",
            ["result"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "mambaserve_operator_reconcile_seconds",
            "Duration of a pass in seconds.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.changes = Counter(
            "mambaserve_operator_child_changes",
            "Children written or removed, by kind and cause.",
            ["kind", "change"],
            registry=self.registry,
        )
        self.events = Counter(
            "mambaserve_operator_watch_events",
            "Objects that watches delivered, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self.requests = Counter(
            "mambaserve_operator_requests",
            "Requests to the API server by method and resource, without watches.",
            ["method", "resource"],
            registry=self.registry,
        )
        self.due = Gauge(
            "mambaserve_operator_queue_depth",
            "MambaDeployments and MambaGateways that wait for a pass.",
            registry=self.registry,
        )
        self.leader = Gauge(
            "mambaserve_operator_leader", "1 while this process holds the lease.", registry=self.registry
        )
