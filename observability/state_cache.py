"""The dashboard of the state cache: what memory is used for, and why prompts resume no more."""

from observability.panels import Dashboard, Line, Panel
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
                (Line(series("slots").summed("owner"), "{{owner}}"),),
                "live: running sequences; tracking: states being written for a checkpoint; cached: "
                "checkpoints; "
                "fenced: given back, with a write still under way.",
                stacked=True,
            ),
            Panel(
                "KV pages in use by owner",
                (Line(series("pages").without(owner="free").summed("owner"), "{{owner}}"),),
                "sequence: running sequences; tree: cached prefixes.",
                stacked=True,
            ),
            Panel(
                "Arena in use by owner",
                (Line(series("slabs").without(owner="free").summed("owner"), "{{owner}}"),),
                "Slots and pages trade slabs as the traffic asks; pages stands for all slabs of pages.",
                stacked=True,
            ),
        ),
        (
            RESUMED,
            Panel(
                "Misses by cause",
                (Line(series("prefix_misses").summed("cause"), "{{cause}}"),),
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
                    Line(series("checkpoints_made").summed(), "written"),
                    Line(series("checkpoints_evicted").summed(), "given up for memory"),
                    Line(series("checkpoints_skipped").summed(), "due and not written"),
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
                    Line(f"avg({series('arena_usage').now})", "arena, even after eviction"),
                    Line(f"avg({series('state_usage').now})", "slots of running sequences"),
                    Line(f"avg({series('kv_usage').now})", "pages of running sequences"),
                ),
                "Mean over the engines.",
                unit="percentunit",
                most=1,
            ),
            Panel(
                "Preemptions",
                (
                    Line(series("preemptions").summed(), "sequences preempted"),
                    Line(series("recomputed_tokens").summed(), "tokens computed again"),
                ),
                "Memory ran out under running sequences. Rare is fine.",
                unit="ops",
            ),
            Panel(
                "Prompt tokens that wait",
                (
                    Line(series("prompt_tokens_waiting").summed(), "to be computed"),
                    Line(series("prompt_room_tokens").summed(), "room for"),
                ),
                "More to be computed than there is room for: requests wait for memory.",
            ),
        ),
        (
            Panel(
                "Step by part, p95",
                (Line(series("step_seconds").quantile(0.95, "part"), "{{part}}"),),
                "schedule and commit run on the CPU, run on the device.",
                unit="s",
            ),
            Panel(
                "Batch",
                (Line(series("batch_size").mean(), "mean"), Line(series("batch_size").quantile(0.95), "p95")),
                "Sequences in a step.",
            ),
            Panel(
                "Steps",
                (
                    Line(series("steps").summed(), "steps"),
                    Line(series("failed_steps").summed(), "failed and undone"),
                ),
                "A failed step is undone and its requests go on; look at the engine's log.",
                unit="ops",
            ),
        ),
    ),
)
