"""Series that dashboards of the Gateway API Inference Extension v1.5.0 read, where the picker has the values.

The label sets are those of the extension. A model is counted under its name only if an engine serves it. The
priority is always 0. Times are in seconds from the arrival of the request's headers.
"""

from collections.abc import Callable
from importlib.metadata import version

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mamba_gateway.body_fields import Usage
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics

_LATENCY = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 120,
    180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
)  # fmt: skip
_PER_TOKEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_CHOICE = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_BYTES = tuple(1 << power for power in range(6, 31))
_TOKENS = (1, *(1 << power for power in range(3, 21)))
_MODEL = ["model_name", "target_model_name"]
Exemplar = dict[str, str] | None
"""Labels of the trace to which a measurement belongs."""


class _PoolCollector(Collector):
    # Read at scrape time: engines come and go.
    def __init__(self, name: str, snapshot: Callable[[], tuple[Endpoint, ...]]) -> None:
        self._name, self._snapshot = name, snapshot

    def collect(self) -> list[Metric]:
        endpoints = self._snapshot()
        ready = [endpoint for endpoint in endpoints if endpoint.ready and not endpoint.draining]
        means: dict[str, tuple[str, list[float]]] = {
            "average_kv_cache_utilization": ("Mean use of the caches.", [e.kv_usage for e in ready]),
            "average_queue_size": ("Mean number of requests that wait.", [e.waiting for e in ready]),
            "average_running_requests": ("Mean number of requests that run.", [e.running for e in ready]),
        }
        metrics: list[Metric] = [self._gauge("ready_pods", "Engines that may be chosen.", len(ready))]
        metrics += [
            self._gauge(name, text, sum(values) / max(1, len(values)))
            for name, (text, values) in means.items()
        ]
        queues = GaugeMetricFamily(
            "inference_pool_per_pod_queue_size",
            "Requests that wait at each engine.",
            labels=["name", "model_server_pod"],
        )
        for endpoint in endpoints:
            queues.add_metric([self._name, endpoint.name], endpoint.waiting)
        return [*metrics, queues]

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(f"inference_pool_{name}", text, labels=["name"])
        gauge.add_metric([self._name], value)
        return gauge


class PickerMetrics:
    """Series of one picker, in the registry of its gateway. `pool` is the name of the InferencePool."""

    def __init__(
        self, gateway: GatewayMetrics, pool: str, namespace: str, snapshot: Callable[[], tuple[Endpoint, ...]]
    ) -> None:
        registry = gateway.registry
        self._gateway, self._namespace = gateway, namespace
        registry.register(_PoolCollector(pool, snapshot))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"inference_objective_{name}", text, _MODEL, buckets=buckets, registry=registry)

        self._requests = Counter(
            "inference_objective_request", "Requests with a choice.", [*_MODEL, "priority"], registry=registry
        )
        self._errors = Counter(
            "inference_objective_request_error",
            "Requests that were refused, or that an engine failed.",
            [*_MODEL, "error_code"],
            registry=registry,
        )
        self._running = Gauge(
            "inference_objective_running_requests", "Requests under way.", ["model_name"], registry=registry
        )
        self._first = histogram("request_ttft_seconds", "Until the answer begins.", _LATENCY)
        self._duration = histogram("request_duration_seconds", "Until the answer ends.", _LATENCY)
        self._per_token = histogram(
            "normalized_time_per_output_token_seconds", "Duration by tokens of the answer.", _PER_TOKEN
        )
        self._sizes = histogram("request_sizes", "Bytes of bodies.", _BYTES)
        self._answers = histogram("response_sizes", "Bytes of answers.", _BYTES)
        self._input = histogram("input_tokens", "Tokens of prompts.", _TOKENS)
        self._output = histogram("output_tokens", "Tokens of answers.", _TOKENS)
        self._cached = histogram("prompt_cached_tokens", "Tokens of prompts that were resumed.", _TOKENS)
        self._choice = Histogram(
            "inference_extension_scheduler_e2e_duration_seconds",
            "Time from the whole request to its choice.",
            buckets=_CHOICE,
            registry=registry,
        )
        self._attempts = Counter(
            "inference_extension_scheduler_attempts",
            "Attempts to choose.",
            ["status", "target_model_name", "pod_name", "namespace", "port"],
            registry=registry,
        )
        info = Gauge("inference_extension_info", "Always 1.", ["commit", "build_ref"], registry=registry)
        info.labels("", f"mambaserve-{version('mambaserve')}").set(1)

    def label(self, model: str | None) -> str:
        """Return the value of the label for a model's name."""
        return self._gateway.model_label(model)

    def picked(self, model: str, endpoint: Endpoint, size: int, seconds: float) -> None:
        """Count a request of `size` bytes for which an engine was chosen `seconds` after it had arrived."""
        self._requests.labels(model, model, "0").inc()
        self._sizes.labels(model, model).observe(size)
        self._running.labels(model).inc()
        self._choice.observe(seconds)
        port = endpoint.address.rpartition(":")[2]
        self._attempts.labels("success", model, endpoint.name, self._namespace, port).inc()

    def refused(self, model: str, code: str, *, choosing: bool) -> None:
        """Count a request that the picker refused with the error code `code`.

        `choosing` says that no engine could be chosen; then a failed attempt to choose is counted as well.
        """
        self._errors.labels(model, model, code).inc()
        if choosing:
            self._attempts.labels("failure", model, "", "", "").inc()

    def response_started(self, model: str, status: int, seconds: float, exemplar: Exemplar = None) -> None:
        """Count an answer that began `seconds` after the request."""
        self._first.labels(model, model).observe(seconds, exemplar)
        if status >= 400:
            self._errors.labels(model, model, str(status)).inc()

    def answered(
        self, model: str, size: int, usage: Usage | None, seconds: float, exemplar: Exemplar = None
    ) -> None:
        """Count an answer of `size` bytes that ended `seconds` after the request."""
        self._duration.labels(model, model).observe(seconds, exemplar)
        self._answers.labels(model, model).observe(size)
        if usage is None:
            return
        self._input.labels(model, model).observe(usage.prompt_tokens)
        self._output.labels(model, model).observe(usage.completion_tokens)
        if usage.completion_tokens > 0:
            self._per_token.labels(model, model).observe(seconds / usage.completion_tokens)
        if usage.cached_tokens is not None:
            self._cached.labels(model, model).observe(usage.cached_tokens)

    def ended(self, model: str) -> None:
        """Count the end of a request that had an engine, whatever the result."""
        self._running.labels(model).dec()
