"""The pure parts of the cache benchmarks: traces, the bound, the simulator, what is drawn and written."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.cache.block_trace import endless_cache_bound, generated
from benchmarks.cache.cpu_time import match_and_insert
from benchmarks.cache.hit_rate import markdown, measure
from benchmarks.cache.plots import hit_rates, newest, series, strategies
from benchmarks.cache.record import header
from benchmarks.cache.replay import CachePolicy, build, replay

from mamba_cli.bench.traces import Arrival, parse
from mamba_cli.fleet.engine_profile import CacheSize
from mamba_cli.fleet.prompt_blocks import BLOCK, prompt, usable
from mamba_server.cache import ledger


def arrival(length: int, *ids: int) -> Arrival:
    return Arrival(0.0, length, 1, ids)


def coarse(**fields: object) -> CachePolicy:
    return CachePolicy(page_size=BLOCK, track_interval=BLOCK, **fields)  # type: ignore[arg-type]


def test_equal_blocks_have_equal_tokens_and_others_share_none() -> None:
    one, two = prompt(arrival(1000, 3, 4)), prompt(arrival(1024, 3, 9))
    assert len(one) == 1000
    assert np.array_equal(one[:BLOCK], two[:BLOCK])
    assert not np.intersect1d(one[BLOCK:], two[BLOCK:]).size


def test_prompts_longer_than_their_blocks_are_left_out() -> None:
    fits, too_long, empty = arrival(512, 1), arrival(513, 1), arrival(0)
    assert usable([fits, too_long, empty]) == [fits]


def test_the_bound_counts_whole_known_blocks_but_never_the_last_token() -> None:
    first, again, longer = arrival(1024, 1, 2), arrival(1024, 1, 2), arrival(1500, 1, 2, 3)
    assert endless_cache_bound([first]) == 0
    assert endless_cache_bound([first, again]) == 512 / 2048
    assert endless_cache_bound([first, longer]) == 1024 / 2524
    assert endless_cache_bound([]) == 0


def test_a_block_that_returns_behind_another_prefix_is_not_known() -> None:
    assert endless_cache_bound([arrival(1024, 1, 2), arrival(1024, 7, 2)]) == 0


def test_a_generated_trace_is_the_same_for_the_same_seed_and_reads_as_the_published_format() -> None:
    made = generated(50, seed=3)
    assert made == generated(50, seed=3) != generated(50, seed=4)
    lines = [
        json.dumps(
            {
                "timestamp": 1000 * a.at,
                "input_length": a.input_tokens,
                "output_length": a.output_tokens,
                "hash_ids": a.block_ids,
            }
        )
        for a in made
    ]
    assert parse(lines) == usable(made) == made
    assert 0.3 < endless_cache_bound(made) < 0.95


def test_a_prompt_seen_before_is_resumed_at_its_last_whole_page() -> None:
    seen = replay([arrival(1500, 1, 2, 3)] * 2, CacheSize(50), coarse())
    assert (seen.prompt_tokens, seen.cached_tokens) == (3000, 1024)
    assert seen.hit_rate == 1024 / 3000


def test_with_room_for_everything_the_replay_comes_close_to_the_bound_and_never_above() -> None:
    made = generated(150)
    bound = endless_cache_bound(made)
    seen = replay(made, CacheSize(100_000), coarse(cap=64))
    assert 0.99 * bound <= seen.hit_rate <= bound


@pytest.mark.parametrize("eviction", ["RecomputeCost", "LRU"])
def test_more_slots_save_more(eviction: str) -> None:
    made = generated(150)
    few, many = (replay(made, CacheSize(slots), coarse(eviction=eviction)) for slots in (8, 200))
    assert few.hit_rate < many.hit_rate <= endless_cache_bound(made)


def test_recompute_cost_saves_more_than_lru_when_slots_are_short() -> None:
    made = generated(300)
    cost, lru = (replay(made, CacheSize(24), coarse(eviction=name)) for name in ("RecomputeCost", "LRU"))
    assert cost.hit_rate > lru.hit_rate


def test_states_and_pages_share_one_arena_and_its_ledger_holds() -> None:
    made = generated(60)
    size = CacheSize(20, kv_tokens=40_000, tokens_per_state=4 * BLOCK)
    assert size.arena(BLOCK).pages_per_slab == 4
    assert size.arena(BLOCK).slabs == 1 + 20 + 20
    seen = replay(made, size, coarse())
    assert 0 < seen.hit_rate < endless_cache_bound(made)
    core = build(size, coarse(), 8192)
    ledger.check(core.cache)


def test_a_prompt_that_never_fits_is_counted_and_the_rest_goes_on() -> None:
    size = CacheSize(8, kv_tokens=BLOCK, tokens_per_state=BLOCK)
    seen = replay([arrival(40 * BLOCK, *range(40)), arrival(600, 90, 91)], size, coarse())
    assert seen.refused == 1
    assert seen.prompt_tokens == 600


def test_results_become_tables_series_and_plots(tmp_path: Path) -> None:
    made = generated(40)
    rows = measure(made, [8, 32], [0])
    found = {
        "trace": "generated",
        "requests": len(made),
        "prompt_tokens": 1,
        "bound": endless_cache_bound(made),
        "rows": rows,
    }
    table = [line for line in markdown(found) if line.startswith("|")]
    assert len(table) == 2 + len(rows)
    lines = series(rows)
    assert set(lines) == {"RecomputeCost, slots alone", "LRU, slots alone"}
    assert [slots for slots, _ in lines["LRU, slots alone"]] == [8, 32]
    hit_rates(found, tmp_path / "one.svg")
    hit_rates(found, tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_strategies_are_drawn_side_by_side(tmp_path: Path) -> None:
    rows = [
        {"strategy": name, "arena_mib": size, "most_running": 3, "hit_rate": 0.5, "tokens_per_cpu_second": 9}
        for name in ("NoBuffer", "ExtraBuffer")
        for size in (1, 2)
    ]
    strategies({"strategies": rows}, tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text()
    assert "<svg" in text


def test_the_newest_result_is_the_one_with_the_last_date(tmp_path: Path) -> None:
    assert newest("it", tmp_path) is None
    for day in ("2026-01-02", "2026-01-10", "2025-12-31"):
        (tmp_path / f"{day}-it.json").write_text(json.dumps({"day": day}))
    assert newest("it", tmp_path) == {"day": "2026-01-10"}


def test_a_record_opens_with_where_when_and_with_what() -> None:
    machine = {
        "processor": "P", "cores": 2, "memory_gib": 4.0, "load_average": [1, 2, 3],
        "versions": {"torch": "2"}, "python": "3.11", "commit": "abc",
    }  # fmt: skip
    text = "\n".join(header("it", "2026-11-21T10:00:00+00:00", machine))
    assert text.startswith("# it, 2026-11-21\n")
    for part in ("P, 2 cores, 4.0 GiB", "1, 2, 3", "torch 2", "abc"):
        assert part in text


def test_matching_and_inserting_is_timed_on_paths_of_many_nodes() -> None:
    seen = match_and_insert(8, repeats=2)
    assert seen["nodes"] == 8
    assert 0 < seen["median_ms"] <= seen["max_ms"]
