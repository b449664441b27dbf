"""Metrics of the engine on `/metrics`: the last EngineStats, under our names and common aliases.

`engine_client` hands over the statistics, the registry collects the metrics. Label names and the number of
series are bounded here, because the statistics come from another process.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mamba_server.wire import EngineStats, Ready
from mamba_telemetry.registry import BATCH_BUCKETS, PREFIX, STEP_BUCKETS

_KEY = re.compile(r"^([a-z][a-z0-9_]*)(?:\{([^{}]*)\})?$")
LABELS = frozenset(
    {
        "owner",
        "cause",
        "reason",
        "strategy",
        "kind",
        "tier",
        "component",
        "operator",
        "direction",
        "outcome",
        "origin",
    }
)
TRANSFER_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
DISTANCE_BUCKETS = (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
DISTANCES = frozenset({"scores", "states"})
DIRECTIONS = frozenset({"in", "out", "demoted", "restored"})
MAX_SERIES = 32
"""Maximum number of label combinations of one metric."""
REQUEST_METRICS = frozenset({"prompt_tokens", "generation_tokens", "cached_tokens", "requests_finished"})
"""Metrics that `request_metrics` counts; the engine's own count would be a second series of that name."""

HELP = {
    "requests_running": "Sequences in the running batch.",
    "requests_waiting": "Requests that wait for admission.",
    "max_running_requests": "Maximum number of sequences that run at once.",
    "admitted_prompt_tokens": "Prompt tokens of sequences that were admitted.",
    "shared_prompt_tokens": "Admitted prompt tokens that an earlier prompt shared, cached or not.",
    "recomputed_tokens": "Tokens computed again after a preemption.",
    "sequences_finished": "Sequences the engine finished, by reason.",
    "checkpoints": "Checkpoints in the tree.",
    "pinned_checkpoints": "Checkpoints that eviction takes only when nothing else is left.",
    "pins": "Pins by outcome: pinned, renewed, refused, expired, over_budget, given_up to a sequence.",
    "slabs": "Slabs of the arena by owner; a slab holds one state or several pages.",
    "slots": "State slots by owner.",
    "pages": "Attention KV pages by owner.",
    "arena_usage": "Share of the arena that eviction cannot free.",
    "state_usage": "Share of the slots held by running sequences.",
    "kv_usage": "Share of the pages held by running sequences.",
    "prompt_tokens_waiting": "Approximate number of prompt tokens that wait to be computed.",
    "prompt_room_tokens": "Prompt tokens for which memory is available or can be freed now.",
    "prefill_tokens_per_second": "Speed of prefill at the beginning of a prompt; 0 before the first prompt.",
    "prefill_speed_error": "Relative standard error of the speed of prefill; 1 = hardly measured yet.",
    "prefill_attention_ratio": "Attention's work per preceding token, relative to a token's other work.",
    "decode_step_seconds": "Time of a step that only decodes; 0 before the first one.",
    "decode_steps": "Numbers of rows for which a decode step is prepared: captured, or issued each time.",
    "kernels_left_out": "Always 1: torch computes this operator instead of its Triton kernel.",
    "checkpoints_made": "Checkpoints written.",
    "checkpoints_skipped": "Checkpoints that were due but not written.",
    "checkpoints_evicted": "Checkpoints evicted to free memory.",
    "checkpoints_quarantined": "Checkpoints withdrawn because an audit called them wrong.",
    "audits": "Audited answers that had resumed, by outcome and origin of the checkpoint.",
    "prefix_misses": "Prompts that resumed fewer tokens than they could have, by cause.",
    "steps": "Steps of the engine.",
    "device_seconds": "Time of the device in steps of requests.",
    "slot_seconds": "State slots times the seconds for which sequences held them.",
    "page_seconds": "Attention pages times the seconds for which sequences used them.",
    "saved_device_seconds": "Time of the device that resumed tokens would have taken.",
    "failed_steps": "Steps that failed and were undone.",
    "host_syncs": "Device-to-host synchronisations inside a step; 0 is expected.",
    "jit_compilations_after_ready": "Kernels compiled while serving; 0 is expected.",
    "preemptions": "Sequences preempted.",
    "speculation_on": "1 while steps may have drafts, 0 since an audit or an admin call switched them off.",
    "draft_steps": "Steps that checked drafts.",
    "draft_tokens": "Drafted tokens that were checked, by kind of draft.",
    "accepted_draft_tokens": "Drafted tokens that the model sampled, too, by kind of draft.",
    "absorbed_draft_tokens": "Accepted tokens whose inputs a later step put into the state.",
    "transfers": "States moved: in and out between engines, demoted and restored between arena and tiers.",
    "transfer_bytes": "Bytes of the states that were moved whole, by direction.",
    "transfer_receiving": "State slots that a transfer is filling.",
    "transfer_exported": "State slots kept for other engines.",
    "transfer_quarantined": "State slots that the writer of an abandoned transfer may still write.",
    "transfer_credits": "States that the engine can take from other engines now.",
}


def parse_key(key: str) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    """Parse `name{label=value,…}` into name and sorted labels.

    The result is None if the key has another form or a label that is not in `LABELS`.
    """
    match = _KEY.match(key)
    if match is None:
        return None
    labels = []
    for pair in filter(None, (match.group(2) or "").split(",")):
        name, equals, value = pair.partition("=")
        if not equals or name.strip() not in LABELS:
            return None
        labels.append((name.strip(), value.strip().strip('"')[:64]))
    return match.group(1).removesuffix("_total"), tuple(sorted(labels))


class EngineMetrics(Collector):
    """Exposes to Prometheus what the engine process reports. `model` is a label of every series.

    The object registers itself.
    """

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._model = model
        self._counters: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._plan: dict[str, Any] = {}
        self.health: Callable[[], tuple[bool, int]] = lambda: (False, 0)
        """Returns whether the engine is ready, and how often it was restarted."""
        self._steps = Histogram(
            PREFIX + "step_seconds",
            "Time of a step by part: schedule, run, commit.",
            ["model", "part"],
            buckets=STEP_BUCKETS,
            registry=registry,
        )
        self._batch = Histogram(
            PREFIX + "batch_size",
            "Sequences in a step.",
            ["model"],
            buckets=BATCH_BUCKETS,
            registry=registry,
        ).labels(model)
        self._transfers = Histogram(
            PREFIX + "transfer_seconds",
            "Time of a transfer of a state, by direction, whatever its outcome.",
            ["model", "direction"],
            buckets=TRANSFER_BUCKETS,
            registry=registry,
        )
        self._distances = Histogram(
            PREFIX + "audit_distance",
            "Distance of audited answers: scores in nats a token, states relative to the largest number.",
            ["model", "kind"],
            buckets=DISTANCE_BUCKETS,
            registry=registry,
        )
        registry.register(self)

    def on_ready(self, ready: Ready) -> None:
        """Keep the plan in force, for the info series."""
        self._plan = ready.plan

    def on_strategy(self, strategy: str) -> None:
        """Record that the strategy was changed while serving."""
        self._plan = {**self._plan, "strategy": strategy}

    def on_stats(self, stats: EngineStats) -> None:
        """Keep the newest statistics, and observe the steps that they describe."""
        self._counters, self._gauges = stats.counters, stats.gauges
        for parts in stats.step_seconds:
            for part, seconds in zip(("schedule", "run", "commit"), parts, strict=True):
                self._steps.labels(self._model, part).observe(seconds)
        for size in stats.batch_sizes:
            self._batch.observe(size)
        for direction, seconds in stats.transfer_seconds:
            if direction in DIRECTIONS:
                self._transfers.labels(self._model, direction).observe(seconds)
        for kind, distance in stats.audit_distances:
            if kind in DISTANCES:
                self._distances.labels(self._model, kind).observe(distance)

    def gauge(self, name: str) -> float:
        """Return the current value of an unlabelled gauge; 0 before the engine's first statistics."""
        return self._gauges.get(name, 0.0)

    def cache_usage(self) -> float:
        """Return the used share of the scarcest cache memory, 0 to 1.

        Checkpoints that can be evicted do not count, as in vLLM.
        """
        largest = max(self.gauge("state_usage"), self.gauge("kv_usage"))
        return self._gauges.get("arena_usage", largest)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the engine."""
        yield from self._families(
            self._gauges, GaugeMetricFamily, defaults=("requests_running", "requests_waiting")
        )
        yield from self._families(self._counters, CounterMetricFamily, defaults=("preemptions",))
        yield from self._own()
        yield from self._aliases()

    def _families(
        self,
        values: dict[str, float],
        family: type[GaugeMetricFamily] | type[CounterMetricFamily],
        defaults: tuple[str, ...],
    ) -> Iterator[Metric]:
        grouped: dict[tuple[str, tuple[str, ...]], dict[tuple[str, ...], float]] = {
            (name, ()): {(): 0.0} for name in defaults
        }
        for key, value in values.items():
            parsed = parse_key(key)
            if parsed is None or parsed[0] in REQUEST_METRICS:
                continue
            name, labels = parsed
            series = grouped.setdefault((name, tuple(item[0] for item in labels)), {})
            if len(series) < MAX_SERIES or tuple(item[1] for item in labels) in series:
                series[tuple(item[1] for item in labels)] = value
        seen: set[str] = set()
        for (name, label_names), series in grouped.items():
            if name in seen:
                continue  # a metric has one set of label names
            seen.add(name)
            metric = family(
                PREFIX + name, HELP.get(name, f"{name} of the engine."), labels=["model", *label_names]
            )
            for label_values, value in series.items():
                metric.add_metric([self._model, *label_values], value)
            yield metric

    def _own(self) -> Iterator[Metric]:
        ready, restarted = self.health()
        up = GaugeMetricFamily(PREFIX + "engine_up", "1 while the engine is ready.", labels=["model"])
        up.add_metric([self._model], float(ready))
        yield up
        restarts = CounterMetricFamily(
            PREFIX + "engine_restarts", "Restarts of the engine process.", labels=["model"]
        )
        restarts.add_metric([self._model], restarted)
        yield restarts
        usage = GaugeMetricFamily(
            PREFIX + "cache_usage", "Used share of the scarcest cache memory.", labels=["model"]
        )
        usage.add_metric([self._model], self.cache_usage())
        yield usage
        info = GaugeMetricFamily(
            PREFIX + "strategy_info", "The strategy in force.", labels=["model", "strategy"]
        )
        if not any(key.startswith("strategy_info{") for key in self._gauges):
            info.add_metric([self._model, str(self._plan.get("strategy", "unknown"))], 1.0)
            yield info
        kernels = GaugeMetricFamily(
            PREFIX + "kernels_info",
            "The kernels in use: torch, triton, or the C++ kernels for an instruction set of the CPU.",
            labels=["model", "kernels"],
        )
        kernels.add_metric([self._model, str(self._plan.get("kernels", "unknown"))], 1.0)
        yield kernels

    def _aliases(self) -> Iterator[Metric]:
        for name, help_text, value in (
            ("num_requests_running", "Alias of mambaserve_requests_running.", self.gauge("requests_running")),
            ("num_requests_waiting", "Alias of mambaserve_requests_waiting.", self.gauge("requests_waiting")),
            ("kv_cache_usage_perc", "Alias of mambaserve_cache_usage.", self.cache_usage()),
        ):
            gauge = GaugeMetricFamily("vllm:" + name, help_text, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        preemptions = CounterMetricFamily(
            "vllm:num_preemptions", "Alias of mambaserve_preemptions_total.", labels=["model_name"]
        )
        preemptions.add_metric([self._model], self._counters.get("preemptions_total", 0.0))
        yield preemptions
        config = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Pages of the attention KV cache.",
            labels=["model_name", "block_size", "num_gpu_blocks"],
        )
        plan = self._plan
        config.add_metric([self._model, str(plan.get("pageSize", "")), str(plan.get("pages", ""))], 1.0)
        yield config
