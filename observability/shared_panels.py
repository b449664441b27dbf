"""Queries and panels that more than one dashboard has."""

from observability.panels import Panel, Query
from observability.series import Series, series

ENGINE = ("instance", "pod")
"""Labels that tell engines, or gateways, apart: a pod's name in a cluster, an address elsewhere."""
NAMED = "{{pod}} {{instance}}"


def share(part: Series, all_of_them: Series, *by: str) -> str:
    """Return the growth of the counter `part` divided by that of `all_of_them`."""
    return f"{part.summed(*by)} / {all_of_them.summed(*by)}"


def quantiles(histogram: Series, *shares: float) -> tuple[Query, ...]:
    """Return a line for each quantile."""
    return tuple(Query(histogram.quantile(each), f"p{100 * each:g}") for each in shares)


RESUMED = Panel(
    "Prompt tokens resumed from a checkpoint",
    (
        Query(share(series("cached_tokens"), series("prompt_tokens")), "all"),
        Query(share(series("cached_tokens"), series("prompt_tokens"), *ENGINE), NAMED),
    ),
    "Share of prompt tokens that no engine had to compute. If it falls after a release, prompts usually "
    "begin differently now; see the causes of misses.",
    unit="percentunit",
    most=1,
)
QUEUES = Panel(
    "Requests at the gateways",
    (
        Query(series("gateway_in_flight").summed(), "in flight"),
        Query(series("gateway_queued").summed(), "queued"),
        Query(series("gateway_held").summed(), "held (no engine is ready)"),
    ),
    "Queued requests wait for a place at the gateway. Held requests wait for an engine to become ready.",
)
