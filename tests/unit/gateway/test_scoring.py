"""Scoring: all that speaks for or against an engine, in expected seconds until the first token."""

import subprocess
import sys
from collections import Counter
from random import Random

import pytest

from mamba_gateway.endpoints.engine_speed import EngineSpeed
from mamba_gateway.routing.decision import choose
from mamba_gateway.routing.scoring import (
    ASSUMED_SHARE,
    JITTER,
    RECOMPUTE_FACTOR,
    RECOMPUTE_FACTOR_PER_WAITING,
    CostComparison,
    RoutingRequest,
    RoutingWeights,
    home_of,
)

EVEN = RoutingWeights()
FAST, SLOW = EngineSpeed(10_000.0), EngineSpeed(1000.0)


@pytest.fixture
def engine(endpoint):
    """Return an engine that reports its state: idle, with room, at 10,000 tokens a second."""

    def make(name, **changes):
        return endpoint(name, **{"speed": FAST, "queued_tokens": 0.0, "room": 1e6, **changes})

    return make


def ask(tokens, resumable=None, home=None, seen=None):
    return RoutingRequest("m", (), tokens, resumable or {}, seen or {}, home)


def costs(ends, request, weights=EVEN):
    return CostComparison.of(ends, request, weights, Random(0)).costs()


def chosen(ends, request, weights=EVEN, seed=0):
    return choose(ends, request, Random(seed), weights).endpoint.name


def test_an_engine_that_can_resume_more_is_worth_a_queue_up_to_what_that_saves(engine) -> None:
    # 6,000 tokens resumed are 0.6 s for this request, and 0.6 s of work that is not done twice, which counts
    # several times: so long may the prompts before it take there, and no longer.
    request, worth = ask(8000, {"warm": 6000}), (1 + RECOMPUTE_FACTOR) * 6000
    for queued, expected in ((0.9 * worth, "warm"), (1.02 * worth, "cold")):
        ends = [engine("cold"), engine("warm", queued_tokens=float(queued))]
        assert chosen(ends, request) == expected


def test_what_is_matched_but_cannot_be_resumed_counts_for_nothing(engine) -> None:
    made = costs([engine("a"), engine("b")], ask(8000, {"gone": 8000}))
    assert [cost.compute for cost in made] == [0.8, 0.8]


def test_the_quadratic_part_makes_the_end_of_a_long_prompt_dearer_than_its_beginning(engine) -> None:
    end = engine("a", speed=EngineSpeed(10_000.0, attention_ratio=1e-4))
    (whole,) = costs([end], ask(100_000))
    (last,) = costs([end], ask(100_000, {"a": 90_000}))
    (first,) = costs([end], ask(10_000))
    assert first.compute == pytest.approx(1.5)
    assert last.compute == pytest.approx(10.5)
    assert whole.compute == pytest.approx(60.0)


def test_a_prompt_goes_to_the_faster_of_two_engines_until_its_queue_makes_up_for_it(engine) -> None:
    assert chosen([engine("slow", speed=SLOW), engine("fast")], ask(1000)) == "fast"
    assert chosen([engine("slow", speed=SLOW), engine("fast", queued_tokens=12_000.0)], ask(1000)) == "slow"


def test_an_engine_that_has_not_measured_itself_counts_as_its_neighbours_do(engine) -> None:
    made = costs([engine("a"), engine("new", speed=None), engine("b")], ask(5000))
    assert [cost.compute for cost in made] == [0.5, 0.5, 0.5]


def test_a_full_engine_costs_the_wait_for_memory(engine) -> None:
    full = engine("full", room=500.0, running=4, waiting=2, service_seconds=8.0)
    (cost,) = costs([full], ask(1000))
    assert cost.memory == pytest.approx(3 * 8 / 4)
    assert costs([full], ask(400))[0].memory == 0
    # The prompt that it could resume does not make up for that.
    assert chosen([full, engine("free")], ask(1000, {"full": 900})) == "free"


def test_prompts_on_their_way_take_of_the_room_that_was_reported(engine) -> None:
    (cost,) = costs([engine("a", room=1000.0, queued_tokens=600.0)], ask(500))
    assert cost.memory > 0


def test_of_engines_alike_the_one_that_writes_fewer_answers_is_chosen(engine) -> None:
    busy = engine("busy", running=30, speed=EngineSpeed(10_000.0, 0.0, 0.03))
    assert chosen([busy, engine("calm", running=2, speed=busy.speed)], ask(1000)) == "calm"
    assert chosen([busy, engine("calm", running=2)], ask(8000, {"busy": 6000})) == "busy"


@pytest.mark.parametrize(
    ("prefix", "load", "expected"), [(1, 1, "idle"), (3, 1, "warm"), (1, 0.2, "warm"), (0, 1, "idle")]
)
def test_a_weight_decides_between_the_engine_that_knows_the_prompt_and_the_idle_one(
    prefix, load, expected, engine
) -> None:
    ends = [engine("idle"), engine("warm", queued_tokens=2.3 * (1 + RECOMPUTE_FACTOR) * 3000)]
    assert chosen(ends, ask(8000, {"warm": 6000}), RoutingWeights(prefix, load)) == expected


def test_a_weight_of_nothing_switches_its_side_off(engine) -> None:
    ends = [engine("a", queued_tokens=1e6, running=50, room=0.0), engine("b")]
    a, b = costs(ends, ask(8000, {"a": 7999}), RoutingWeights(1, 0))
    assert (a.queue, a.memory, a.decode) == (0, 0, 0)
    a, b = costs(ends, ask(8000, {"a": 7999}), RoutingWeights(0, 1))
    assert a.compute == b.compute == 0


def test_engines_that_say_nothing_of_themselves_are_chosen_by_load(endpoint) -> None:
    ends = [endpoint("a", running=9), endpoint("b", running=4, waiting=1), endpoint("c", in_flight=6)]
    assert chosen(ends, ask(8000)) == "b"
    # And what one is known to be able to resume still counts.
    assert chosen(ends, ask(8000, {"c": 7000})) == "c"


def test_the_number_that_decides_is_the_sum_of_the_parts_that_explain_it(engine, endpoint) -> None:
    ends = [
        engine("a", queued_tokens=500.0, running=3),
        engine("b", room=10.0, waiting=2),
        engine("new", speed=None, queued_tokens=70.0),
        endpoint("foreign", running=4),
    ]
    for request in (ask(8000, {"a": 4096}, seen={"b": 6000}), ask(900, home=5), ask(10)):
        comparison = CostComparison.of(ends, request, RoutingWeights(0.7, 1.3), Random(1))
        assert comparison.totals() == [cost.total for cost in comparison.costs()]
        assert len(set(comparison.totals())) > 2


# --- a prefix that nobody has yet ---------------------------------------------------------------------


def test_prompts_of_a_new_beginning_go_to_one_engine_whichever_gateway_they_come_through(engine) -> None:
    ends = [engine(f"e{n}") for n in range(8)]
    for home in range(40):
        key = Random(home).getrandbits(64)
        picks = {
            chosen(order, ask(4000, home=key), seed=seed) for seed, order in enumerate((ends, ends[::-1]))
        }
        assert picks == {home_of(ends, key).name}
        assert choose(ends, ask(4000, home=key), Random(0)).reason == "home"


def test_homes_are_spread_and_stay_when_another_engine_leaves(engine) -> None:
    ends = [engine(f"e{n}") for n in range(8)]
    keys = [Random(n).getrandbits(64) for n in range(800)]
    before = [home_of(ends, key).name for key in keys]
    assert all(60 < count < 140 for count in Counter(before).values())
    after = [home_of(ends[1:], key).name for key in keys]
    assert all(new == old for new, old in zip(after, before, strict=True) if old != "e0")


def test_a_home_is_the_same_in_every_process(engine) -> None:
    script = (
        "from types import SimpleNamespace as N; from mamba_gateway.endpoints.endpoint import _key;"
        "from mamba_gateway.routing.scoring import home_of;"
        "ends = [N(name=f'e{n}', key=_key(f'e{n}')) for n in range(8)];"
        "print([home_of(ends, k * 7919).name for k in range(9)])"
    )
    path = ":".join(sys.path)
    said = subprocess.check_output([sys.executable, "-c", script], text=True, env={"PYTHONPATH": path})
    here = [home_of([engine(f"e{n}") for n in range(8)], k * 7919).name for k in range(9)]
    assert said.strip() == str(here)


def test_load_forbids_a_home_once_the_wait_costs_more_than_to_compute_the_prefix_again(engine) -> None:
    ends = [engine(f"e{n}") for n in range(4)]
    home = home_of(ends, 77).name
    shared = ASSUMED_SHARE * 4000
    for factor, stays in ((0.8, True), (1.2, False)):
        loaded = [engine(e.name, queued_tokens=factor * shared if e.name == home else 0.0) for e in ends]
        assert (chosen(loaded, ask(4000, home=77)) == home) is stays


def test_where_somebody_can_resume_the_prompt_it_has_no_home(engine) -> None:
    ends = [engine(f"e{n}") for n in range(4)]
    warm = next(end.name for end in ends if end is not home_of(ends, 77))
    decision = choose(ends, ask(4000, {warm: 2048}, home=77), Random(0))
    assert (decision.endpoint.name, decision.reason) == (warm, "prefix")


def test_gateways_that_see_the_same_loads_do_not_all_send_to_the_same_engine(engine) -> None:
    ends = [engine(f"e{n}", queued_tokens=10_000.0 + 50 * n) for n in range(8)]
    picks = Counter(chosen(ends, ask(100), seed=seed) for seed in range(400))
    assert len(picks) == 8
    assert max(picks.values()) < 200
    # But what differs by more than the jitter is never taken for the same.
    ends.append(engine("idler", queued_tokens=10_000.0 / (1 + 1.5 * JITTER)))
    assert {chosen(ends, ask(100), seed=seed) for seed in range(50)} == {"idler"}


def test_what_an_engine_is_computing_for_others_is_not_begun_elsewhere_only_to_wait_less(engine) -> None:
    # It has just got the 6,000 tokens that this prompt shares, and computes them for 0.6 s.
    known = {"first": 6000}
    worth = (1 + RECOMPUTE_FACTOR) * 6000
    for queued, expected in ((6000, "first"), (0.9 * worth, "first"), (1.1 * worth, "other")):
        ends = [engine("other"), engine("first", queued_tokens=float(queued))]
        assert chosen(ends, ask(6100, known, seen=known)) == expected


@pytest.mark.parametrize(("sure", "waiting"), [(True, 0), (True, 10), (True, 40), (False, 40)])
def test_the_more_requests_wait_the_dearer_it_is_to_compute_there_what_another_one_has(
    engine, sure, waiting
) -> None:
    known = {"warm": 6000}
    request = RoutingRequest("m", (), 6100, known, known, authoritative=sure)
    worth = (1 + (RECOMPUTE_FACTOR + RECOMPUTE_FACTOR_PER_WAITING * waiting if sure else 1)) * 6000
    for queued, expected in ((0.9 * worth, "warm"), (1.02 * worth, "cold")):
        ends = [
            engine("cold", waiting=waiting, running=200),
            engine("warm", queued_tokens=queued, running=200),
        ]
        assert chosen(ends, request) == expected


def test_what_nobody_can_resume_goes_where_it_was_seen_before_so_that_a_state_is_kept_there(engine) -> None:
    ends = [engine("other"), engine("saw", queued_tokens=0.9 * RECOMPUTE_FACTOR * 6000)]
    assert chosen(ends, ask(8000, seen={"saw": 6000})) == "saw"
    # What can be resumed elsewhere need not be computed twice: that decides, and the rest of the queue.
    assert chosen(ends, ask(8000, {"other": 6000}, seen={"saw": 6000})) == "other"
    ends = [engine("other"), engine("saw", queued_tokens=1.1 * RECOMPUTE_FACTOR * 6000)]
    assert chosen(ends, ask(8000, seen={"saw": 6000})) == "other"


@pytest.mark.parametrize("home", [None, 7])
def test_one_engine_alone_is_weighed_as_it_would_be_among_others_that_know_no_more(engine, home) -> None:
    alone, other = engine("a", queued_tokens=3000.0, running=2, waiting=4), engine("b")
    request = ask(8000, {"a": 3000}, home=home, seen={"a": 5000})
    (single,), (among, _) = costs([alone], request), costs([alone, other], request)
    assert (single.resumable, single.seen, single.compute) == (3000, 5000, among.compute)
    assert (single.memory, single.decode, single.apart) == (among.memory, among.decode, 0.0)
    # The load is told as it is: it need not be kept apart from anybody else's.
    assert single.queue == 0.3
    assert single.queue <= among.queue <= single.queue * (1 + JITTER)
    decision = choose([alone], request, Random(0))
    assert (decision.reason, decision.cost, decision.comparison.charges) == ("only", single, False)
    assert decision.comparison.totals() == [pytest.approx(single.total)]
