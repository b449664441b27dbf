"""The dashboard of the state cache: what memory is used for, and why prompts resume no more."""

from observability.panels import Dashboard, Panel, Query
from observability.series import series
from observability.shared_panels import RESUMED

STATE_CACHE = Dashboard(
    "mambaserve-state-cache",
    "mambaserve / State cache",
    "What the memory of states and attention KV is used for, and why prompts resume no more.",
    series("engine_up").name,
    (
        (
            Panel(
                "State slots by owner",
                (Query(series("slots").summed("owner"), "{{owner}}"),),
                "live: running sequences; tracking: states being written for a checkpoint; cached: "
                "checkpoints; "
                "fenced: given back, with a write still under way.",
                stacked=True,
            ),
            Panel(
                "KV pages in use by owner",
                (Query(series("pages").without(owner="free").summed("owner"), "{{owner}}"),),
                "sequence: running sequences; tree: cached prefixes.",
                stacked=True,
            ),
            Panel(
                "Arena in use by owner",
                (Query(series("slabs").without(owner="free").summed("owner"), "{{owner}}"),),
                "Slots and pages trade slabs as the traffic asks; pages stands for all slabs of pages.",
                stacked=True,
            ),
        ),
        (
            RESUMED,
            Panel(
                "Misses by cause",
                (Query(series("prefix_misses").summed("cause"), "{{cause}}"),),
                "Prompts that resumed less than they could have. evicted: there was not enough memory to "
                "keep "
                "the checkpoint; no_state: the prefix has pages and no checkpoint at that depth; "
                "off_grid: the "
                "prompts part between two checkpoints; new: nobody asked this before.",
                unit="ops",
                stacked=True,
            ),
            Panel(
                "Checkpoints",
                (
                    Query(series("checkpoints_made").summed(), "written"),
                    Query(series("checkpoints_evicted").summed(), "given up for memory"),
                    Query(series("checkpoints_skipped").summed(), "due and not written"),
                ),
                "As many given up as written means that the cache turns over: more memory, or fewer "
                "checkpoints a path, would keep more of them.",
                unit="ops",
            ),
        ),
        (
            Panel(
                "What binds",
                (
                    Query(f"avg({series('arena_usage').now})", "arena, even after eviction"),
                    Query(f"avg({series('state_usage').now})", "slots of running sequences"),
                    Query(f"avg({series('kv_usage').now})", "pages of running sequences"),
                ),
                "Mean over the engines.",
                unit="percentunit",
                most=1,
            ),
            Panel(
                "Preemptions",
                (
                    Query(series("preemptions").summed(), "sequences preempted"),
                    Query(series("recomputed_tokens").summed(), "tokens computed again"),
                ),
                "Memory ran out under running sequences. Rare is fine.",
                unit="ops",
            ),
            Panel(
                "Prompt tokens that wait",
                (
                    Query(series("prompt_tokens_waiting").summed(), "to be computed"),
                    Query(series("prompt_room_tokens").summed(), "room for"),
                ),
                "More to be computed than there is room for: requests wait for memory.",
            ),
        ),
        (
            Panel(
                "Step by part, p95",
                (Query(series("step_seconds").quantile(0.95, "part"), "{{part}}"),),
                "schedule and commit run on the CPU, run on the device.",
                unit="s",
            ),
            Panel(
                "Batch",
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
                "A failed step is undone and its requests go on; look at the engine's log.",
                unit="ops",
            ),
        ),
    ),
)
