"""The engine's numbers on `/metrics`: what EngineStats brought last, under our names and common aliases.

`engine_client` feeds it, the registry collects it. Label names and the number of series are bounded here,
because the numbers come from another process.
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
LABELS = frozenset({"owner", "cause", "reason", "strategy", "kind", "tier", "component", "operator"})
MOST_SERIES = 32
"""Label combinations kept of one metric."""
OF_REQUESTS = frozenset({"prompt_tokens", "generation_tokens", "cached_tokens", "requests_finished"})
"""Counted by `request_metrics`; the engine's own count of them would be a second series of that name."""

HELP = {
    "requests_running": "Sequences in the running batch.",
    "requests_waiting": "Requests that wait for admission.",
    "max_running_requests": "Sequences that run at once at most.",
    "admitted_prompt_tokens": "Prompt tokens of sequences that were admitted.",
    "shared_prompt_tokens": "Of admitted prompt tokens, those that came by before, kept or not.",
    "recomputed_tokens": "Tokens computed again after a preemption.",
    "sequences_finished": "Sequences the engine finished, by reason.",
    "checkpoints": "Checkpoints in the tree.",
    "slabs": "Slabs of the arena by owner; one holds a state or pages.",
    "slots": "State slots by owner.",
    "pages": "Attention KV pages by owner.",
    "arena_usage": "Share of the arena that not even eviction could free.",
    "state_usage": "Share of the slots held by running sequences.",
    "kv_usage": "Share of the pages held by running sequences.",
    "prompt_tokens_waiting": "Prompt tokens that are to be computed, about.",
    "prompt_room_tokens": "Prompt tokens for which memory could be had now.",
    "prefill_tokens_per_second": "Speed of prompts, at their beginning; 0 before any was computed.",
    "prefill_speed_error": "Standard error of that speed, by the speed; 1 where next to nothing is known.",
    "prefill_attention_ratio": "Work of attention for one token before, relative to all else of a token.",
    "decode_step_seconds": "Time of a step that only decodes; 0 before there was one.",
    "decode_steps": "Numbers of rows for which a decode step is prepared: captured, or issued each time.",
    "kernels_left_out": "Always 1: the Triton kernel of this operator is left out, torch computes it.",
    "checkpoints_made": "Checkpoints written.",
    "checkpoints_skipped": "Checkpoints that were due but not written.",
    "checkpoints_evicted": "Checkpoints given up for memory.",
    "prefix_misses": "Prompts that resumed less than they could have, by cause.",
    "steps": "Steps of the engine.",
    "failed_steps": "Steps that failed and were undone.",
    "host_syncs": "Device-to-host synchronisations inside a step; 0 is right.",
    "jit_compilations_after_ready": "Kernels compiled while serving; 0 is right.",
    "preemptions": "Sequences preempted.",
}


def parse_key(key: str) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    """`name{label=value,…}` as name and sorted labels; None when it is not that, or has a foreign label."""
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
    """Registers itself. `model` is the label every series carries."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._model = model
        self._counters: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._plan: dict[str, Any] = {}
        self.health: Callable[[], tuple[bool, int]] = lambda: (False, 0)
        """Whether the engine is ready, and how often it was restarted."""
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
        registry.register(self)

    def on_ready(self, ready: Ready) -> None:
        """The plan in force, for the info series."""
        self._plan = ready.plan

    def on_strategy(self, strategy: str) -> None:
        """The strategy was changed while serving."""
        self._plan = {**self._plan, "strategy": strategy}

    def on_stats(self, stats: EngineStats) -> None:
        """The newest numbers."""
        self._counters, self._gauges = stats.counters, stats.gauges
        for parts in stats.step_seconds:
            for part, seconds in zip(("schedule", "run", "commit"), parts, strict=True):
                self._steps.labels(self._model, part).observe(seconds)
        for size in stats.batch_sizes:
            self._batch.observe(size)

    def gauge(self, name: str) -> float:
        """The current value of an unlabelled gauge; 0 before the engine said anything."""
        return self._gauges.get(name, 0.0)

    def cache_usage(self) -> float:
        """What binds, 0 to 1. A checkpoint that can be evicted does not count, as in vLLM."""
        parts = max(self.gauge("state_usage"), self.gauge("kv_usage"))
        return self._gauges.get("arena_usage", parts)

    def collect(self) -> Iterator[Metric]:
        """Every series of the engine."""
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
            if parsed is None or parsed[0] in OF_REQUESTS:
                continue
            name, labels = parsed
            series = grouped.setdefault((name, tuple(item[0] for item in labels)), {})
            if len(series) < MOST_SERIES or tuple(item[1] for item in labels) in series:
                series[tuple(item[1] for item in labels)] = value
        seen: set[str] = set()
        for (name, label_names), series in grouped.items():
            if name in seen:
                continue  # one set of label names a metric
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
            PREFIX + "cache_usage", "Share of the cache in use: of what binds.", labels=["model"]
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
            "What computes: torch, triton, or the C++ kernels for an instruction set of the CPU.",
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
