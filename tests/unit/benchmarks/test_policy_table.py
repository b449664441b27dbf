"""The pure parts of the policy table: workloads, bound and oracle; and what holds between them."""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from benchmarks.cache.cache_run import cache_of, drive
from benchmarks.cache.history import NEVER, PrefixHistory
from benchmarks.cache.oracle import foretold
from benchmarks.cache.policy_table import cell, main
from benchmarks.cache.replay import CachePolicy, replay
from benchmarks.cache.space_time import space_time_bound
from benchmarks.cache.workloads import GENERATED, PAGE
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_cli.bench.traces import Arrival
from mamba_cli.fleet.engine_profile import CacheSize
from mamba_cli.fleet.workload import TraceWorkload
from mamba_server.cache import ledger

BLOCK = 4


def of(*prompts: Sequence[int]) -> TraceWorkload:
    """Return prompts of whole blocks and one token."""
    arrivals = [
        Arrival(float(at), BLOCK * len(ids) + 1, 1, (*ids, 1000 + at)) for at, ids in enumerate(prompts)
    ]
    return TraceWorkload("tiny", BLOCK, arrivals)


@pytest.mark.parametrize("make", GENERATED, ids=lambda make: make.__name__)
def test_a_workload_is_the_same_each_time_and_much_of_it_is_asked_again(make: object) -> None:
    assert callable(make)
    one = make(300)
    assert one == make(300) != make(300, seed=1)
    assert len(one.arrivals) == 300
    assert one.arrivals == sorted(one.arrivals, key=lambda arrival: arrival.at)
    for arrival in one.arrivals:
        assert PAGE * (len(arrival.block_ids) - 1) < arrival.input_tokens <= PAGE * len(arrival.block_ids)
    history = PrefixHistory.of(one.arrivals, PAGE)
    tokens = sum(arrival.input_tokens for arrival in one.arrivals)
    assert 0.05 < space_time_bound(history, 1 << 40, 0) / tokens < 0.95


def test_the_bound_charges_bytes_for_the_time_they_are_kept() -> None:
    history = PrefixHistory.of(of([1, 2], [7], [1, 2]).arrivals, BLOCK)
    # Two requests on, a state of one slab: half a slab keeps it a quarter of the way.
    assert space_time_bound(history, 1, 0) == 8
    assert space_time_bound(history, 0.5, 0) == 4
    # Its two pages, two to a slab, take as much again.
    assert space_time_bound(history, 1, 2) == 4
    assert space_time_bound(history, 2, 2) == 8


def test_the_next_use_is_where_a_later_request_leaves() -> None:
    history = PrefixHistory.of(of([1, 2, 3], [1, 2, 9], [1, 8], [4]).arrivals, BLOCK)
    assert history.ends(0) == [2]
    assert history.ends(1) == [1]
    assert history.ends(2) == history.ends(3) == []
    assert history.next(history.paths[0][0], 0) == 1
    assert history.next(history.paths[0][2], 0) == NEVER


def subsets(places: Sequence[int], most: int) -> Iterator[frozenset[int]]:
    for count in range(most + 1):
        yield from map(frozenset, itertools.combinations(places, count))


def optimum(history: PrefixHistory, slots: int) -> int:
    """Return the most tokens that any policy can save with `slots` states, by trying all choices."""
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for path, limit in zip(history.paths, history.limits, strict=True):
        then: dict[frozenset[int], int] = {}
        for kept, saved in best.items():
            gain = max((depth for depth, each in enumerate(path[:limit], 1) if each in kept), default=0)
            for keep in subsets(sorted(kept | set(path)), slots):
                then[keep] = max(then.get(keep, 0), saved + gain * history.block)
        best = then
    return max(best.values())


PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=2, max_size=7)


@settings(max_examples=60)
@given(PROMPTS, st.integers(1, 2), st.sampled_from(["RecomputeCost", "LRU", "oracle"]))
def test_no_policy_saves_more_than_the_best_possible_and_that_not_more_than_the_bound(
    prompts: list[list[int]], slots: int, policy: str
) -> None:
    # Ids that say at which depth they stand: the same id never follows another prefix.
    made = of(*[[10 * depth + each for depth, each in enumerate(prompt)] for prompt in prompts])
    history = PrefixHistory.of(made.arrivals, BLOCK)
    # A running request has two slots of its own; between requests all are the tree's.
    size = CacheSize(2 + slots)
    cache = cache_of(size, made, "LRU" if policy == "LRU" else "RecomputeCost")
    saved = drive(made, foretold(cache, history) if policy == "oracle" else cache).cached_tokens
    ledger.check(cache)
    best = optimum(history, 2 + slots)
    assert saved <= best <= space_time_bound(history, 2 + slots, 0)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=4, max_size=40),
    st.integers(5, 12), st.integers(1, 4), st.integers(0, 3),
)  # fmt: skip
def test_evictions_keep_the_ledger_and_spare_what_is_locked(
    prompts: list[list[int]], slabs: int, pages_per_slab: int, held: int
) -> None:
    made = of(*[[10 * depth + each for depth, each in enumerate(prompt)] for prompt in prompts])
    cache = cache_of(CacheSize(slabs, BLOCK, pages_per_slab * BLOCK), made, "RecomputeCost")
    locked: list[tuple[object, int]] = []
    longest = max(map(len, prompts))
    # Room for the longest prompt, its two slots and as long a path that is locked with its state.
    room_for_locked = 2 * -(-longest // pages_per_slab) + 3 < slabs

    def each(number: int) -> None:
        ledger.check(cache)
        assert all(node.slot == slot for node, slot in locked)  # type: ignore[attr-defined]
        nodes = [node for node in cache.tree.walk() if node.slot and not node.state_lock]
        if number == 3 and nodes and held and room_for_locked:
            node = nodes[held % len(nodes)]
            # As a transfer would: no allocation counts it, so the ledger is no longer asked.
            locked.append((node, node.slot))
            cache.tree.lock(node, state=True)

    def quiet(number: int) -> None:
        if not locked:
            each(number)
        else:
            assert all(node.slot == slot for node, slot in locked)  # type: ignore[attr-defined]
            list(cache.arena.check_slabs())

    drive(made, cache, quiet)


def test_the_oracle_beats_both_and_the_policy_beats_lru_where_states_are_short() -> None:
    made = GENERATED[2](600)
    row = cell(made, PrefixHistory.of(made.arrivals, made.block), 12, 0)
    saved = row["saved"]
    assert saved["LRU"] < saved["RecomputeCost"] < saved["oracle"] <= row["bound"]


def test_driving_the_cache_saves_what_replaying_the_engine_saves() -> None:
    made = GENERATED[1](60)
    short = [Arrival(a.at, a.input_tokens, 1, a.block_ids) for a in made.arrivals]
    driven = drive(made, cache_of(CacheSize(20), made, "LRU"))
    tiny = CachePolicy("LRU", page_size=PAGE, track_interval=PAGE, step_tokens=1 << 18)
    seen = replay(short, CacheSize(20), tiny, block=PAGE)
    assert (driven.prompt_tokens, driven.cached_tokens) == (seen.prompt_tokens, seen.cached_tokens)


def test_one_command_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.jsonl"
    lines = [
        {"timestamp": n, "input_length": 1025, "output_length": 1, "hash_ids": [n % 3, n % 3 + 10, 99 + n]}
        for n in range(30)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    main(
        [
            "--trace",
            str(trace),
            "--workload",
            "retrieval",
            "--requests",
            "300",
            "--slots",
            "4",
            "--kv",
            "0",
            "--out",
            str(tmp_path),
        ]
    )
    (found,) = [json.loads(path.read_text()) for path in tmp_path.glob("*-cache-policy.json")]
    assert [row["workload"] for row in found["rows"]] == ["retrieval", "t"]
    assert "per oracle" in capsys.readouterr().out
