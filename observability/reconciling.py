"""The dashboard of the operator: whether MambaDeployments become what they ask for."""

from observability.panels import Dashboard, Panel, Query
from observability.series import series
from observability.shared_panels import quantiles

OPERATOR = Dashboard(
    "mambaserve-operator",
    "mambaserve / Operator",
    "Whether MambaDeployments become what they ask for.",
    series("operator_leader").name,
    (
        (
            Panel(
                "Leaders",
                (Query(series("operator_leader").summed()),),
                "The expected value is 1. With 0, nothing is reconciled, but running pods continue to serve.",
                kind="stat",
            ),
            Panel(
                "Queue",
                (Query(series("operator_queue_depth").summed()),),
                "MambaDeployments that wait for a pass.",
                kind="stat",
            ),
        ),
        (
            Panel(
                "Passes by result",
                (Query(series("operator_reconciles").summed("result"), "{{result}}"),),
                "error: the API server refused a request, or a pass took too long. The operator's log and "
                "the object's conditions say which.",
                unit="ops",
                stacked=True,
            ),
            Panel(
                "Duration of a pass",
                quantiles(series("operator_reconcile_seconds"), 0.5, 0.95),
                "Time that the operator takes for one pass over a MambaDeployment.",
                unit="s",
            ),
        ),
        (
            Panel(
                "Children changed",
                (Query(series("operator_child_changes").summed("kind", "change"), "{{change}} {{kind}}"),),
                "If this stays above zero without an edit, somebody else changes the same objects.",
                unit="ops",
            ),
            Panel(
                "Objects delivered by watches",
                (Query(series("operator_watch_events").summed("kind"), "{{kind}}"),),
                "Changes of objects, which start passes of the operator.",
                unit="ops",
            ),
            Panel(
                "Requests to the API server",
                (Query(series("operator_requests").summed("method", "resource"), "{{method}} {{resource}}"),),
                "Without changes, the only requests are those for the lease, and one list per kind at each "
                "resync: a pass over an unchanged object makes none.",
                unit="ops",
                stacked=True,
            ),
        ),
    ),
)
