"""Series of a gateway's copy of the prefix index, read at scrape time."""

from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mamba_gateway.metrics.model_loads import Loads
from mamba_prefix.prefix_index import PrefixIndex, RefusedKind, State

_PREFIX = "mambaserve_prefix_index"


Labels = tuple[str, ...]


class PrefixIndexCollector(Collector):
    """Collector of the series about one gateway's copies of the prefix index.

    A gateway of one model has one copy, without a label; one of several models has a copy for each, with the
    label `model`. `loads` yields the models of such a gateway.
    """

    def __init__(self, index: PrefixIndex | None, loads: Loads | None = None) -> None:
        self._index, self._loads = index, loads
        self._labels = ["model"] if loads is not None else []

    def collect(self) -> Iterator[Metric]:
        """Yield all series."""
        indexes = list(self._indexes())
        state = GaugeMetricFamily(
            f"{_PREFIX}_state",
            "1 for the state that the copy of the prefix index is in.",
            labels=[*self._labels, "state"],
        )
        redis = GaugeMetricFamily(
            f"{_PREFIX}_redis_up",
            "1 while the index follows Redis, 0 while Redis is away and engines are polled instead.",
            labels=self._labels,
        )
        refused = CounterMetricFamily(
            f"{_PREFIX}_refused_messages",
            "Messages in Redis that no engine writes, because they are too large or too many.",
            labels=[*self._labels, "kind"],
        )
        for labels, index in indexes:
            for name in get_args(State):
                state.add_metric([*labels, name], float(index.state == name))
            if index.redis_up is not None:
                redis.add_metric(labels, float(index.redis_up))
            for kind in get_args(RefusedKind):
                refused.add_metric([*labels, kind], index.refused_messages[kind])
        yield from (state, redis, refused)
        for name, text, gauge in _GAUGES:
            family = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=self._labels)
            for labels, index in indexes:
                family.add_metric(labels, gauge(index))
            yield family
        for name, text, count in _COUNTERS:
            counter = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=self._labels)
            for labels, index in indexes:
                counter.add_metric(labels, count(index))
            yield counter

    def _indexes(self) -> Iterator[tuple[Labels, PrefixIndex]]:
        if self._loads is not None:
            yield from (((load.model,), load.index) for load in self._loads())
        elif self._index is not None:
            yield (), self._index


_GAUGES: tuple[tuple[str, str, Callable[[PrefixIndex], float]], ...] = (
    ("entries", "Prefixes that an engine can resume, as far as is known.", lambda index: index.entries),
    (
        "pages",
        "Prefixes whose attention an engine has, at some pages of each prompt, as far as is known.",
        lambda index: index.pages,
    ),
    ("engines", "Engines of which is known what they have.", lambda index: len(index.engines())),
    ("bytes", "Memory of the copy's tables.", lambda index: index.bytes),
    ("lag_seconds", "Of the last batch, from its making to its arrival.", lambda index: index.lag),
    (
        "refused_engines",
        "Engines beyond those that the copy has room for.",
        lambda index: len(index.refused_engines),
    ),
)
_COUNTERS: tuple[tuple[str, str, Callable[[PrefixIndex], float]], ...] = (
    (
        "gaps",
        "Times that batches of an engine were missing; a snapshot fills them.",
        lambda index: index.gaps,
    ),
    ("snapshots", "Snapshots of engines that were read.", lambda index: index.snapshots),
    ("refused_entries", "Prefixes that there was no room for.", lambda index: index.refused_entries),
    (
        "failures",
        "Times that Redis, or an engine asked directly, was away.",
        lambda index: index.failures,
    ),
)
