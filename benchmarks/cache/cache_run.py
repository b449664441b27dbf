"""Puts the prompts of a workload through the state cache, one after the other, and counts what is saved.

The cache's own match, admission, placement, eviction and retirement run; the scheduler and the core around
them do not: one sequence at a time leaves them nothing to decide. Called by the policy table; `replay`
drives the whole engine.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mamba_cli.fleet.engine_profile import CAP, CacheSize
from mamba_cli.fleet.prompt_blocks import Tokens, prompt
from mamba_cli.fleet.workload import TraceWorkload
from mamba_planner.strategy import reservation
from mamba_server.cache.eviction import Eviction, Policy
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.state_cache import RadixStateCache
from mamba_server.cache.tree import RadixTree


@dataclass(frozen=True, slots=True)
class CacheRun:
    """Savings measured in one run."""

    prompt_tokens: int
    cached_tokens: int
    refused: int
    made: int
    evicted: int


def cache_of(size: CacheSize, workload: TraceWorkload, policy: Policy) -> RadixStateCache:
    """Return the product's cache of that size, pages as long as the workload's blocks."""
    longest = max((arrival.input_tokens for arrival in workload.arrivals), default=0)
    return RadixStateCache(
        size.arena(workload.block),
        RadixTree(workload.block, Eviction(policy)),
        PersistentBatch(1, -(-longest // workload.block)),
        reservation("ExtraBuffer", overlap=False),
        track_interval=workload.block,
        cap=CAP,
    )


def drive(
    workload: TraceWorkload, cache: RadixStateCache, progress: Callable[[int], None] = lambda _: None
) -> CacheRun:
    """Run every request to its end. One that could never fit is counted, not served."""
    total = saved = refused = 0
    for number, arrival in enumerate(workload.arrivals):
        progress(number)
        token_ids = prompt(arrival, workload.block)
        if cache.capacity.never_fits(len(token_ids)):
            refused += 1
            continue
        total += len(token_ids)
        saved += serve(cache, token_ids, number + 1)
    return CacheRun(total, saved, refused, cache.counters.created, cache.counters.evicted)


def serve(cache: RadixStateCache, token_ids: Tokens, step: int) -> int:
    """Run one prompt to its end, which must fit; how many of its tokens were resumed."""
    match = cache.match(token_ids, "", step)
    allocation = cache.admit(token_ids, "", match, len(token_ids), 0)
    if allocation is None:
        match = match.without("no_memory")
        allocation = cache.admit(token_ids, "", match, len(token_ids), 0)
    assert allocation is not None
    cache.plan_prefill(allocation, len(token_ids), step)
    cache.launch(allocation.row, len(token_ids), step)
    cache.advance(step)
    cache.commit(allocation, token_ids, step)
    cache.retire(allocation, lambda: token_ids)
    cache.release_retired()
    return match.resumable
