"""Series of a gateway's copy of the prefix index, read at scrape time."""

from collections.abc import Iterator
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mamba_prefix.prefix_index import PrefixIndex, RefusedKind, State

_PREFIX = "mambaserve_prefix_index"


class PrefixIndexCollector(Collector):
    """Collector of the series about one gateway's copy of the prefix index."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index

    def collect(self) -> Iterator[Metric]:
        """Yield all series."""
        index = self._index
        state = GaugeMetricFamily(
            f"{_PREFIX}_state", "1 for the state that the copy of the prefix index is in.", labels=["state"]
        )
        for name in get_args(State):
            state.add_metric([name], float(index.state == name))
        yield state
        redis = GaugeMetricFamily(
            f"{_PREFIX}_redis_up",
            "1 while Redis is followed, 0 while it is away and engines are asked; no sample without one.",
        )
        if index.redis_up is not None:
            redis.add_metric([], float(index.redis_up))
        yield redis
        for name, text, value in (
            ("entries", "Prefixes that an engine can resume, as far as is known.", index.entries),
            (
                "pages",
                "Prefixes whose attention an engine has, at some pages of each prompt, as far as is known.",
                index.pages,
            ),
            ("engines", "Engines of which is known what they have.", len(index.engines())),
            ("bytes", "Memory of the copy's tables.", index.bytes),
            ("lag_seconds", "Of the last batch, from its making to its arrival.", index.lag),
            (
                "refused_engines",
                "Engines beyond those that the copy has room for.",
                len(index.refused_engines),
            ),
        ):
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", text, value)
        refused = CounterMetricFamily(
            f"{_PREFIX}_refused_messages",
            "What Redis had that is larger than any engine writes, or names beyond those looked at.",
            labels=["kind"],
        )
        for kind in get_args(RefusedKind):
            refused.add_metric([kind], index.refused_messages[kind])
        yield refused
        for name, text, value in (
            ("gaps", "Times that batches of an engine were missing; a snapshot fills them.", index.gaps),
            ("snapshots", "Snapshots of engines that were read.", index.snapshots),
            ("refused_entries", "Prefixes that there was no room for.", index.refused_entries),
            ("failures", "Times that Redis, or an engine asked directly, was away.", index.failures),
        ):
            yield CounterMetricFamily(f"{_PREFIX}_{name}", text, value)
