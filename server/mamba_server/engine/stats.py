"""Statistics of the engine as one `EngineStats` message: counters, gauges, times of the last steps."""

from collections.abc import Mapping

from mamba_server.cache import Capacity, LedgerAccount
from mamba_server.engine.stepping.core import EngineCore
from mamba_server.wire import EngineStats

_NOTHING: Mapping[str, float] = {}


def collect(
    core: EngineCore,
    of_device: Mapping[str, float] = _NOTHING,
    device_gauges: Mapping[str, float] = _NOTHING,
) -> EngineStats:
    """Return counters since the start, current gauges, and step times since the last call.

    `of_device` and `device_gauges` are counters and gauges in addition to the core's.
    """
    cache, scheduler = core.cache, core.scheduler
    account, capacity = cache.account(), cache.capacity
    cache_counters, scheduler_counters = cache.counters, scheduler.counters
    counters: dict[str, float] = {
        "prompt_tokens_total": scheduler_counters.prompt_tokens,
        "generation_tokens_total": core.generated_tokens,
        "cached_tokens_total": scheduler_counters.cached_tokens,
        "recomputed_tokens_total": scheduler_counters.recomputed_tokens,
        "preemptions_total": scheduler_counters.preemptions,
        "checkpoints_made_total": cache_counters.created,
        "checkpoints_skipped_total": cache_counters.skipped,
        "checkpoints_evicted_total": cache_counters.evicted,
        "checkpoints_quarantined_total": cache_counters.quarantined,
        "steps_total": core.step_number,
        "failed_steps_total": core.failed_steps,
        **core.costs.counters(),
        **core.pins.counters(),
        **of_device,
    }
    if core.speculation is not None:
        counters.update(core.speculation.drafts.counters())
    if cache.settings.remembers_prompts:
        # Without that record, the number would depend on which prompts happen to be cached.
        counters["admitted_prompt_tokens_total"] = scheduler_counters.prompt_tokens
        counters["shared_prompt_tokens_total"] = scheduler_counters.shared_tokens
    for cause, count in scheduler_counters.misses.items():
        counters[f"prefix_misses_total{{cause={cause}}}"] = count
    for reason, count in core.finished.items():
        counters[f"sequences_finished_total{{reason={reason}}}"] = count
    total = max(1, account.slots_total)
    slots = {
        "free": account.slots_free,
        "live": account.slots_live,
        "tracking": account.slots_tracking,
        "cached": account.slots_cached,
        "fenced": account.slots_fenced,
        "receiving": account.slots_receiving,
        "exported": account.slots_exported,
        "quarantined": account.slots_quarantined,
        "pages": account.slabs_of_pages,
    }
    pages = {
        "free": account.pages_free,
        "sequence": account.pages_sequence,
        "tree": account.pages_tree,
        "fenced": account.pages_fenced,
        "receiving": account.pages_receiving,
        "quarantined": account.pages_quarantined,
    }
    gauges: dict[str, float] = {
        "requests_running": scheduler.running,
        "requests_waiting": scheduler.waiting_count,
        "max_running_requests": scheduler.limits.max_running,
        "checkpoints": capacity.checkpoints,
        "pinned_checkpoints": capacity.pinned,
        # Memory that is not available at once, even by eviction: that of the pool that limits.
        "arena_usage": 1.0
        - min(1.0, (account.slots_free + capacity.evictable_slots + _evictable_slabs(capacity)) / total),
        "state_usage": (account.slots_live + account.slots_tracking) / total,
        "kv_usage": _kv_usage(account),
        "prompt_tokens_waiting": _prompt_tokens_waiting(core),
        "prompt_room_tokens": scheduler.admission.prompt_room(),
        "prefill_tokens_per_second": core.speed.tokens_per_second,
        "prefill_speed_error": core.speed.error(core.clock()),
        "prefill_attention_ratio": core.speed.ratio,
        "decode_step_seconds": core.speed.decode_seconds,
    }
    if core.speculation is not None:
        gauges["speculation_on"] = float(core.speculation.drafts.is_on)
    gauges.update({f"slabs{{owner={owner}}}": count for owner, count in slots.items()})
    gauges.update(
        {f"slots{{owner={owner}}}": slots[owner] for owner in slots if owner not in ("free", "pages")}
    )
    gauges.update({f"pages{{owner={owner}}}": count for owner, count in pages.items()})
    gauges.update(device_gauges)
    times = core.drain_step_times()
    seconds: list[tuple[str, float]] = []
    if core.transfers is not None:
        counters.update(core.transfers.counters())
        gauges.update(core.transfers.gauges())
        seconds = core.transfers.take_seconds()
    counters.update(core.audits.log.counters())
    distances = core.audits.log.take_distances()
    spans = core.audits.log.take_spans()
    return EngineStats(
        counters, gauges, times.seconds, times.batch_sizes, seconds, distances, spans, core.costs.take()
    )


def _prompt_tokens_waiting(core: EngineCore) -> float:
    """Return the prompt tokens that are to be computed.

    The resumable part of a waiting prompt is not looked up: its share is assumed to be the share of earlier
    prompts.
    """
    scheduler, counters = core.scheduler, core.scheduler.counters
    cached = min(1.0, counters.cached_tokens / counters.prompt_tokens) if counters.prompt_tokens else 0.0
    waiting = sum(sequence.known_tokens for sequence in scheduler.waiting)
    in_progress = sum(
        sequence.known_tokens - sequence.allocation.depth
        for sequence in scheduler.prefilling
        if sequence.allocation
    )
    return waiting * (1 - cached) + in_progress


def _evictable_slabs(capacity: Capacity) -> float:
    per_slab = capacity.pages_per_slab
    return capacity.evictable_pages / per_slab if per_slab else 0.0


def _kv_usage(account: LedgerAccount) -> float:
    total = (
        account.pages_free
        + account.pages_sequence
        + account.pages_tree
        + account.pages_fenced
        + account.pages_receiving
        + account.pages_quarantined
    )
    return account.pages_sequence / total if total else 0.0
