"""Number of engines wanted: causes of growth, of shrinking, and of no change."""

import random

import msgspec
import pytest

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.decide import decide
from mamba_operator.autoscale.engine_costs import EngineCosts
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.observation import GatewayTraffic
from mamba_operator.autoscale.virtual_fleets import smallest_sufficient
from scaled_fleet import SPEED, Fleet, load, reversals, seen

RANGE = AutoscalerConfig(min_replicas=1, max_replicas=32, ttft_target=2.0, tpot_target=0.1)
"""5 requests per second are the whole of one engine."""
IDLE = AutoscalerConfig(min_replicas=0, max_replicas=8, scale_down_delay=100.0)


def test_a_load_of_six_engines_asks_for_more_than_six_and_not_for_twice_as_many() -> None:
    fleet = Fleet(RANGE)

    engines = fleet.run([30.0] * 120)

    assert 7 <= engines[-1] <= 12


def test_a_jump_of_the_load_is_followed_at_once_and_pods_on_their_way_are_not_asked_for_again() -> None:
    fleet = Fleet(RANGE, engines=2, start=120.0)
    fleet.run([4.0] * 60)

    engines = fleet.run([40.0] * 60)

    assert engines[3] >= 8
    assert max(engines) <= 24


def test_a_steady_load_with_noise_is_no_reason_to_go_up_and_down() -> None:
    noise = random.Random(3)
    fleet = Fleet(RANGE, engines=4)
    fleet.run([20.0 * noise.uniform(0.85, 1.15) for _ in range(120)])

    engines = fleet.run([20.0 * noise.uniform(0.85, 1.15) for _ in range(600)])

    assert reversals(engines) <= 1
    assert len(set(engines[300:])) <= 2


@pytest.mark.parametrize("late", [1, 2])
def test_what_is_seen_late_is_followed_late_and_no_further(late: int) -> None:
    """Pods on their way are counted as they were: those of the last looks must not be asked for again."""

    def engines(late: int) -> list[int]:
        fleet = Fleet(RANGE, engines=2, start=120.0, late=late)
        fleet.run([4.0] * 60)
        return fleet.run([40.0] * 120)

    at_once, then = engines(0), engines(late)
    assert then[3 + late] >= 8
    assert max(then) <= 24
    assert reversals(then) <= 1
    assert abs(then[-1] - at_once[-1]) <= 1


@pytest.mark.parametrize("late", [1, 2])
def test_nothing_shrinks_once_what_was_seen_late_stops_to_come(late: int) -> None:
    fleet = Fleet(msgspec.structs.replace(RANGE, history=60.0), engines=8, late=late)
    fleet.run([30.0] * 60)
    before = fleet.asked

    fleet.run([2.0] * 28)
    assert fleet.asked == before, "the delay is not over"
    fleet.silent = True
    assert set(fleet.run([2.0] * 120)) == {before}
    fleet.silent = False
    assert fleet.run([2.0] * 120)[-1] < before / 2


def test_a_fleet_shrinks_only_to_the_largest_number_of_the_window() -> None:
    fleet = Fleet(msgspec.structs.replace(RANGE, history=60.0), engines=8)
    fleet.run([30.0] * 60)
    before = fleet.asked

    engines = fleet.run([2.0] * 120)

    assert engines[: 300 // 10 - 2] == [before] * (300 // 10 - 2)
    assert engines[-1] < before / 2


def test_a_first_look_shrinks_nothing_for_a_whole_delay() -> None:
    engines = Fleet(RANGE, engines=9).run([1.0] * 29)

    assert engines == [9] * 29


def test_a_fleet_that_saw_nearly_nothing_keeps_what_it_was_started_with_for_a_while() -> None:
    """Minutes of silence say nothing about what the hour brings: somebody asked for these engines."""
    fleet = Fleet(RANGE, engines=3)

    engines = fleet.run([0.2] * 720)

    assert engines[: 1000 // 10] == [3] * 100
    assert engines[-1] == 1


def test_no_engine_is_given_up_that_a_rise_as_lately_would_need_on_top_of_what_comes_now() -> None:
    """One engine does 5 a second. Bursts of 3 a second were no trouble for it; on top of 3 they would be."""

    def engines(calm: float) -> list[int]:
        patient = AutoscalerConfig(min_replicas=1, max_replicas=32, ttft_target=20.0)
        fleet = Fleet(patient, engines=2, start=120.0)
        for _ in range(20):
            fleet.run([0.2] * 17 + [3.2] * 3)
        return fleet.run([calm] * 60)

    assert set(engines(3.3)) == {2}
    assert engines(0.2)[-1] == 1


def test_a_number_that_somebody_sets_stands_for_a_whole_delay() -> None:
    fleet = Fleet(RANGE, engines=2)
    fleet.run([5.0] * 100)
    fleet.asked = 9

    engines = fleet.run([5.0] * 40)

    assert engines[:30] == [9] * 30
    assert max(engines[32:]) < 9


@pytest.mark.parametrize("missing", [{"load": None}, {"load": load(3, 1.0)}, {"ready": 0, "load": None}])
def test_nothing_shrinks_while_engines_do_not_report(missing: dict[str, object]) -> None:
    memory, asked = AutoscalerMemory(), 9
    for number in range(200):
        made = decide(seen(asked, 1.0, at=10.0 * number, **missing), RANGE, memory)
        memory, asked = made.memory, made.target

    assert asked == 9
    assert made.binding == "data"


def test_a_growth_on_the_load_of_a_part_of_the_engines_is_kept_for_a_whole_delay() -> None:
    """The first report of an engine has its queue and no rates: the growth may be due to that queue alone."""
    memory = AutoscalerMemory()
    memory = decide(seen(1, 1.0), RANGE, memory).memory
    crowded = load(1, 0.0, unrated=1, waiting=40, waiting_tokens=4_000_000)
    grown = decide(seen(1, at=10.0, load=crowded), RANGE, memory)
    assert grown.target >= 3

    memory, running = grown.memory, grown.target
    for number in range(29):
        calm = decide(seen(running, 1.0, at=20.0 + 10.0 * number), RANGE, memory)
        memory, running = calm.memory, calm.target
        assert running == grown.target


def test_what_was_not_seen_was_no_silence_and_a_restart_of_the_operator_forgets_nobody() -> None:
    """A load of eight engines on ten; nobody answers the operator for half an hour from its first look."""
    fleet = Fleet(RANGE, engines=10)
    fleet.silent = True
    assert set(fleet.run([34.0] * 180)) == {10}
    fleet.silent = False

    assert set(fleet.run([34.0] * 29)) == {10}, "nothing goes within a delay of the first report"
    assert min(fleet.run([34.0] * 360)) >= 8, "the load was there all the time"


def test_after_a_gap_nobody_is_told_of_less_load_than_before_it() -> None:
    """Others scale by the demand that is published."""
    fleet = Fleet(RANGE, engines=10)
    fleet.run([34.0] * 60)
    before = fleet.decisions[-1].demand.work
    fleet.silent = True
    fleet.run([34.0] * 5)
    fleet.silent = False
    fleet.run([34.0] * 3)

    assert all(one.demand.work >= 0.95 * before for one in fleet.decisions[-8:])


def test_one_that_loads_longer_than_the_delay_is_not_idle_while_it_loads() -> None:
    config = AutoscalerConfig(min_replicas=0, max_replicas=2, scale_down_delay=300.0)
    fleet = Fleet(config, engines=0, start=900.0)
    fleet.run([0.0] * 10)
    fleet.run([0.1] * 6)
    assert fleet.asked == 1

    engines = fleet.run([0.0] * 150)
    assert engines[:110] == [1] * 110, "ready after 900 s, and then idle for 300 s"
    assert engines[-1] == 0


def test_one_that_never_gets_ready_is_given_up_in_the_end() -> None:
    config = AutoscalerConfig(min_replicas=0, max_replicas=2, scale_down_delay=300.0, start_deadline=1200.0)
    fleet = Fleet(config, engines=0, start=1e9)
    fleet.run([0.0] * 10)
    fleet.run([0.1] * 6)

    assert fleet.run([0.0] * 200)[-1] == 0


def test_where_gateways_do_not_answer_nothing_stops_and_it_is_said_whose_word_is_missing() -> None:
    config = AutoscalerConfig(min_replicas=0, max_replicas=2, scale_down_delay=300.0)
    fleet = Fleet(config, engines=1)
    fleet.gateways_silent = True

    assert set(fleet.run([0.0] * 2160)) == {1}
    made = fleet.decisions[-1]
    assert made.binding == "data"
    assert "traffic is unknown" in made.blind
    assert not Fleet(config, engines=1).decisions
    fleet.gateways_silent = False
    assert fleet.run([0.0] * 40)[-1] == 0
    assert not fleet.decisions[-1].blind


def test_slots_ask_for_engines_while_time_is_left() -> None:
    crowded = load(4, 4.0, slots_used=3.9, running=60, waiting=30)

    made = decide(seen(4, 4.0, load=crowded), RANGE, AutoscalerMemory())

    assert made.binding == "slots"
    assert made.target == 7
    assert "6.88" in made.reason


def test_pages_ask_for_engines_while_time_is_left() -> None:
    crowded = load(4, 4.0, pages_used=3.8, running=60)

    made = decide(seen(4, 4.0, load=crowded), RANGE, AutoscalerMemory())

    assert (made.binding, made.target) == ("pages", 5)


def test_a_queue_that_is_gone_before_a_pod_could_start_asks_for_none() -> None:
    short = load(4, 4.0, waiting=10, waiting_tokens=20_000.0)
    long = load(4, 4.0, waiting=4000, waiting_tokens=8e6)

    assert decide(seen(4, 4.0, load=short), RANGE, AutoscalerMemory()).target == 4
    assert decide(seen(4, 4.0, load=long), RANGE, AutoscalerMemory()).binding == "queue"


@pytest.mark.parametrize("target", ["ttft_target", "tpot_target"])
def test_a_shorter_target_asks_for_more_engines(target: str) -> None:
    def engines(seconds: float) -> int:
        alone = AutoscalerConfig(min_replicas=1, max_replicas=32, **{target: seconds})
        fleet = Fleet(alone, engines=8)
        return fleet.run([20.0 + (number % 6 == 0) * 25.0 for number in range(300)])[-1]

    long, short = {"ttft_target": (20.0, 0.4), "tpot_target": (0.2, 0.024)}[target]
    assert engines(short) > engines(long)


def test_bursts_that_come_again_keep_the_engines_that_they_need() -> None:
    fleet = Fleet(RANGE, engines=4)

    engines = fleet.run([40.0 if number % 30 < 3 else 2.0 for number in range(360)])

    assert min(engines[180:]) >= 5
    assert reversals(engines) <= 2


def test_pods_that_never_start_let_the_fleet_stop_growing() -> None:
    memory, asked = AutoscalerMemory(), 2
    for number in range(400):
        pending = tuple(f"pod-{one}" for one in range(asked - 2))
        crowd = load(2, 40.0, waiting=500, waiting_tokens=1e6 + 1e5 * number)
        now = seen(asked, 40.0, at=10.0 * number, ready=2, pending=pending, load=crowd)
        made = decide(now, RANGE, memory)
        memory, asked = made.memory, made.target
        if number == 100:
            settled = asked

    assert asked == settled <= RANGE.max_replicas
    assert "do not become ready" in made.reason


def test_a_pod_that_is_stuck_where_others_start_is_made_up_for() -> None:
    memory, asked = AutoscalerMemory(), 4
    for number in range(100):
        pending = ("stuck", "young") if number < 20 else ("stuck",)
        now = seen(asked, 25.0, at=10.0 * number, ready=asked - len(pending), pending=pending)
        made = decide(now, RANGE, memory)
        memory, asked = made.memory, max(made.target, asked)

    assert asked - 1 >= 6


def test_nothing_runs_once_no_request_came_for_the_delay_and_a_request_brings_it_back() -> None:
    memory, asked = AutoscalerMemory(), 2
    seen_at: list[int] = []
    for number in range(14):
        made = decide(seen(asked, at=10.0 * number), IDLE, memory)
        memory, asked = made.memory, made.target
        seen_at.append(asked)
    assert seen_at == [2] * 10 + [0] * 4
    assert made.reason

    held = seen(0, at=140.0, traffic=GatewayTraffic(held=3))
    assert (decide(held, IDLE, memory).target, decide(held, IDLE, memory).binding) == (1, "wake")
    woken = decide(seen(0, at=140.0, traffic=None, woken=True), IDLE, memory)
    assert woken.target == 1
    assert "a gateway has asked" in woken.reason


@pytest.mark.parametrize(
    "busy",
    [
        {"traffic": GatewayTraffic(in_flight=1)}, {"traffic": GatewayTraffic(queued=1)},
        {"traffic": GatewayTraffic(held=1)},
        {"traffic": GatewayTraffic(arrivals=0.01)}, {"traffic": None}, {"load": load(1, 0.0)},
        {"load": load(2, 0.0, running=1)}, {"load": load(2, 0.0, waiting=1)},
    ],
)  # fmt: skip
def test_an_engine_that_may_have_a_request_is_never_the_last_to_stop(busy: dict[str, object]) -> None:
    memory, asked = AutoscalerMemory(), 2
    for number in range(100):
        made = decide(seen(asked, at=10.0 * number, **busy), IDLE, memory)
        memory, asked = made.memory, made.target

    assert asked >= 1


def test_what_saturated_engines_do_not_do_is_learned() -> None:
    memory = AutoscalerMemory()
    for number in range(60):
        full = load(4, 20.0, saturated=4, saturated_prompt_rate=0.5 * 4 * SPEED, waiting=9)
        memory = decide(seen(4, 20.0, at=10.0 * number, load=full), RANGE, memory).memory

    assert memory.efficiency == pytest.approx(0.5, abs=0.15)


def test_a_clock_that_is_set_moves_nothing() -> None:
    fleet = Fleet(RANGE, engines=4)
    calm = Fleet(RANGE, engines=4)
    fleet.clock = lambda at: at + (1e9 if at > 2000 else 0) - (2e9 if at > 3000 else 0)
    load_of_both = [20.0] * 400

    assert set(fleet.run(load_of_both)[150:]) == set(calm.run(load_of_both)[150:])


def test_a_clock_that_is_set_forward_ends_no_delay() -> None:
    fleet = Fleet(msgspec.structs.replace(RANGE, history=60.0), engines=8)
    fleet.run([30.0] * 60)
    before, now = fleet.asked, fleet.at

    fleet.clock = lambda at: at + 1e9 * (at > now)
    engines = fleet.run([2.0] * 120)

    assert engines[:20] == [before] * 20
    assert engines[-1] < before / 2


def test_a_decision_is_made_again_to_the_byte_from_what_was_written_of_it() -> None:
    fleet = Fleet(RANGE)
    fleet.run([30.0, 2.0, 80.0] * 20)
    now = msgspec.json.encode(seen(3, 17.3, at=611.7))

    for _ in range(2):
        memory = msgspec.json.decode(msgspec.json.encode(fleet.memory), type=AutoscalerMemory)
        again = decide(msgspec.json.decode(now, type=type(seen(1))), RANGE, memory)
        assert msgspec.json.encode(again) == msgspec.json.encode(
            decide(seen(3, 17.3, at=611.7), RANGE, fleet.memory)
        )


def past(elapsed: float, *met: float) -> AutoscalerMemory:
    """Return the memory of 100 requests, each measured in time with 1, 2, .. engines."""
    return AutoscalerMemory(elapsed=elapsed, came=100.0, met=met)


def test_one_burst_does_not_prove_that_fewer_engines_do() -> None:
    three = msgspec.structs.replace(RANGE, min_replicas=1, max_replicas=3)

    after_minutes = smallest_sufficient(past(300.0, 50.0, 98.9, 100.0), three, growing=False)
    after_hours = smallest_sufficient(past(7200.0, 50.0, 98.9, 100.0), three, growing=False)

    assert (after_minutes, after_hours) == (3, 2)


def test_one_burst_does_not_prove_that_more_engines_are_needed() -> None:
    three = msgspec.structs.replace(RANGE, min_replicas=1, max_replicas=3)

    after_minutes = smallest_sufficient(past(300.0, 40.0, 94.3, 100.0), three, growing=True)
    after_hours = smallest_sufficient(past(7200.0, 40.0, 94.3, 100.0), three, growing=True)

    assert (after_minutes, after_hours) == (2, 3)


def test_generation_does_not_count_as_prompts_that_steps_wait_for() -> None:
    costs = EngineCosts(prompt_token=1e-4, output_token=1e-3, step=0.02, capacity=1.0)
    tight = msgspec.structs.replace(RANGE, tpot_target=0.04)

    assert costs.usable(tight, 1.0, 1.0) == 0.5
    assert costs.usable(tight, 1.0, 0.5) == 1.0
