"""Random schedules of receptions, exports, evictions and sequences over one cache, with a simulated network.

Bytes land in any order, and late against the fences of the forward stream. After every event the ledger is
recounted, with the memory in transit as an owner, and every checkpoint and page is compared with its key; a
byte that lands in memory of anybody else fails at once. `MAMBASERVE_PROPS=large` runs a hundred thousand
schedules from random seeds over two processes.
"""

import multiprocessing
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from property_runs import BUDGET, LARGE
from transit_world import TransitWorld

SCHEDULES = {"large": 100_000, "small": 300}.get(BUDGET, 400)
EVENTS = 30
PARTS = 40


def run_schedules(first: int, count: int) -> Counter[str]:
    """Run the schedules of `count` seeds; return how often each kind of event happened."""
    seen = Counter[str]()
    for seed in range(first, first + count):
        try:
            seen.update(TransitWorld(seed).run(EVENTS))
        except Exception as error:
            error.add_note(f"TransitWorld({seed}).run({EVENTS})")
            raise
        seen["schedules"] += 1
    return seen


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """Return the events of all schedules, run once for the tests of this module."""
    if not LARGE:
        return run_schedules(0, SCHEDULES)
    first, share = random.SystemRandom().randrange(10**9), SCHEDULES // PARTS
    seeds = [first + part * share for part in range(PARTS)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        counts = list(pool.map(run_schedules, seeds, [share] * PARTS))
    total = sum(counts, Counter[str]())
    print(f"\n{total['schedules']} schedules from seed {first}: {dict(total)}")
    return total


@pytest.mark.slow
@pytest.mark.timeout(7200 if LARGE else 600)
def test_no_schedule_puts_a_byte_into_foreign_memory_or_loses_memory(seen: Counter[str]) -> None:
    assert seen["schedules"] == SCHEDULES


@pytest.mark.slow
@pytest.mark.timeout(7200 if LARGE else 600)
@pytest.mark.parametrize(
    "event",
    [
        "received", "not received", "exported", "not exported", "resumed", "failed", "discarded", "flushed",
        "landed", "landed late", "reported evictions", "FREE -> RECEIVING", "RECEIVING -> CONFIRMING",
        "RECEIVING -> QUARANTINED", "RECEIVING -> FENCED", "QUARANTINED -> FENCED", "CONFIRMING -> INSTALLED",
        "CONFIRMING -> FENCED", "INSTALLED -> CACHED", "CACHED -> EXPORTED", "EXPORTED -> CACHED",
        "installed before its launch", "installed again", "base locked",
        "pinned", "not pinned", "pinned again", "unpinned", "unpinned late", "pin given up",
    ],
)  # fmt: skip
def test_the_schedules_reach(event: str, seen: Counter[str]) -> None:
    assert seen[event] > 0
