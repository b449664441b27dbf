"""Prometheus series of one gateway, which the ASGI application and the relay write.

The number of label values is bounded: a model is counted under its name only if an engine reports it, and no
label is a request id.
"""

import functools
import math
from collections.abc import Callable
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mamba_api import names
from mamba_api.serving_status import ModelTraffic
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.metrics.model_loads import Loads, ModelLoadCollector
from mamba_gateway.metrics.model_traffic import model_traffic
from mamba_gateway.metrics.prefix_index import PrefixIndexCollector
from mamba_prefix.prefix_index import PrefixIndex
from mamba_telemetry.gathering_metrics import GatheringCounter, GatheringHistogram
from mamba_telemetry.trace_metrics import TraceMetrics
from mamba_telemetry.tracing import OFF, Tracing

RetryReason = Literal["refused", "unreachable", "died", "silent", "rejected"]
CopyOutcome = Literal["compared", "given_up", "no_room", "no_engine", "too_large"]
HandOverOutcome = Literal["computed", "nothing", "rejected", "full", "failed"]
DecodeReason = Literal["short", "no_engine", "failed", "nothing"]
KEY_LIMIT = "key_limit"
"""Label of refusals because the API key has used up its own limit."""
UNKNOWN_MODEL = "unknown"
"""Label of models that no engine reports."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

_TOKENS = tuple(float(2**power) for power in range(14))
_DECISION_SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05)


def geometric(first: float, last: float, ratio: float = 1.15) -> tuple[float, ...]:
    """Return rising bounds from `first` to at least `last`, each `ratio` times the one before."""
    count = math.ceil(math.log(last / first) / math.log(ratio))
    return tuple(float(f"{first * ratio**power:.4g}") for power in range(count + 1))


class _EndpointCollector(Collector):
    # Read at scrape time: endpoints come and go, and stale label sets must go with them.
    def __init__(self, snapshot: Callable[[], tuple[Endpoint, ...]]) -> None:
        self._snapshot = snapshot

    def collect(self) -> list[Metric]:
        ready = GaugeMetricFamily(
            "mambaserve_gateway_endpoint_ready",
            "1 if the endpoint may be chosen, by its role.",
            labels=["endpoint", "role"],
        )
        draining = GaugeMetricFamily(
            "mambaserve_gateway_endpoint_draining", "1 if the endpoint is going away.", labels=["endpoint"]
        )
        ejected = GaugeMetricFamily(
            "mambaserve_gateway_endpoint_ejected",
            "1 if the endpoint is left out, since requests failed there.",
            labels=["endpoint"],
        )
        in_flight = GaugeMetricFamily(
            "mambaserve_gateway_endpoint_in_flight",
            "Requests of this gateway the endpoint has.",
            labels=["endpoint"],
        )
        load = GaugeMetricFamily(
            "mambaserve_gateway_endpoint_load",
            "Requests the endpoint has, those of others as last reported.",
            labels=["endpoint"],
        )
        attempts = CounterMetricFamily(
            "mambaserve_gateway_endpoint_attempts",
            "Attempts at the endpoint, by outcome; an attempt that was given up does not count.",
            labels=["endpoint", "outcome"],
        )
        for endpoint in self._snapshot():
            attempts.add_metric([endpoint.name, "answered"], endpoint.answered)
            attempts.add_metric([endpoint.name, "failed"], endpoint.failed)
            attempts.add_metric([endpoint.name, "rejected"], endpoint.rejected)
            ready.add_metric([endpoint.name, endpoint.role], float(endpoint.ready and not endpoint.draining))
            draining.add_metric([endpoint.name], float(endpoint.draining))
            ejected.add_metric([endpoint.name], float(endpoint.ejected))
            in_flight.add_metric([endpoint.name], endpoint.in_flight)
            load.add_metric([endpoint.name], endpoint.load)
        return [ready, draining, ejected, in_flight, load, attempts]


class GatewayMetrics:
    """All Prometheus series of one gateway, in a registry of their own."""

    def __init__(
        self,
        snapshot: Callable[[], tuple[Endpoint, ...]],
        index: PrefixIndex | None = None,
        tracing: Tracing = OFF,
        serves: Callable[[str], bool] | None = None,
        held_bytes: Callable[[], float] | None = None,
        loads: Loads | None = None,
    ) -> None:
        """Create the series.

        `serves` returns whether an engine reports a model of this name; without it the snapshot decides.
        `held_bytes` returns the size in bytes of all request bodies that the gateway holds. `loads` returns
        what each model has to do, in a gateway of several models; their copies of the index replace `index`.
        """
        self.registry = registry = CollectorRegistry()
        registry.register(_EndpointCollector(snapshot))
        registry.register(PrefixIndexCollector(index or PrefixIndex(off=True), loads))
        registry.register(ModelLoadCollector(loads or tuple))
        TraceMetrics(registry, tracing)
        prefix = "mambaserve_gateway"
        self.requests = GatheringCounter(
            f"{prefix}_requests",
            "Requests answered, by status, and whether their own key's limit refused them.",
            ["route", "model", "code", "reason"],
            registry=registry,
        )
        self.cancelled = Counter(
            f"{prefix}_cancelled", "Requests whose client went away before the end.", registry=registry
        )
        self.retries = Counter(
            f"{prefix}_retries",
            "Attempts after which a request was sent to another engine.",
            ["reason"],
            registry=registry,
        )
        # The series exist from the start, because a rate ignores the step from no series to a value of one.
        for reason in get_args(RetryReason):
            self.retries.labels(reason)
        self.fallbacks = Counter(
            f"{prefix}_fallbacks",
            "Requests that another model served because theirs had no ready engine, by both.",
            ["model", "served_by"],
            registry=registry,
        )
        self.hand_overs = Counter(
            f"{prefix}_hand_overs",
            "Prompts sent to prefill engines, by outcome; a prompt that was given up does not count.",
            ["outcome"],
            registry=registry,
        )
        for outcome in get_args(HandOverOutcome):
            self.hand_overs.labels(outcome)
        self.prefill_seconds = Histogram(
            f"{prefix}_prefill_seconds",
            "Time that a request spent at prefill engines, whatever the outcome.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.prefilled_by_decode = Counter(
            f"{prefix}_prefilled_by_decode",
            "Requests whose prompt the decode engine computes itself, by reason.",
            ["reason"],
            registry=registry,
        )
        for why in get_args(DecodeReason):
            self.prefilled_by_decode.labels(why)
        self.peer_hints = Counter(
            f"{prefix}_peer_hints",
            "Requests sent with the address of another engine that has more of the prompt cached.",
            registry=registry,
        )
        self.broken = Counter(
            f"{prefix}_broken_streams",
            "Answers that an engine broke off after the first byte.",
            registry=registry,
        )
        self.decisions = GatheringCounter(
            f"{prefix}_decisions", "Engines chosen, by reason.", ["reason"], registry=registry
        )
        self.decision_seconds = GatheringHistogram(
            f"{prefix}_decision_seconds",
            "Time to choose an engine.",
            buckets=_DECISION_SECONDS,
            registry=registry,
        )
        self.promises = Counter(
            "mambaserve_prefix_index_promises",
            "Answers to prompts that the prefix index knew, by how much the engine resumed.",
            ["outcome"],
            registry=registry,
        )
        self.prompts = Counter(
            f"{prefix}_prompts", "Prompts read to route by them, by outcome.", ["outcome"], registry=registry
        )
        self.in_flight = Gauge(f"{prefix}_in_flight", "Requests being relayed.", registry=registry)
        self.queued = Gauge(
            f"{prefix}_queued", "Admitted requests that are not being relayed.", registry=registry
        )
        self.refused = Counter(
            f"{prefix}_refused",
            "Requests refused by a limit of their key, a full queue or a long wait.",
            ["cause", "key"],
            registry=registry,
        )
        self.counted_here = Counter(
            f"{prefix}_limits_counted_here",
            "Requests counted by this gateway alone, since Redis was away.",
            registry=registry,
        )
        self.waiting = Gauge(
            f"{prefix}_waiting", "Requests waiting for their turn, by name of their key.", ["key"],
            registry=registry,
        )  # fmt: skip
        self.queue_wait = GatheringHistogram(
            f"{prefix}_queue_wait_seconds",
            "From a request's last byte to its turn.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.held = Gauge(
            f"{prefix}_held", "Requests waiting for an endpoint to become ready.", registry=registry
        )
        buffered = Gauge(
            f"{prefix}_buffered_bytes",
            "Bytes of request bodies held until an engine begins to answer.",
            registry=registry,
        )
        if held_bytes is not None:
            buffered.set_function(held_bytes)
        self.first_byte = GatheringHistogram(
            f"{prefix}_time_to_first_byte_seconds",
            "From the request's arrival to the first byte of its answer.",
            ["model"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.duration = GatheringHistogram(
            f"{prefix}_request_duration_seconds",
            "From the request's arrival to the end of its answer.",
            ["model"],
            buckets=_SECONDS,
            registry=registry,
        )
        # A canary is judged by these: the ratio of two bounds is less than what it has to notice.
        self.canary_first = GatheringHistogram(
            f"{prefix}_canary_time_to_first_token_seconds",
            "From sending a request to the first token of its stream, by revision, while there is a canary.",
            ["deployment", "track"],
            buckets=geometric(0.005, 60.0),
            registry=registry,
        )
        self.canary_token = GatheringHistogram(
            f"{prefix}_canary_time_per_output_token_seconds",
            "Time of each further token of a stream, by revision, while there is a canary.",
            ["deployment", "track"],
            buckets=geometric(0.0005, 2.0),
            registry=registry,
        )
        self.shadow_copies = Counter(
            f"{prefix}_shadow_copies",
            "Copies of requests for the candidate of a canary, by outcome: compared, or why not.",
            ["deployment", "outcome"],
            registry=registry,
        )
        self.shadow_answers = Counter(
            f"{prefix}_shadow_answers",
            "Answers to requests of which there is a copy, by revision: a status that differs is a failure.",
            ["deployment", "track", "outcome"],
            registry=registry,
        )
        self.shadow_texts = Counter(
            f"{prefix}_shadow_texts",
            "Copies of greedy or seeded requests, by whether both revisions wrote the same text.",
            ["deployment", "result"],
            registry=registry,
        )
        self.shadow_differences = Histogram(
            f"{prefix}_shadow_first_difference_tokens",
            "Number of the first token in which the texts of both revisions differ.",
            ["deployment"],
            buckets=_TOKENS,
            registry=registry,
        )
        self._serves = serves or (
            lambda name: any(name in (endpoint.models or ()) for endpoint in snapshot())
        )
        # Looking up the series of labels costs more than counting; the labels are bounded.
        self._decision = functools.cache(self.decisions.labels)
        self.request = functools.cache(self.requests.labels)
        self.prompt = functools.cache(self.prompts.labels)
        self.promise = functools.cache(self.promises.labels)
        self.duration_of = functools.cache(self.duration.labels)
        self.shadow_copy = functools.cache(self.shadow_copies.labels)
        self.shadow_answer = functools.cache(self.shadow_answers.labels)
        self.shadow_text = functools.cache(self.shadow_texts.labels)
        self.shadow_difference = functools.cache(self.shadow_differences.labels)
        self._canary_first = functools.cache(self.canary_first.labels)
        self._canary_token = functools.cache(self.canary_token.labels)
        self.first_byte_of = functools.cache(self.first_byte.labels)

    def begin_shadow(self, deployment: str) -> None:
        """Create the series of copies, because a rate ignores the step from no series to a value of one."""
        for outcome in get_args(CopyOutcome):
            self.shadow_copy(deployment, outcome)
        for track in (names.CANDIDATE, names.STABLE):
            for answer in ("answered", "failed"):
                self.shadow_answer(deployment, track, answer)
        for result in ("equal", "different"):
            self.shadow_text(deployment, result)
        self.shadow_difference(deployment)

    def model_label(self, model: str | None) -> str:
        """Return `model` if an engine reports it, else a common label: clients cannot create label values."""
        return model if model is not None and self._serves(model) else UNKNOWN_MODEL

    @property
    def waiting_for_engines(self) -> int:
        """Number of requests that wait for an engine, as in the series `held`."""
        return int(next(iter(self.held.collect())).samples[0].value)

    def traffic(self) -> list[ModelTraffic]:
        """Return the requests of each served model, as in the series `requests` and `first_byte`."""
        [requests], [first_bytes] = self.requests.collect(), self.first_byte.collect()
        return model_traffic(requests.samples, first_bytes.samples, unknown=UNKNOWN_MODEL)

    def time_answer(
        self, deployment: str, *, candidate: bool, first: float, rest: float, tokens: int
    ) -> None:
        """Record the times of a streamed answer by revision: seconds to its first token, and for the rest.

        `deployment` is the MambaDeployment of the engines: one gateway may have canaries of several.
        """
        track = names.CANDIDATE if candidate else names.STABLE
        self._canary_first(deployment, track).observe(first)
        if tokens > 1:
            self._canary_token(deployment, track).observe(rest / (tokens - 1))

    def decided(self, reason: str, seconds: float) -> None:
        """Count a choice of an engine, which took `seconds`."""
        self._decision(reason).inc()
        self.decision_seconds.observe(seconds)

    def render(self) -> bytes:
        """Return the Prometheus text."""
        return generate_latest(self.registry)
