"""The dashboard of the gateways: where requests go, and what is known of the engines' caches."""

from observability.panels import Dashboard, Panel, Query
from observability.series import series
from observability.shared_panels import QUEUES, quantiles

ROUTING = Dashboard(
    "mambaserve-routing",
    "mambaserve / Routing",
    "Where gateways send requests, and what they know of the engines' caches.",
    series("gateway_in_flight").name,
    (
        (
            Panel(
                "Choices by reason",
                (Query(series("gateway_decisions").summed("reason"), "{{reason}}"),),
                "prefix: the engine can resume some of the prompt; home: all prompts of a new beginning go "
                "there; load: the least work; only: there was no choice.",
                unit="ops",
                stacked=True,
            ),
            Panel(
                "Load by engine",
                (Query(f"max by (endpoint) ({series('gateway_endpoint_load').now})", "{{endpoint}}"),),
                "Requests that each engine has, as the gateways know it.",
            ),
            Panel(
                "Engines that may be chosen",
                (Query(f"max by (endpoint) ({series('gateway_endpoint_ready').now})", "{{endpoint}}"),),
                "1 while an engine may be chosen.",
                most=1,
            ),
        ),
        (
            QUEUES,
            Panel(
                "Time to the first byte",
                quantiles(series("gateway_time_to_first_byte_seconds"), 0.5, 0.95, 0.99),
                "From the arrival of a request at the gateway.",
                unit="s",
            ),
            Panel(
                "Time to choose an engine",
                quantiles(series("gateway_decision_seconds"), 0.5, 0.99),
                "Below a millisecond, or the gateway has too few cores.",
                unit="s",
            ),
        ),
        (
            Panel(
                "Trouble",
                (
                    Query(series("gateway_retries").summed("reason"), "repeated: {{reason}}"),
                    Query(series("gateway_broken_streams").summed(), "broken off by an engine"),
                    Query(series("gateway_cancelled").summed(), "left by the client"),
                ),
                "Repeated attempts cost time; answers that an engine broke off cost the user an answer.",
                unit="ops",
            ),
            Panel(
                "Prompts read to route by them",
                (Query(series("gateway_prompts").summed("outcome"), "{{outcome}}"),),
                "Anything but read is routed without knowing what could be resumed.",
                unit="ops",
                stacked=True,
            ),
            Panel(
                "Bytes of bodies held",
                (Query(series("gateway_buffered_bytes").summed(), "held"),),
                "Each body is held until an engine begins to answer.",
                unit="bytes",
            ),
        ),
        (
            Panel(
                "Prefix index",
                (Query(f"sum by (state) ({series('prefix_index_state').now})", "{{state}}"),),
                "Gateways in each state. unavailable: no feed; stale: an engine's part has holes.",
                stacked=True,
            ),
            Panel(
                "What it knows",
                (
                    Query(f"max({series('prefix_index_entries').now})", "prefixes"),
                    Query(f"max({series('prefix_index_engines').now})", "engines"),
                ),
                "Of the gateway that knows most.",
            ),
            Panel(
                "Lag",
                (Query(f"max({series('prefix_index_lag_seconds').now})", "slowest gateway"),),
                "From the making of a batch of changes to its arrival.",
                unit="s",
            ),
            Panel(
                "Gaps and failures",
                (
                    Query(series("prefix_index_gaps").summed(), "gaps"),
                    Query(series("prefix_index_failures").summed(), "feed away"),
                    Query(series("prefix_index_publish_failures").summed(), "engine could not publish"),
                ),
                "A gap is filled by a snapshot; many of them mean that the feed loses messages.",
                unit="ops",
            ),
            Panel(
                "What engines resumed beside it",
                (Query(series("prefix_index_promises").summed("outcome"), "{{outcome}}"),),
                "false: less than the index said, which it then believes no more; outdated: it knew by then.",
                unit="ops",
                stacked=True,
            ),
        ),
    ),
)
