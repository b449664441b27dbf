"""Reads `/metrics` of an engine or a gateway: values by name and labels. Never raises for bad text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer. `values` by the name on the wire (counters end in `_total`), with their labels."""

    values: Mapping[str, tuple[tuple[Labels, float], ...]] = field(default_factory=dict)

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of the series that carry these labels; None = there is none."""
        found = [value for _, value in self.series(name, **labels)]
        return sum(found) if found else None

    def series(self, name: str, **labels: str) -> Iterator[tuple[Labels, float]]:
        """(labels, value) of the series that carry these labels."""
        for have, value in self.values.get(name, ()):
            if all(have.get(key) == wanted for key, wanted in labels.items()):
                yield have, value

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by the value of one label, in the order in which they were told."""
        found: dict[str, float] = {}
        for have, value in self.series(name):
            found[have.get(label, "")] = found.get(have.get(label, ""), 0.0) + value
        return found


def read_metrics(text: str) -> Scrape:
    """What the text says; what is no Prometheus text says nothing."""
    found: dict[str, list[tuple[Labels, float]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    except (ValueError, KeyError, IndexError):
        return Scrape()
    return Scrape({name: tuple(series) for name, series in found.items()})
