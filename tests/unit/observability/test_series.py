"""Names in dashboards equal those of the processes: a renamed series or label is an error here."""

import pytest

from live_series import emitted, engine
from observability.series import SCRAPED, Series, UnknownSeries, _catalogue, series

LIVE = emitted()


def test_every_series_that_is_exposed_can_be_named_and_has_its_type() -> None:
    exposed = {name: kind for name, kind in LIVE.items() if name.startswith("mambaserve_")}
    assert {name: series(name.removeprefix("mambaserve_")).kind for name in exposed} == exposed


def test_nothing_can_be_named_that_no_process_exposes() -> None:
    assert {name for name in _catalogue() if name.startswith("mambaserve_")} <= set(LIVE)


def test_the_labels_are_those_of_the_samples() -> None:
    labels = {
        family.name: {label for sample in family.samples for label in sample.labels} - {"le"}
        for family in engine()
        if family.name.startswith("mambaserve_") and family.samples
    }
    assert len(labels) > 30
    assert {name: found for name, found in labels.items() if found != _catalogue()[name].labels} == {}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: series("slot"),
        lambda: series("slots").summed("cause"),
        lambda: series("slots").where(cause="x"),
        lambda: series("slots").rate(),
        lambda: series("prompt_tokens").now,
        lambda: series("prompt_tokens").quantile(0.5),
        lambda: series("batch_size").quantile(0.5, "part"),
    ],
)
def test_what_does_not_exist_cannot_be_asked(wrong: object) -> None:
    with pytest.raises(UnknownSeries):
        wrong()  # type: ignore[operator]


def test_expressions_are_what_prometheus_means_by_them() -> None:
    requests = Series("mambaserve_x", "counter", frozenset({"code"}))
    assert requests.where(code="429").rate("5m") == 'rate(mambaserve_x_total{code="429"}[5m])'
    assert requests.like(code="5..").summed("code", window="5m") == (
        'sum by (code) (rate(mambaserve_x_total{code=~"5.."}[5m]))'
    )
    seconds = Series("mambaserve_s", "histogram", frozenset())
    assert seconds.quantile(0.95, window="1m") == (
        "histogram_quantile(0.95, sum by (le) (rate(mambaserve_s_bucket[1m])))"
    )
    assert seconds.mean(window="1m") == "sum(rate(mambaserve_s_sum[1m])) / sum(rate(mambaserve_s_count[1m]))"
    gauge = Series("mambaserve_g", "gauge", frozenset())
    assert gauge.summed(*sorted(SCRAPED)) == "sum by (instance, namespace, pod) (mambaserve_g)"
