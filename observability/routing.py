"""The dashboard of the gateways: where requests go, and what gateways know of the engines' caches."""

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
                "prefix: the engine can resume a part of the prompt; home: all prompts with the same new "
                "beginning go to this engine; load: the engine has the least work; only: there was no "
                "choice.",
                unit="ops",
                stacked=True,
            ),
            Panel(
                "Load by engine",
                (Query(f"max by (endpoint) ({series('gateway_endpoint_load').now})", "{{endpoint}}"),),
                "Requests at each engine, as far as the gateways know.",
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
                "Time from the arrival of a request at the gateway to the first byte of its answer.",
                unit="s",
            ),
            Panel(
                "Time to choose an engine",
                quantiles(series("gateway_decision_seconds"), 0.5, 0.99),
                "The expected value is below a millisecond. If it is higher, the gateway has too few cores.",
                unit="s",
            ),
        ),
        (
            Panel(
                "Failed attempts and lost answers",
                (
                    Query(series("gateway_retries").summed("reason"), "repeated: {{reason}}"),
                    Query(series("gateway_broken_streams").summed(), "broken off by an engine"),
                    Query(series("gateway_cancelled").summed(), "cancelled by the client"),
                ),
                "A repeated attempt costs time. If an engine breaks off an answer, the user loses it.",
                unit="ops",
            ),
            Panel(
                "Prompts tokenized for routing",
                (Query(series("gateway_prompts").summed("outcome"), "{{outcome}}"),),
                "With any outcome but read, the gateway routes without knowing what can be resumed.",
                unit="ops",
                stacked=True,
            ),
            Panel(
                "Request bodies held",
                (Query(series("gateway_buffered_bytes").summed(), "held"),),
                "Bytes of request bodies. The gateway holds each body until an engine begins to answer.",
                unit="bytes",
            ),
        ),
        (
            Panel(
                "Prompts of decode engines",
                (
                    Query(series("gateway_hand_overs").summed("outcome"), "prefill: {{outcome}}"),
                    Query(series("gateway_prefilled_by_decode").summed("reason"), "decode: {{reason}}"),
                ),
                "prefill: prompts that prefill engines computed, or did not; decode: prompts that the decode "
                "engines computed themselves, and why.",
                unit="ops",
                stacked=True,
            ),
            Panel(
                "Prefix index",
                (Query(f"sum by (state) ({series('prefix_index_state').now})", "{{state}}"),),
                "Gateways in each state. unavailable: the gateway has no feed; stale: the part of an engine "
                "has gaps.",
                stacked=True,
            ),
            Panel(
                "Contents of the prefix index",
                (
                    Query(f"max({series('prefix_index_entries').now})", "prefixes"),
                    Query(f"max({series('prefix_index_engines').now})", "engines"),
                ),
                "Numbers of the gateway with the largest index.",
            ),
            Panel(
                "Lag of the prefix index",
                (Query(f"max({series('prefix_index_lag_seconds').now})", "slowest gateway"),),
                "Time from the creation of a batch of changes to its arrival.",
                unit="s",
            ),
            Panel(
                "Gaps and failures of the prefix index",
                (
                    Query(series("prefix_index_gaps").summed(), "gaps"),
                    Query(series("prefix_index_failures").summed(), "feed unreachable"),
                    Query(series("prefix_index_publish_failures").summed(), "engine could not publish"),
                ),
                "A snapshot fills a gap. Many gaps mean that the feed loses messages.",
                unit="ops",
            ),
            Panel(
                "Predictions of the prefix index",
                (Query(series("prefix_index_promises").summed("outcome"), "{{outcome}}"),),
                "kept and more: the engine resumed at least as much as predicted; false: it resumed less, "
                "and the gateway drops the entry; outdated: it resumed less, and the index had learned so in "
                "the meantime.",
                unit="ops",
                stacked=True,
            ),
        ),
        (
            Panel(
                "Copies for a canary's candidate",
                (
                    Query(
                        series("gateway_shadow_copies").summed("deployment", "outcome"),
                        "{{deployment}}: {{outcome}}",
                    ),
                ),
                "Requests that were copied to a candidate whose answers are dropped. no_room: as many copies "
                "as allowed were under way, or the candidate was full.",
                unit="ops",
                stacked=True,
            ),
            Panel(
                "Answers to copied requests",
                (
                    Query(
                        series("gateway_shadow_answers")
                        .where(outcome="failed")
                        .summed("deployment", "track"),
                        "{{deployment}}: {{track}} failed",
                    ),
                    Query(
                        series("gateway_shadow_texts").summed("deployment", "result"),
                        "{{deployment}}: {{result}} text",
                    ),
                ),
                "stable failed: clients saw it. candidate failed: they would have. Texts are compared for "
                "greedy and seeded requests.",
                unit="ops",
            ),
            Panel(
                "First differing token",
                quantiles(series("gateway_shadow_first_difference_tokens"), 0.05, 0.5),
                "Differences at the first tokens point to another model or template, late ones to other "
                "numerics.",
            ),
        ),
    ),
)
