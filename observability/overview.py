"""The overview dashboard: whether users get answers, how fast, and what delays them."""

from observability.panels import Dashboard, Panel, Query
from observability.series import series
from observability.shared_panels import NAMED, QUEUES, RESUMED, quantiles, share

OVERVIEW = Dashboard(
    "mambaserve-overview",
    "mambaserve / Overview",
    "Whether users get answers, how fast, and what delays them.",
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
                "Prompt tokens resumed",
                (Query(share(series("cached_tokens"), series("prompt_tokens"))),),
                "Share of prompt tokens that were resumed from a checkpoint.",
                unit="percentunit",
                kind="stat",
            ),
            Panel(
                "Engine restarts, 1 h",
                (Query(f"sum({series('engine_restarts').increase('1h')})"),),
                "Engine processes that died and were restarted within the last hour.",
                kind="stat",
            ),
        ),
        (
            Panel(
                "Answers by status",
                (Query(series("gateway_requests").summed("code"), "{{code}}"),),
                "429: the gateway refused the request, because its queue is full or a limit is reached. 499: "
                "the client disconnected first. 5xx: see the logs of gateways and engines.",
                unit="reqps",
                stacked=True,
            ),
            Panel(
                "Tokens",
                (
                    Query(series("prompt_tokens").summed(), "prompt"),
                    Query(series("cached_tokens").summed(), "prompt, resumed"),
                    Query(series("generated_tokens").summed(), "generated"),
                ),
                "Tokens per second over all engines.",
                unit="ops",
            ),
        ),
        (
            Panel(
                "Time to the first token",
                quantiles(series("time_to_first_token_seconds"), 0.5, 0.95, 0.99),
                "Time from the arrival of a request at an engine to its first token.",
                unit="s",
            ),
            Panel(
                "Time between tokens",
                quantiles(series("inter_token_latency_seconds"), 0.5, 0.95, 0.99),
                "Time that a reader waits for each token of a stream. It rises when long prompts share the "
                "steps.",
                unit="s",
            ),
            Panel(
                "Whole request",
                quantiles(series("request_duration_seconds"), 0.5, 0.95, 0.99),
                "Time from the arrival of a request to the end of a sequence.",
                unit="s",
            ),
        ),
        (
            Panel(
                "Cache in use",
                (Query(series("cache_usage").now, NAMED),),
                "Share of the cache that even eviction could not free. Near 1, requests wait or are "
                "preempted.",
                unit="percentunit",
                most=1,
            ),
            RESUMED,
            QUEUES,
        ),
    ),
)
