"""State of the arena's bytes under churn: running, resumable, useless, or stranded in half-full slabs.

Run as `python -m benchmarks.cache.fragmentation`; writes JSON and Markdown to benchmarks/results. The
engine's own scheduler, cache and arena run a load that swings between many short chats and few long
documents, so that slabs change role all the time; no model. Everything follows from the seed.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
from benchmarks.cache.hit_rate import STATE_TOKENS
from benchmarks.cache.record import RESULTS, write
from benchmarks.cache.replay import CachePolicy, build

from mamba_cli.fleet.engine_profile import CacheSize
from mamba_server.cache import ledger
from mamba_server.cache.arena import Allocation, AllocationSite, Arena
from mamba_server.cache.eviction import Policy
from mamba_server.cache.node import Node
from mamba_server.cache.state_cache import RadixStateCache
from mamba_server.wire import AddRequest, SamplingParams, TokenIds

ROWS = 16
LONGEST = 48_000
SIZES = ((120, STATE_TOKENS), (200, STATE_TOKENS), (700, 1_000))
"""(slabs, KV tokens that take the bytes of one state): scarce, ample, and a model with small states."""


@dataclass(frozen=True, slots=True)
class SlabShares:
    """Shares of the arena's slabs; they sum to one. Pages count by the bytes they take."""

    running: float
    resumable: float
    """Checkpoints, and the tree's pages at or above one."""
    useless: float
    """The tree's pages that no checkpoint needs; they only show where prompts part."""
    stranded: float
    """Free pages in slabs that hold other pages: no slot can be made of them."""
    free: float


def shares(cache: RadixStateCache) -> SlabShares:
    """Return the current shares of the arena's bytes."""
    arena = cache.arena
    total, per_slab = arena.slabs - 1, max(1, arena.pages_per_slab)
    needed: set[Node] = set()
    for node in cache.tree.walk():
        if node.slot:
            needed.update(node.path())
    pages = sum(len(node.pages) for node in needed) if arena.pages_per_slab else 0
    bare = cache.tree.pages - pages if arena.pages_per_slab else 0
    resumable = cache.tree.checkpoints + pages / per_slab
    stranded = arena.partial_pages / per_slab
    running = total - resumable - bare / per_slab - stranded - arena.free_slots
    return SlabShares(
        *(part / total for part in (running, resumable, bare / per_slab, stranded, arena.free_slots))
    )


class WatchedArena(Arena):
    """Counts the allocations that were refused, and those of them that the free bytes would have covered."""

    def __init__(self, slabs: int, pages_per_slab: int) -> None:
        super().__init__(slabs, pages_per_slab)
        self.refused = self.refused_for_shape = 0

    def allocate(
        self, site: AllocationSite, *, live: int = 0, tracking: int = 0, pages: int = 0, writer: int = 0
    ) -> Allocation | None:
        grant = super().allocate(site, live=live, tracking=tracking, pages=pages, writer=writer)
        if grant is None:
            self.refused += 1
            slots = live + tracking + (writer > 0)
            self.refused_for_shape += self.free_pages >= pages + slots * self.pages_per_slab
        return grant


def load(seed: int, requests: int, phase: int = 250) -> Iterator[tuple[list[int], int]]:
    """Yield (prompt, outputs): phases of growing short chats and of questions on long documents, in turn."""
    rng = np.random.default_rng(seed)

    def text(least: int, most: int) -> list[int]:
        token_ids: list[int] = rng.integers(1, 1 << 15, int(rng.integers(least, most))).tolist()
        return token_ids

    stems = [text(100, 600) for _ in range(8)]
    documents = [text(4_000, 40_000) for _ in range(24)]
    chats: list[list[int]] = []
    for number in range(requests):
        outputs = int(rng.integers(20, 150))
        if number // phase % 2:
            prompt = [*documents[int(rng.integers(len(documents)))], *text(10, 200)]
        elif chats and rng.random() < 0.6:
            prompt = chats.pop(int(rng.integers(len(chats)))) + text(10, 200)
        else:
            prompt = [*stems[int(rng.integers(len(stems)))], *text(10, 200)]
        if number // phase % 2 == 0:
            # The instant runner answers with -1.
            chats = [*chats[-200:], [*prompt, *[-1] * outputs]]
        yield prompt, outputs


def churn(
    size: CacheSize,
    policy: CachePolicy,
    requests: int,
    seed: int = 0,
    note: Callable[[int, SlabShares], None] | None = None,
) -> dict[str, Any]:
    """Run the load, `ROWS` requests at once; the shares after each twentieth step of the second half.

    `note`: called with the number of requests so far and the shares, at each twentieth step of the whole.

    Raises RuntimeError if a request is refused.
    """
    core = build(size, policy, LONGEST, rows=ROWS, arena=WatchedArena)
    cache = core.cache
    assert isinstance(cache, RadixStateCache)
    seen: list[SlabShares] = []
    for number, (prompt, outputs) in enumerate(load(seed, requests)):
        params = SamplingParams(max_tokens=outputs, ignore_eos=True)
        refused = core.add(AddRequest(f"r{number}", TokenIds(prompt), params))
        if refused is not None:
            raise RuntimeError(refused.message)
        while len(core.sequences) >= ROWS:
            core.step()
            if core.step_number % 20 == 0 and (note is not None or number > requests / 2):
                present = shares(cache)
                if number > requests / 2:
                    seen.append(present)
                if note is not None:
                    note(number, present)
    while not core.idle:
        core.step()
    ledger.check(cache)
    arena, counters = cache.arena, core.scheduler.counters
    assert isinstance(arena, WatchedArena)
    return {
        "strategy": policy.strategy,
        "eviction": policy.eviction,
        "slabs": arena.slabs - 1,
        "pages_per_slab": arena.pages_per_slab,
        "requests": requests,
        "seed": seed,
        "mean": {
            each.name: round(statistics.mean(getattr(s, each.name) for s in seen), 4)
            for each in fields(SlabShares)
        },
        "most_stranded": round(max(s.stranded for s in seen), 4),
        "hit_rate": round(counters.cached_tokens / counters.prompt_tokens, 4),
        "preemptions": counters.preemptions,
        "refused": arena.refused,
        "refused_for_shape": arena.refused_for_shape,
    }


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Summarise the runs of one setting with several seeds in one row: means, and the worst stranded share.

    Pure.
    """
    names = runs[0]["mean"]
    return {
        **{name: runs[0][name] for name in ("strategy", "eviction", "slabs", "pages_per_slab")},
        **{name: statistics.mean(run["mean"][name] for run in runs) for name in names},
        "most_stranded": max(run["most_stranded"] for run in runs),
        "hit_rate": statistics.mean(run["hit_rate"] for run in runs),
        "refused": sum(run["refused"] for run in runs),
        "refused_for_shape": sum(run["refused_for_shape"] for run in runs),
    }


def markdown(rows: Sequence[dict[str, Any]], requests: int, seeds: int) -> list[str]:
    """Return the lines of the table."""
    columns = [
        "slabs",
        "pages",
        "strategy",
        "eviction",
        "running",
        "resumable",
        "useless",
        "stranded",
        "free",
        "hit",
        "refused",
    ]
    lines = [
        f"- {requests:,} requests, {ROWS} at once, {seeds} seeds; phases of short chats and of questions on",
        "  long documents in turn; shares of the arena's bytes, means of the second half",
        "- resumable: checkpoints and the pages up to them; useless: pages that no checkpoint needs;",
        "  stranded: free pages in slabs that hold others, mean and most; refused: allocations, nearly",
        "  all for checkpoints that may evict nothing (in brackets: where the free bytes would have done)",
        "",
        f"| {' | '.join(columns)} |",
        "| --- " * len(columns) + "|",
    ]
    return lines + [
        f"| {row['slabs']} | {row['pages_per_slab']} | {row['strategy']} | {row['eviction']} "
        f"| {row['running']:.1%} | {row['resumable']:.1%} | {row['useless']:.1%} "
        f"| {row['stranded']:.1%} ({row['most_stranded']:.1%}) | {row['free']:.1%} | {row['hit_rate']:.1%} "
        f"| {row['refused']:,} ({row['refused_for_shape']:,}) |"
        for row in rows
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache.fragmentation", description=__doc__)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    runs, rows = [], []
    policies: list[tuple[str, Policy]] = [
        (strategy, eviction)
        for strategy in ("NoBuffer", "ExtraBufferLazy", "ExtraBuffer")
        for eviction in get_args(Policy)
    ]
    for slabs, tokens_per_state in SIZES:
        for strategy, eviction in policies:
            size, policy = CacheSize(slabs, 0, tokens_per_state), CachePolicy(eviction, strategy)
            runs_by_seed = [churn(size, policy, options.requests, seed) for seed in range(options.seeds)]
            runs += runs_by_seed
            rows.append(summary(runs_by_seed))
            print(markdown(rows[-1:], options.requests, options.seeds)[-1], flush=True)
    record = {"rows_at_once": ROWS, "page_size": CachePolicy().page_size, "runs": runs}
    write("cache-fragmentation", record, markdown(rows, options.requests, options.seeds), options.out)


if __name__ == "__main__":
    main()
