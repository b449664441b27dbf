"""The dashboard of the state cache: the use of its memory, and why prompts do not resume more tokens."""

from observability.panels import Dashboard, Panel, Query
from observability.series import series
from observability.shared_panels import RESUMED

ACCEPTED_SHARE = f"{series('accepted_draft_tokens').summed('kind')} / {series('draft_tokens').summed('kind')}"
"""Accepted part of the drafted tokens."""

STATE_CACHE = Dashboard(
    "mambaserve-state-cache",
    "mambaserve / State cache",
    "The use of the memory for states and attention KV, and why prompts do not resume more tokens.",
    series("engine_up").name,
    (
        (
            Panel(
                "State slots by owner",
                (Query(series("slots").summed("owner"), "{{owner}}"),),
                "live: slots of running sequences; tracking: states being written for a checkpoint; cached: "
                "checkpoints; fenced: slots that were given back while a write is still running; receiving: "
                "states on their way in; exported: checkpoints that are read from outside; quarantined: "
                "slots of transfers that were given up before anybody saw their end.",
                stacked=True,
            ),
            Panel(
                "KV pages in use by owner",
                (Query(series("pages").without(owner="free").summed("owner"), "{{owner}}"),),
                "sequence: pages of running sequences; tree: pages of cached prefixes; receiving and "
                "quarantined: as for slots.",
                stacked=True,
            ),
            Panel(
                "Arena in use by owner",
                (Query(series("slabs").without(owner="free").summed("owner"), "{{owner}}"),),
                "The arena turns slabs of slots into slabs of pages, and back, as the traffic needs them. "
                "pages: all slabs of pages.",
                stacked=True,
            ),
        ),
        (
            RESUMED,
            Panel(
                "Misses by cause",
                (Query(series("prefix_misses").summed("cause"), "{{cause}}"),),
                "Prompts that resumed fewer tokens than possible. evicted: there was not enough memory to "
                "keep the checkpoint; no_state: the prefix has pages, but no checkpoint at that depth; "
                "too_deep: the prompts part before the checkpoint; new: no earlier prompt had this prefix.",
                unit="ops",
                stacked=True,
            ),
            Panel(
                "Checkpoints",
                (
                    Query(series("checkpoints_made").summed(), "written"),
                    Query(series("checkpoints_evicted").summed(), "evicted to free memory"),
                    Query(series("checkpoints_skipped").summed(), "due but not written"),
                ),
                "If as many checkpoints are evicted as written, the cache is too small for the traffic: more "
                "memory, or fewer checkpoints per path, would keep more of them.",
                unit="ops",
            ),
        ),
        (
            Panel(
                "Audits by outcome",
                (Query(series("audits").summed("outcome"), "{{outcome}}"),),
                "Answers that resumed and were to be computed once more. abandoned: there was no idle time "
                "for them, or no unwanted memory; diverged: their checkpoint was wrong.",
                unit="ops",
                stacked=True,
            ),
            Panel(
                "Distance of audited answers, p99",
                (Query(series("audit_distance").quantile(0.99, "kind"), "{{kind}}"),),
                "scores: nats a token between the log-probabilities as served and as computed once more; "
                "states: difference of a checkpoint, relative to the largest number of its head. Both show "
                "rounding while all is well.",
            ),
            Panel(
                "Checkpoints quarantined",
                (Query(series("checkpoints_quarantined").summed(), "withdrawn"),),
                "Checkpoints that an audit called wrong, and those that continue them.",
                unit="ops",
            ),
        ),
        (
            Panel(
                "Limiting resource",
                (
                    Query(f"avg({series('arena_usage').now})", "arena, even after eviction"),
                    Query(f"avg({series('state_usage').now})", "slots of running sequences"),
                    Query(f"avg({series('kv_usage').now})", "pages of running sequences"),
                ),
                "Share in use, as mean over the engines. The largest share limits how many sequences run.",
                unit="percentunit",
                most=1,
            ),
            Panel(
                "Preemptions",
                (
                    Query(series("preemptions").summed(), "sequences preempted"),
                    Query(series("recomputed_tokens").summed(), "tokens computed again"),
                ),
                "Sequences that were preempted because memory ran out. A few are harmless.",
                unit="ops",
            ),
            Panel(
                "Waiting prompt tokens",
                (
                    Query(series("prompt_tokens_waiting").summed(), "to be computed"),
                    Query(series("prompt_room_tokens").summed(), "that fit now"),
                ),
                "If more tokens have to be computed than fit now, requests wait for memory.",
            ),
        ),
        (
            Panel(
                "Step by part, p95",
                (Query(series("step_seconds").quantile(0.95, "part"), "{{part}}"),),
                "The parts schedule and commit use the CPU; the part run uses the device.",
                unit="s",
            ),
            Panel(
                "Batch size",
                (
                    Query(series("batch_size").mean(), "mean"),
                    Query(series("batch_size").quantile(0.95), "p95"),
                ),
                "Sequences in a step.",
            ),
            Panel(
                "Steps",
                (
                    Query(series("steps").summed(), "steps"),
                    Query(series("failed_steps").summed(), "failed and undone"),
                ),
                "A failed step is undone, and its requests continue; see the engine's log.",
                unit="ops",
            ),
            Panel(
                "Drafted tokens",
                (
                    Query(series("draft_tokens").summed(), "checked"),
                    Query(series("accepted_draft_tokens").summed(), "accepted"),
                ),
                "Only with speculation. Tokens that steps checked beyond the one that each sequence gets.",
                unit="ops",
            ),
            Panel(
                "Accepted share of drafted tokens",
                (Query(ACCEPTED_SHARE, "{{kind}}"),),
                "By kind of draft. It moves with the traffic; a jump upwards without another traffic is no "
                "good news but a reason to look at answers.",
                unit="percentunit",
            ),
        ),
    ),
)
