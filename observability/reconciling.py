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
                "1. None: nothing is reconciled, while what runs goes on.",
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
                "error: the API server refused something, or a pass took too long; the operator's log "
                "and the "
                "object's conditions say which.",
                unit="ops",
                stacked=True,
            ),
            Panel(
                "Length of a pass", quantiles(series("operator_reconcile_seconds"), 0.5, 0.95), "", unit="s"
            ),
        ),
        (
            Panel(
                "Children changed",
                (Query(series("operator_child_changes").summed("kind", "change"), "{{change}} {{kind}}"),),
                "Steadily above zero without an edit: somebody else changes the same objects.",
                unit="ops",
            ),
            Panel(
                "Objects that watches delivered",
                (Query(series("operator_watch_events").summed("kind"), "{{kind}}"),),
                "What wakes the operator.",
                unit="ops",
            ),
            Panel(
                "Requests to the API server",
                (Query(series("operator_requests").summed("method", "resource"), "{{method}} {{resource}}"),),
                "At rest these are the lease, and one list per kind at each resync: a pass over an unchanged "
                "object makes none.",
                unit="ops",
                stacked=True,
            ),
        ),
    ),
)
