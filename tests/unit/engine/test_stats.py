"""The engine's numbers: counters grow, gauges add up, and the other process understands every key."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from engine_trial import STRATEGIES, EngineTrial, TrialSetup
from mamba_server.api.metrics.engine_metrics import HELP, REQUEST_METRICS, parse_key
from mamba_server.engine.stats import collect
from mamba_server.wire import AbortRequest, AddRequest, EngineStats, SamplingParams


def trial(**changes: object) -> EngineTrial:
    return EngineTrial(TrialSetup(**{"slabs": 40, **changes}), random.Random(0))


def busy(seed: int, steps: int = 60, **changes: object) -> Iterator[tuple[EngineTrial, EngineStats]]:
    """Yield the statistics after every step of an engine under changing load."""
    rng = random.Random(seed)
    engine = EngineTrial(TrialSetup(**{"slabs": 24, "rows": 3, **changes}), random.Random(seed))
    stems = [[rng.randrange(1, 90) for _ in range(40)] for _ in range(2)]
    for _ in range(steps):
        if rng.random() < 0.4 and len(engine.core.sequences) < 6:
            engine.add(rng.choice(stems)[: rng.randint(1, 40)], rng.randint(1, 20), salt=rng.choice("ab"))
        if rng.random() < 0.1:
            engine.preempt()
        if rng.random() < 0.05:
            engine.abort()
        engine.step()
        yield engine, collect(engine.core)
    engine.close()
    yield engine, collect(engine.core)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_counters_never_fall_and_gauges_are_counts_or_shares(strategy: str) -> None:
    before: dict[str, float] = {}
    for _, stats in busy(1, strategy=strategy):
        assert before.keys() <= stats.counters.keys()
        assert all(stats.counters[name] >= value for name, value in before.items())
        before = stats.counters
        for name, value in stats.gauges.items():
            shares = name.endswith(("_usage", "_ratio"))
            assert 0 <= value <= (1 if shares else math.inf if "second" in name else 100_000), name
    assert before["preemptions_total"] > 0
    assert before["cached_tokens_total"] > 0


@pytest.mark.parametrize("per_slab", [0, 2])
def test_every_slab_and_every_page_has_one_owner_in_the_numbers(per_slab: int) -> None:
    owners = ("free", "live", "tracking", "cached", "fenced", "pages")
    for engine, stats in busy(2, pages_per_slab=per_slab):
        gauges = stats.gauges
        assert sum(gauges[f"slabs{{owner={owner}}}"] for owner in owners) == engine.setup.slabs - 1
        in_pages = sum(gauges[f"pages{{owner={owner}}}"] for owner in ("free", "sequence", "tree", "fenced"))
        # A free slab may become a slot or pages: its pages count as free ones.
        assert in_pages == (gauges["slabs{owner=free}"] + gauges["slabs{owner=pages}"]) * per_slab
        for owner in ("live", "tracking", "cached", "fenced"):
            assert gauges[f"slots{{owner={owner}}}"] == gauges[f"slabs{{owner={owner}}}"]


def test_running_and_waiting_are_the_sequences_that_have_no_last_token_yet() -> None:
    engine = trial(rows=2, overlap=False)
    for _ in range(5):
        engine.add([1, 2, 3], 3)
    engine.step()
    gauges = collect(engine.core).gauges
    assert (gauges["requests_running"], gauges["requests_waiting"]) == (2, 3)
    engine.close()
    gauges = collect(engine.core).gauges
    assert (gauges["requests_running"], gauges["requests_waiting"]) == (0, 0)


def test_a_cache_full_of_what_can_be_evicted_is_not_in_use() -> None:
    engine = trial(slabs=12, overlap=False)
    for start in range(1, 80, 10):
        engine.add(list(range(start, start + 9)), 2)
        while not engine.core.idle:
            engine.step()
    gauges = collect(engine.core).gauges
    assert gauges["slabs{owner=free}"] < 4
    assert gauges["checkpoints"] == gauges["slots{owner=cached}"] > 0
    assert gauges["arena_usage"] == pytest.approx(0, abs=0.05)
    assert gauges["state_usage"] == gauges["kv_usage"] == 0


def test_what_running_sequences_hold_is_in_use() -> None:
    engine = trial(slabs=9, overlap=False, rows=2, strategy="ExtraBuffer", pages_per_slab=2)
    engine.add([1, 2, 3], 5)
    engine.add([7, 8, 9], 5)
    engine.step()
    gauges = collect(engine.core).gauges
    # Two sequences with a live and a tracking slot each; their two pages share one slab.
    assert gauges["state_usage"] == 4 / 8
    assert gauges["arena_usage"] == 5 / 8
    assert gauges["kv_usage"] == gauges["pages{owner=sequence}"] / (
        gauges["pages{owner=sequence}"] + gauges["pages{owner=free}"]
    )
    engine.close()


def test_a_model_without_attention_has_no_page_usage() -> None:
    engine = trial(pages_per_slab=0)
    engine.add(list(range(1, 30)), 5)
    engine.step()
    gauges = collect(engine.core).gauges
    assert gauges["kv_usage"] == 0
    assert 0 < gauges["state_usage"] <= gauges["arena_usage"] <= 1
    engine.close()


def test_step_times_are_told_once() -> None:
    engine = trial(overlap=False)
    engine.add([1, 2, 3], 4)
    engine.step()
    engine.step()
    first, second = collect(engine.core), collect(engine.core)
    assert (len(first.step_seconds), first.batch_sizes) == (2, [1, 1])
    assert all(part >= 0 for times in first.step_seconds for part in times)
    assert (second.step_seconds, second.batch_sizes) == ([], [])
    engine.close()


def test_a_failed_step_counts_as_failed_and_has_no_time() -> None:
    engine = trial(overlap=False)
    engine.add([1, 2, 3], 4)
    engine.runner.fail_steps[1] = "before"
    engine.step()
    stats = collect(engine.core)
    assert (stats.counters["steps_total"], stats.counters["failed_steps_total"]) == (1, 1)
    assert stats.counters["sequences_finished_total{reason=error}"] == 1
    assert stats.step_seconds == []


def test_each_end_is_counted_under_its_reason() -> None:
    engine = trial(overlap=False)
    engine.add([1, 2, 3], 2)
    engine.add([4, 5, 6], 50)
    engine.step()
    engine.core.abort(AbortRequest("r1"))
    engine.ended["r1", 0] = "abort"
    engine.close()
    counters = collect(engine.core).counters
    ends = {name: value for name, value in counters.items() if name.startswith("sequences_finished")}
    assert ends == {
        "sequences_finished_total{reason=length}": 1,
        "sequences_finished_total{reason=abort}": 1,
    }


def test_a_miss_is_counted_by_its_cause_and_a_refused_request_not_at_all() -> None:
    engine = trial(overlap=False)
    engine.core.add(AddRequest("long", [1] * 5000, SamplingParams(max_tokens=1)))
    for salt in ("a", "b", "b"):
        engine.add(list(range(1, 30)), 2, salt=salt)
        while not engine.core.idle:
            engine.step()
    counters = collect(engine.core).counters
    misses = {name: value for name, value in counters.items() if name.startswith("prefix_misses")}
    assert misses == {
        "prefix_misses_total{cause=new}": 1,
        "prefix_misses_total{cause=salt_differs}": 1,
    }
    assert (counters["prompt_tokens_total"], counters["cached_tokens_total"]) == (87, 28)


def test_what_came_by_before_is_counted_whether_or_not_it_was_kept() -> None:
    engine = trial(overlap=False, policy="RecomputeCost")
    first, other = list(range(1, 30)), list(range(40, 69))

    def serve(token_ids: list[int]) -> tuple[float, float, float]:
        engine.add(token_ids, 2)
        while not engine.core.idle:
            engine.step()
        counters = collect(engine.core).counters
        names = ("admitted_prompt_tokens_total", "shared_prompt_tokens_total", "cached_tokens_total")
        return counters[names[0]], counters[names[1]], counters[names[2]]

    assert serve(first) == (29, 0, 0)
    engine.flush()
    assert serve(first) == (58, 28, 0), "nothing is kept of it, and it came by"
    assert serve(other) == (87, 28, 0)
    assert serve(first) == (116, 56, 28)
    assert serve(first[:12] + other) == (157, 68, 40)


def test_without_a_memory_of_prompts_nothing_is_said_of_what_they_share() -> None:
    counters = collect(trial(overlap=False, policy="LRU").core).counters

    assert not [name for name in counters if name.startswith(("admitted_prompt", "shared_prompt"))]


def test_the_api_process_understands_every_key_and_can_explain_it() -> None:
    keys = {key for _, stats in busy(3, policy="RecomputeCost") for key in (*stats.counters, *stats.gauges)}
    assert len(keys) > 30
    for key in keys:
        parsed = parse_key(key)
        assert parsed is not None, key
        assert parsed[0] in HELP or parsed[0] in REQUEST_METRICS, key


def test_prompt_tokens_to_come_are_those_of_who_waits_and_the_rest_of_who_has_begun() -> None:
    engine = trial(rows=1, overlap=False, step_tokens=8, chunk=8)
    engine.add(list(range(1, 31)), 3)
    engine.add(list(range(50, 70)), 3)
    assert collect(engine.core).gauges["prompt_tokens_waiting"] == 50
    engine.step()
    assert collect(engine.core).gauges["prompt_tokens_waiting"] == 50 - 8
    engine.close()
    assert collect(engine.core).gauges["prompt_tokens_waiting"] == 0


@pytest.mark.parametrize("per_slab", [0, 2])
def test_there_is_room_for_a_prompt_until_all_rows_or_all_memory_are_taken(per_slab: int) -> None:
    engine = trial(rows=2, slabs=10, overlap=False, pages_per_slab=per_slab, strategy="NoBuffer")
    whole = collect(engine.core).gauges["prompt_room_tokens"]
    if per_slab:
        # Nine slabs but for the one of its state.
        assert whole == 8 * 2 * engine.setup.page_size
    engine.add([1, 2, 3], 5)
    engine.step()
    left = collect(engine.core).gauges["prompt_room_tokens"]
    assert 0 < left < whole
    engine.add([7, 8, 9], 5)
    engine.step()
    assert collect(engine.core).gauges["prompt_room_tokens"] == 0
    engine.close()
    # What is only cached makes way.
    assert collect(engine.core).gauges["prompt_room_tokens"] == whole
