"""Admin calls between two steps: what each answers, what it changes, and what a refused one leaves alone."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from engine_trial import STRATEGIES, EngineTrial, TrialSetup
from mamba_server.engine.admin import AdminCalls
from mamba_server.wire import AdminCall

PLAN = {"strategy": "ExtraBuffer", "slotsPerSequence": 3, "reason": "planned", "maxRunningRequests": 4}


def trial(**changes: object) -> EngineTrial:
    return EngineTrial(TrialSetup(**{"slabs": 40, **changes}), random.Random(0))


class Caller:
    """One admin side and who calls it."""

    def __init__(self, engine: EngineTrial) -> None:
        self.engine = engine
        self.admin = AdminCalls(engine.core, PLAN)

    def __call__(self, verb: str, **body: Any) -> tuple[int, dict[str, Any]]:
        reply = self.admin.answer(AdminCall(7, verb, body))
        assert reply.call_id == 7
        json.dumps(reply.body)
        return reply.status, reply.body


@pytest.fixture
def call() -> Caller:
    return Caller(trial())


# --- plan and strategy ---------------------------------------------------------------------------------


def test_the_plan_is_the_one_the_engine_started_with(call: Caller) -> None:
    assert call("plan") == (200, PLAN)


@pytest.mark.parametrize(("name", "slots"), [("NoBuffer", 1), ("ExtraBufferLazy", 2), ("ExtraBuffer", 3)])
def test_a_change_shows_in_the_plan_and_nothing_else_of_it_changes(
    call: Caller, name: str, slots: int
) -> None:
    status, body = call("strategy", strategy=name, trackInterval=8)
    cap = call.engine.cache.cap
    policy = call.engine.cache.tree.eviction.policy
    told = {
        "strategy": name, "trackInterval": 8, "maxCheckpointsPerPath": cap, "eviction": policy, "epoch": 1,
    }  # fmt: skip
    assert (status, body) == (200, told)
    shown = call("plan")[1]
    assert "trackInterval 8" in shown["reason"]
    assert shown == {**PLAN, "strategy": name, "slotsPerSequence": slots, "reason": shown["reason"]}
    assert PLAN["reason"] == "planned"


def test_the_interval_may_change_alone_and_the_strategy_may_change_alone(call: Caller) -> None:
    before = call.engine.cache.track_interval
    assert call("strategy", strategy="NoBuffer")[1]["trackInterval"] == before
    status, body = call("strategy", trackInterval=12)
    assert (status, body["strategy"], body["trackInterval"]) == (200, "NoBuffer", 12)
    assert call.engine.cache.track_interval == 12


def test_the_most_checkpoints_of_a_path_change_alone_and_count_for_what_comes(call: Caller) -> None:
    strategy, interval = call.engine.cache.strategy.name, call.engine.cache.track_interval
    status, body = call("strategy", maxCheckpointsPerPath=1)
    assert (status, body["maxCheckpointsPerPath"]) == (200, 1)
    assert (body["strategy"], body["trackInterval"]) == (strategy, interval)
    assert call("plan")[1]["reason"] == "changed while serving: maxCheckpointsPerPath 1"
    assert (call.engine.cache.cap, call.engine.cache.donation.cap) == (1, 1)


def test_eviction_changes_alone_and_nothing_cached_is_lost(call: Caller) -> None:
    cache = call.engine.cache
    status, body = call("strategy", eviction="LRU")
    assert (status, body["eviction"], body["strategy"]) == (200, "LRU", cache.strategy.name)
    assert (cache.tree.eviction.policy, cache.ghosts) == ("LRU", None)
    assert call("strategy", eviction="RecomputeCost")[1]["eviction"] == "RecomputeCost"
    assert cache.ghosts is not None


@pytest.mark.parametrize("eviction", ["lru", "", None, ["LRU"]])
def test_an_unknown_eviction_changes_nothing(call: Caller, eviction: Any) -> None:
    before = call.engine.cache.tree.eviction.policy
    status, body = call("strategy", strategy="NoBuffer", eviction=eviction)
    assert (status, call.engine.cache.tree.eviction.policy) == (400, before)
    assert "RecomputeCost, LRU" in body["message"]


@pytest.mark.parametrize("cap", [0, -1, "2", 2.0, True])
def test_a_wrong_number_of_checkpoints_changes_nothing(call: Caller, cap: Any) -> None:
    before = call.engine.cache.cap
    status, body = call("strategy", strategy="NoBuffer", maxCheckpointsPerPath=cap)
    assert (status, call.engine.cache.cap) == (400, before)
    assert "maxCheckpointsPerPath" in body["message"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"strategy": "Auto"}, "'Auto' is not one of NoBuffer, ExtraBuffer, ExtraBufferLazy"),
        ({"strategy": None}, "None is not one of"),
        ({"strategy": ["NoBuffer"]}, "is not one of"),
        ({"strategy": "NoBuffer", "trackInterval": 0}, "0 must be a positive multiple of the page size 4"),
        ({"strategy": "NoBuffer", "trackInterval": -4}, "-4 must be a positive multiple"),
        ({"strategy": "NoBuffer", "trackInterval": 4.0}, "4.0 must be a positive multiple"),
        ({"strategy": "NoBuffer", "trackInterval": None}, "None must be a positive multiple"),
    ],
)
def test_a_bad_change_is_refused_whole(call: Caller, body: dict[str, Any], says: str) -> None:
    cache = call.engine.cache
    before = (cache.strategy, cache.track_interval)
    status, answer = call("strategy", **body)
    assert status == 400
    assert says in answer["message"]
    assert (cache.strategy, cache.track_interval) == before
    assert call.admin.epoch == 1
    assert call("plan")[1] == PLAN


def test_a_change_that_a_request_would_find_no_room_under_is_a_conflict_with_the_numbers() -> None:
    engine = trial(strategy="NoBuffer", slabs=8, pages_per_slab=1)
    engine.add(list(range(1, 5)), 20)
    engine.step()
    call = Caller(engine)
    status, body = call("strategy", strategy="ExtraBuffer", trackInterval=8)
    assert status == 409
    wanted = ("24 tokens", "3 slots", "7 slabs")
    assert [told for told in wanted if told not in body["message"]] == []
    assert (engine.cache.strategy.name, engine.cache.track_interval) == ("NoBuffer", 4)
    assert (call.admin.epoch, call("plan")[1]) == (1, PLAN)
    engine.close()


def test_a_waiting_request_too_long_for_the_wanted_strategy_is_a_conflict_too() -> None:
    engine = trial(strategy="NoBuffer", slabs=8, pages_per_slab=1, rows=1)
    engine.add([1, 2], 2)
    engine.add(list(range(1, 5)), 20)
    status, body = Caller(engine)("strategy", strategy="ExtraBuffer")
    assert status == 409
    assert "request r1" in body["message"]
    assert "24 tokens" in body["message"]
    engine.close()
    assert Caller(engine)("strategy", strategy="ExtraBuffer")[0] == 200


@pytest.mark.parametrize("overlap", [True, False])
def test_any_walk_through_the_strategies_under_load_changes_no_token(overlap: bool) -> None:
    engine = trial(strategy="NoBuffer", slabs=30, overlap=overlap)
    call = Caller(engine)
    rng = random.Random(5)
    for start in (1, 1, 30):
        engine.add(list(range(start, start + 25)), 30)
    done = 0
    while not engine.core.idle:
        engine.step()
        status, _ = call("strategy", strategy=rng.choice(STRATEGIES), trackInterval=rng.choice([4, 8, 16]))
        done += status == 200
        engine.check()
    assert done > 10
    # The checkpoints stay, so what was published of them stays true.
    assert call.admin.epoch == 1
    engine.close()


# --- flush ---------------------------------------------------------------------------------------------


def test_a_flush_spares_what_running_sequences_use_and_a_second_one_finds_the_rest(call: Caller) -> None:
    engine = call.engine
    engine.add(list(range(1, 30)), 40)
    engine.add(list(range(50, 80)), 2)
    for _ in range(5):
        engine.step()
    before = engine.cache.tree.checkpoints
    first = call("flush_cache")[1]
    while engine.cache.reclaimer.sweeping:
        engine.cache.reclaimer.sweep()
    assert first["checkpointsDropped"] == before - engine.cache.tree.checkpoints > 0
    while not engine.core.idle:
        engine.step()
    there = engine.cache.tree.checkpoints
    second = call("flush_cache")[1]
    assert engine.cache.tree.forgotten == there
    assert second["checkpointsDropped"] > 0
    assert (first["epoch"], second["epoch"]) == (2, 3)


def test_flushing_an_empty_cache_drops_nothing_but_is_an_epoch(call: Caller) -> None:
    assert call("flush_cache") == (200, {"checkpointsDropped": 0, "epoch": 2})


def test_after_a_flush_the_same_prompt_is_computed_anew(call: Caller) -> None:
    engine = call.engine
    for expected in (0, 28):
        engine.add(list(range(1, 30)), 2)
        (sequence,) = next(reversed(engine.core.sequences.values()))
        while not engine.core.idle:
            engine.step()
        assert sequence.cached_tokens == expected
    call("flush_cache")
    engine.add(list(range(1, 30)), 2)
    (sequence,) = next(reversed(engine.core.sequences.values()))
    engine.close()
    assert sequence.cached_tokens == 0


# --- looking -------------------------------------------------------------------------------------------


def test_the_ledger_adds_up_while_a_step_is_in_flight(call: Caller) -> None:
    engine = call.engine
    engine.add(list(range(1, 30)), 20)
    for _ in range(3):
        engine.step()
    status, body = call("ledger")
    parts = ("free", "live", "tracking", "cached", "fenced")
    assert status == 200
    assert sum(body[f"slots_{part}"] for part in parts) + body["slabs_of_pages"] == body["slots_total"]
    assert (body["running"], body["waiting"], body["step"], body["recounted"]) == (1, 0, 3, False)
    assert body["checkpoints"] == engine.cache.tree.checkpoints
    engine.close()


def test_requests_are_shown_in_every_phase_with_what_is_known_of_them() -> None:
    engine = trial(rows=2, step_tokens=32, chunk=16, overlap=False)
    call = Caller(engine)
    engine.add(list(range(1, 10)), 30, n=1)
    engine.step()
    engine.add(list(range(1, 70)), 5)
    engine.add([7, 8, 9], 5, n=2)
    engine.step()
    shown = call("requests")[1]["requests"]
    assert [(each["id"], each["index"], each["phase"]) for each in shown] == [
        ("r0", 0, "decode"), ("r1", 0, "prefill"), ("r2", 0, "waiting"), ("r2", 1, "waiting"),
    ]  # fmt: skip
    assert [(each["promptTokens"], each["outputTokens"]) for each in shown] == [
        (9, 2),
        (69, 0),
        (3, 0),
        (3, 0),
    ]
    assert (shown[1]["cachedTokens"], shown[1]["preemptions"]) == (8, 0)
    engine.close()
    assert call("requests") == (200, {"requests": []})


def test_a_preempted_request_is_shown_as_waiting_with_its_output_kept(call: Caller) -> None:
    engine = call.engine
    engine.add([1, 2, 3], 30)
    for _ in range(6):
        engine.step()
    engine.preempt()
    (shown,) = call("requests")[1]["requests"]
    assert (shown["phase"], shown["preemptions"]) == ("waiting", 1)
    assert shown["outputTokens"] >= 4
    engine.close()


@pytest.mark.parametrize("verb", ["", "Plan", "drain", "__init__", "answer"])
def test_other_words_are_no_calls(call: Caller, verb: str) -> None:
    assert call(verb) == (404, {"message": f"no admin call {verb!r}"})


@pytest.mark.parametrize("verb", ["plan", "ledger", "requests", "flush_cache"])
def test_a_body_nobody_asked_for_is_passed_over(call: Caller, verb: str) -> None:
    assert call(verb, strategy=5, nonsense=[1])[0] == 200
