"""Puts the prompts of a workload through the state cache, one after the other, and counts what is saved.

The cache's own match, admission, placement, eviction and retirement run; the scheduler and the core around
them do not: one sequence at a time leaves them nothing to decide. Called by the policy table; `replay`
drives the whole engine.
"""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.cache.block_trace import prompt
from benchmarks.cache.replay import CacheSize
from benchmarks.cache.workloads import Workload

from mamba_server.cache.eviction import Eviction, Policy
from mamba_server.cache.state_cache import StateCache
from mamba_server.cache.strategy import reservation
from mamba_server.cache.tree import RadixTree

CAP = 4


@dataclass(frozen=True, slots=True)
class Driven:
    """What one run saved."""

    prompt_tokens: int
    cached_tokens: int
    refused: int
    made: int
    evicted: int


def cache_of(size: CacheSize, workload: Workload, policy: Policy) -> StateCache:
    """The product's cache of that size, pages as long as the workload's blocks."""
    return StateCache(
        size.arena(workload.block),
        RadixTree(workload.block, Eviction(policy)),
        reservation("ExtraBuffer", overlap=False),
        track_interval=workload.block,
        cap=CAP,
    )


def drive(workload: Workload, cache: StateCache, progress: Callable[[int], None] = lambda _: None) -> Driven:
    """Run every request to its end. One that could never fit is counted, not served."""
    total = saved = refused = 0
    for number, arrival in enumerate(workload.arrivals):
        progress(number)
        tokens = prompt(arrival, workload.block)
        if cache.never_fits(len(tokens)):
            refused += 1
            continue
        step = number + 1
        match = cache.match(tokens, "", step)
        holding = cache.admit(tokens, "", match, len(tokens), 0)
        if holding is None:
            match = cache.without(match, "no_memory")
            holding = cache.admit(tokens, "", match, len(tokens), 0)
        assert holding is not None
        total += len(tokens)
        saved += match.resumable
        cache.plan_prefill(holding, len(tokens), step)
        cache.launched(holding, len(tokens), step)
        cache.prefill_done(holding)
        cache.advance(step)
        cache.commit(holding, tokens, step)
        cache.retire(holding, lambda tokens=tokens: tokens)  # type: ignore[misc]
        cache.settle()
    return Driven(total, saved, refused, cache.counters.made, cache.counters.evicted)
