"""The engine charges its requests for every nanosecond once, whatever becomes of them."""

import itertools
import random

import pytest

from engine_trial import EngineTrial, TrialSetup
from mamba_server.engine.sequences.schedule import PrefillPiece, Schedule
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.stepping.cost_account import step_shares
from mamba_server.engine.stepping.prefill_speed import PrefillSpeed
from mamba_server.wire import AbortRequest, AddRequest, Cost, SamplingParams, SequenceDelta, StopSequence


class StepClock:
    """Clock of an engine: each look takes a millisecond."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def trial(**changes: object) -> EngineTrial:
    engine = EngineTrial(TrialSetup(**{"slabs": 40, **changes}), random.Random(0))
    engine.core.clock = StepClock()
    return engine


def run(engine: EngineTrial, steps: int = 10_000) -> list[SequenceDelta]:
    deltas: list[SequenceDelta] = []
    for _ in range(steps):
        if engine.core.idle:
            break
        deltas += engine.core.step()
    return deltas


def request(name: str, prompt: list[int], tokens: int, **fields: object) -> AddRequest:
    return AddRequest(name, prompt, SamplingParams(max_tokens=tokens, ignore_eos=True), **fields)


@pytest.mark.parametrize("overlap", [True, False])
def test_accounts_add_up_to_the_engines_counters_through_aborts_stops_faults_and_preemptions(
    overlap: bool,
) -> None:
    rng = random.Random(3)
    engine = trial(overlap=overlap, slabs=12, faults=0.05, refusals=0.2)
    totals: dict[int, Cost] = {}
    for number in range(40):
        prompt = [rng.randint(1, 90) for _ in range(rng.randint(1, 60))]
        engine.core.add(
            request(f"r{number}", prompt, rng.randint(1, 20), n=1 + number % 2, account=number % 5)
        )
        run(engine, rng.randint(1, 12))
        if number % 4 == 1:
            engine.core.abort(AbortRequest(f"r{number}"))
        if number % 4 == 2:
            engine.core.stop(StopSequence(f"r{number}", 0, 1))
        for account, cost in engine.core.costs.take():
            totals[account] = totals.get(account, Cost()) + cost
    engine.calm = True
    run(engine)
    for account, cost in engine.core.costs.take():
        totals[account] = totals.get(account, Cost()) + cost
    assert engine.core.scheduler.counters.preemptions
    assert sum(totals.values(), Cost()) == engine.core.costs.total
    assert set(totals) == {0, 1, 2, 3, 4}
    assert all(cost.device > 0 and cost.slots > 0 and cost.pages > 0 for cost in totals.values())
    clock = engine.core.clock
    assert sum(cost.device for cost in totals.values()) <= (clock.now - 100.0) * 1e9


def test_two_requests_of_one_step_are_not_charged_more_than_the_step_took() -> None:
    together, alone = trial(), trial()
    for engine, count in ((together, 2), (alone, 1)):
        for number in range(count):
            engine.core.add(request(f"r{number}", [number + 1, 7, 8], 30, reports_cost=True, account=number))
    both = {delta.request_id: delta.cost for delta in run(together)}
    one = {delta.request_id: delta.cost for delta in run(alone)}
    assert both["r0"].device == pytest.approx(one["r0"].device / 2, rel=0.1)
    assert both["r0"].slots == pytest.approx(one["r0"].slots, rel=0.2)


def test_only_a_request_that_wants_its_cost_is_told_and_the_cost_only_grows() -> None:
    engine = trial()
    engine.core.add(request("told", [1, 2, 3], 12, reports_cost=True))
    engine.core.add(request("other", [4, 5, 6], 12))
    deltas = run(engine)
    costs = [delta.cost for delta in deltas if delta.request_id == "told"]
    assert len(costs) == 12
    assert all(later.device > earlier.device for earlier, later in itertools.pairwise(costs))
    assert all(later.pages >= earlier.pages for earlier, later in itertools.pairwise(costs))
    assert [delta.cost for delta in deltas if delta.request_id == "other"] == [None] * 12


def test_slots_and_pages_are_charged_for_the_time_for_which_they_were_held() -> None:
    engine = trial(overlap=False, strategy="NoBuffer")
    engine.core.add(request("r", [1, 2, 3], 40))
    clock, began = engine.core.clock, engine.core.clock.now
    run(engine)
    last = engine.core.costs.total
    elapsed = (clock.now - began) * 1e9
    # One slot all the time; the pages of 4 tokens grow from 1 to 11, so 6 of them in the mean.
    assert last.slots == pytest.approx(elapsed, rel=0.1)
    assert last.pages == pytest.approx(6 * elapsed, rel=0.1)


def test_a_prompt_that_resumes_reports_the_time_that_it_saved_and_a_new_one_reports_none() -> None:
    engine = trial()
    prompt = [1 + number % 80 for number in range(64)]
    engine.core.add(request("first", prompt, 4, reports_cost=True))
    first = run(engine)[-1].cost
    engine.core.add(request("again", [*prompt, 5], 4, reports_cost=True))
    again = run(engine)
    resumed = again[0].cached_tokens
    assert first.saved == 0
    assert resumed
    assert again[-1].cost.saved == pytest.approx(resumed / engine.core.speed.tokens_per_second * 1e9, rel=0.5)


def test_the_parts_of_a_step_are_the_whole_step_for_any_number_of_rows() -> None:
    for rows in range(1, 60):
        decodes = [
            Sequence("r", 0, list(range(7 + 3 * row)), SamplingParams(max_tokens=9), order=0)
            for row in range(rows)
        ]
        time = 1_000_003 * rows + 7
        assert sum(step_shares(Schedule(1, None, None, decodes, []), time, PrefillSpeed(1e-3))) == time


def test_a_step_of_both_kinds_gives_decodes_their_usual_time_and_prompts_the_rest() -> None:
    def sequence(tokens: int) -> Sequence:
        return Sequence("r", 0, list(range(tokens)), SamplingParams(max_tokens=9), order=0)

    decodes = [sequence(10), sequence(10), sequence(10)]
    pieces = [
        PrefillPiece(sequence(500), 0, stop, -1, 1, [], False)  # its state is of no matter here
        for stop in (100, 300)
    ]
    schedule = Schedule(1, None, None, decodes, pieces)
    speed = PrefillSpeed(0.0)
    assert sum(step_shares(schedule, 1_000_003, speed)) == 1_000_003
    speed.decode_seconds = 0.0003
    shares = step_shares(schedule, 1_000_003, speed)
    assert sum(shares) == 1_000_003
    assert shares[:3] == [100_000] * 3
    assert shares[4] == pytest.approx(3 * shares[3], abs=4)
    speed.decode_seconds = 5.0  # out of date: prompts keep a fifth
    assert sum(step_shares(schedule, 1_000_000, speed)[3:]) == 200_000
