"""Series about each model of a gateway that serves several, read at scrape time.

A model is labelled by its name in the document of models, which bounds the number of label values. A gateway
of one model has none of these series.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mamba_prefix.prefix_index import PrefixIndex

_PREFIX = "mambaserve_gateway_model"


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """Load of one model at this moment."""

    model: str
    ready_engines: int
    in_flight: int
    queued: int
    index: PrefixIndex


Loads = Callable[[], Iterable[ModelLoad]]
"""Returns the loads of all models of a gateway."""


class ModelLoadCollector(Collector):
    """Collector of the series about the models of one gateway."""

    def __init__(self, loads: Loads) -> None:
        self._loads = loads

    def collect(self) -> Iterator[Metric]:
        """Yield all series."""
        engines = GaugeMetricFamily(
            f"{_PREFIX}_ready_engines",
            "Engines that may be chosen, by model, where one gateway serves several.",
            labels=["model"],
        )
        in_flight = GaugeMetricFamily(
            f"{_PREFIX}_in_flight",
            "Requests being relayed, by model, where one gateway serves several.",
            labels=["model"],
        )
        queued = GaugeMetricFamily(
            f"{_PREFIX}_queued",
            "Requests waiting for a place or an engine, by model, where one gateway serves several.",
            labels=["model"],
        )
        for load in self._loads():
            engines.add_metric([load.model], load.ready_engines)
            in_flight.add_metric([load.model], load.in_flight)
            queued.add_metric([load.model], load.queued)
        yield from (engines, in_flight, queued)
