"""`Scrape`: the metrics of an engine or a gateway, by name and labels. Reading never raises for bad text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Scrape:
    """The metrics that one server answered with.

    `values` maps the exposed name to (labels, value) of each series.
    """

    values: Mapping[str, tuple[tuple[Labels, float], ...]] = field(default_factory=dict)

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of the series with these labels; None = there is none."""
        values = [value for _, value in self.series(name, **labels)]
        return sum(values) if values else None

    def series(self, name: str, **labels: str) -> Iterator[tuple[Labels, float]]:
        """Yield (labels, value) of the series with these labels."""
        for present, value in self.values.get(name, ()):
            if all(present.get(key) == required for key, required in labels.items()):
                yield present, value

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the sums by the value of one label, in the order of the text."""
        sums: dict[str, float] = {}
        for labels, value in self.series(name):
            sums[labels.get(label, "")] = sums.get(labels.get(label, ""), 0.0) + value
        return sums


def read_metrics(text: str) -> Scrape:
    """Read a Prometheus text; any other text gives an empty scrape."""
    values: dict[str, list[tuple[Labels, float]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values.setdefault(sample.name, []).append((sample.labels, sample.value))
    except (ValueError, KeyError, IndexError):
        return Scrape()
    return Scrape({name: tuple(series) for name, series in values.items()})
