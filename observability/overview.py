"""The overview: do users get answers, how fast, and what is in the way."""

from observability.panels import Dashboard, Panel, Query
from observability.series import series
from observability.shared_panels import NAMED, QUEUES, RESUMED, quantiles, share

OVERVIEW = Dashboard(
    "mambaserve-overview",
    "mambaserve / Overview",
    "Do users get answers, how fast, and what is in the way.",
    series("engine_up").name,
    (
        (
            Panel(
                "Engines ready",
                (Query(series("engine_up").summed()),),
                "Engines whose model is loaded.",
                kind="stat",
            ),
            Panel(
                "Requests running",
                (Query(series("requests_running").summed()),),
                "Sequences in the running batches.",
                kind="stat",
            ),
            Panel(
                "Requests waiting",
                (Query(series("requests_waiting").summed()),),
                "Requests that wait for memory or a place in a batch.",
                kind="stat",
            ),
            Panel(
                "Resumed",
                (Query(share(series("cached_tokens"), series("prompt_tokens"))),),
                "Prompt tokens resumed from a checkpoint.",
                unit="percentunit",
                kind="stat",
            ),
            Panel(
                "Engine restarts, 1 h",
                (Query(f"sum({series('engine_restarts').increase('1h')})"),),
                "Engine processes that died and were started again.",
                kind="stat",
            ),
        ),
        (
            Panel(
                "Answers by status",
                (Query(series("gateway_requests").summed("code"), "{{code}}"),),
                "429: shed, the gateways' queues are full. 499: the client left first. 5xx: look at the "
                "gateways' and engines' logs.",
                unit="reqps",
                stacked=True,
            ),
            Panel(
                "Tokens",
                (
                    Query(series("prompt_tokens").summed(), "prompt"),
                    Query(series("cached_tokens").summed(), "of them resumed"),
                    Query(series("generated_tokens").summed(), "generated"),
                ),
                "Tokens a second over all engines.",
                unit="ops",
            ),
        ),
        (
            Panel(
                "Time to the first token",
                quantiles(series("time_to_first_token_seconds"), 0.5, 0.95, 0.99),
                "From the arrival of a request at an engine.",
                unit="s",
            ),
            Panel(
                "Time between tokens",
                quantiles(series("inter_token_latency_seconds"), 0.5, 0.95, 0.99),
                "What a reader sees while an answer streams. It rises when long prompts share the steps.",
                unit="s",
            ),
            Panel(
                "Whole request",
                quantiles(series("request_duration_seconds"), 0.5, 0.95, 0.99),
                "From the arrival of a request to the end of a sequence.",
                unit="s",
            ),
        ),
        (
            Panel(
                "Cache in use",
                (Query(series("cache_usage").now, NAMED),),
                "The share that not even eviction could free. Near 1 requests wait, or are preempted.",
                unit="percentunit",
                most=1,
            ),
            RESUMED,
            QUEUES,
        ),
    ),
)
