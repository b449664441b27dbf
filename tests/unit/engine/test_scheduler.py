"""Decisions of the scheduler: decodes first, pieces on the grid, admission, preemption, leaving."""

import random

import numpy as np
import pytest

from engine_trial import EngineTrial, TrialSetup
from mamba_server.engine.scheduling.answer_lengths import MAX_ANSWERS
from mamba_server.engine.sequences.sequence import Phase, Sequence
from operations import operations


def trial(**changes: object) -> EngineTrial:
    return EngineTrial(TrialSetup(**{"slabs": 40, "overlap": False, **changes}), random.Random(0))


def sequences(engine: EngineTrial) -> dict[str, Sequence]:
    return {name: group[0] for name, group in engine.core.sequences.items()}


def plan(engine: EngineTrial) -> tuple[list[str], list[tuple[str, int, int, bool]]]:
    """Return the next step as (decodes, pieces); it is not run."""
    schedule = engine.core.scheduler.schedule(engine.core.step_number + 1)
    pieces = [(p.sequence.request_id, p.start, p.stop, p.final) for p in schedule.pieces]
    return [each.request_id for each in schedule.decodes], pieces


def test_decodes_come_first_and_prefill_shares_the_step() -> None:
    engine = trial()
    engine.add([1, 2, 3], 9)
    engine.step()
    engine.add(list(range(1, 30)), 9)
    assert plan(engine) == (["r0"], [("r1", 0, 29, True)])


def test_a_long_prompt_goes_in_pieces_that_end_on_the_chunk_grid() -> None:
    engine = trial(step_tokens=40, chunk=16)
    engine.add(list(range(1, 80)), 2)
    stops = []
    for _ in range(3):
        stops += [stop for _, _, stop, _ in plan(engine)[1]]
    assert stops == [32, 64, 79]


def test_decodes_are_paid_from_the_budget_of_the_step() -> None:
    engine = trial(step_tokens=32, chunk=16, rows=6)
    for start in (40, 50):
        engine.add([start, 1], 30)
    engine.step()
    engine.add(list(range(1, 60)), 2)
    # Thirty of the thirty-two tokens are left, and a piece ends on the chunk grid.
    assert plan(engine) == (["r0", "r1"], [("r2", 0, 16, False)])


def test_running_prompts_share_the_budget_before_new_ones_start() -> None:
    engine = trial(step_tokens=32, chunk=16)
    engine.add(list(range(1, 60)), 2)
    engine.add(list(range(1, 9)), 2)
    assert plan(engine)[1] == [("r0", 0, 32, False)]
    assert plan(engine)[1] == [("r0", 32, 59, True)]


def test_no_more_run_than_there_are_rows() -> None:
    engine = trial(rows=3)
    for _ in range(5):
        engine.add([1, 2, 3], 30)
    engine.step()
    assert engine.core.scheduler.running == 3
    assert len(engine.core.scheduler.waiting) == 2
    engine.close()


@pytest.mark.parametrize("overlap", [True, False])
def test_who_takes_its_last_step_still_counts_among_those_that_run(overlap: bool) -> None:
    engine = trial(rows=2, overlap=overlap)
    for _ in range(6):
        engine.add([1, 2, 3], 3)
    while not engine.core.idle:
        engine.step()
        assert engine.cache.capacity.admitted <= 2
    engine.close()


def test_siblings_wait_for_the_prefill_of_the_first_and_resume_from_it() -> None:
    engine = trial(rows=4)
    engine.add(list(range(1, 34)), 4, n=3)
    assert len(plan(engine)[1]) == 1
    engine = trial(rows=4)
    engine.add(list(range(1, 34)), 4, n=3)
    engine.step()
    engine.step()
    group = engine.core.sequences["r0"]
    assert [each.cached_tokens for each in group] == [0, 32, 32]
    engine.close()


def test_siblings_whose_leader_was_aborted_still_run() -> None:
    engine = trial(rows=4)
    engine.add(list(range(1, 34)), 4, n=2)
    leader, follower = engine.core.sequences["r0"]
    engine.core._finish(leader, "abort")
    engine.ended[leader.key] = "abort"
    engine.step()
    assert follower.phase is not Phase.WAITING
    engine.close()


def test_a_preempted_sequence_has_nothing_left_and_loses_no_token() -> None:
    engine = trial(overlap=True)
    engine.add(list(range(1, 20)), 12)
    for _ in range(4):
        engine.step()
    sequence = sequences(engine)["r0"]
    known = sequence.known_tokens
    engine.core.scheduler.preempt(sequence)
    assert (sequence.phase, sequence.allocation, sequence.row) == (Phase.WAITING, None, -1)
    assert sequence.known_tokens == known
    assert engine.core.scheduler.counters.preemptions == 1
    engine.close()


def test_a_preempted_sequence_waits_until_its_last_token_is_back() -> None:
    engine = trial(overlap=True)
    engine.add(list(range(1, 20)), 12)
    for _ in range(3):
        engine.step()
    sequence = sequences(engine)["r0"]
    engine.core.scheduler.preempt(sequence)
    assert sequence.in_flight == 1
    assert engine.core.scheduler.waiting.pick(lambda _: 0) is None
    engine.step()
    assert sequence.in_flight == 0
    engine.close()


def expect_answers(engine: EngineTrial, tokens: int) -> None:
    for _ in range(MAX_ANSWERS):
        engine.core.scheduler.answers.ended(tokens)


def test_the_last_to_come_is_preempted_when_answers_become_longer_than_was_foreseen() -> None:
    engine = trial(slabs=10, pages_per_slab=1, page_size=4, strategy="NoBuffer", rows=3)
    expect_answers(engine, 2)
    engine.add(list(range(1, 9)), 20)
    engine.add(list(range(40, 48)), 20)
    for _ in range(60):
        engine.step()
        if engine.core.scheduler.counters.preemptions:
            break
    preempted = sequences(engine)["r1"]
    assert preempted.preemptions == 1
    assert sequences(engine)["r0"].preemptions == 0
    engine.close()


def test_recomputed_tokens_are_counted_apart_from_cached_ones() -> None:
    engine = trial()
    engine.add(list(range(1, 20)), 12)
    for _ in range(6):
        engine.step()
    engine.preempt()
    engine.close()
    counters = engine.core.scheduler.counters
    assert counters.prompt_tokens == 19
    assert 0 < counters.recomputed_tokens < 24
    assert counters.cached_tokens == 0


def test_the_last_token_of_a_sequence_is_not_followed_by_another_launch() -> None:
    engine = trial(overlap=True)
    engine.add([1, 2, 3], 3)
    for _ in range(8):
        engine.step()
    assert engine.core.step_number == 3
    engine.close()


@pytest.mark.parametrize("overlap", [True, False])
def test_a_refused_extension_only_delays(overlap: bool) -> None:
    engine = trial(overlap=overlap)
    engine.add(list(range(1, 9)), 30)
    engine.arena.refuse = lambda _: True
    for _ in range(5):
        engine.step()
    assert not engine.got
    engine.arena.refuse = lambda _: False
    engine.close()
    assert engine.ended == {("r0", 0): "length"}


@pytest.mark.parametrize("strategy", ["ExtraBufferLazy", "ExtraBuffer"])
@pytest.mark.parametrize("outputs", [7, 30, 100, 300])
def test_the_next_turn_resumes_three_quarters_of_the_answer_however_short(
    strategy: str, outputs: int
) -> None:
    engine = trial(strategy=strategy, slabs=400, intervals=64, overlap=True)
    prompt = list(range(1, 31))
    engine.add(prompt, outputs)
    while not engine.core.idle:
        engine.step()
    engine.add([*prompt, *engine.got["r0", 0], 5], 2)
    engine.step()
    cached = engine.core.sequences["r1"][0].cached_tokens
    assert cached >= len(prompt) + 0.75 * outputs - engine.setup.page_size
    engine.close()


def test_without_buffer_an_answer_leaves_checkpoints_in_free_slots_and_holds_none() -> None:
    engine = trial(strategy="NoBuffer", slabs=400, intervals=1)
    engine.add(list(range(1, 31)), 40)
    engine.step()
    engine.step()
    made = engine.cache.counters.created
    for _ in range(35):
        engine.step()
        (allocation,) = engine.cache.allocations.values()
        assert not any(pending.decode for pending in allocation.pending)
        assert not allocation.spare + allocation.ready
    assert engine.cache.counters.created > made > 0
    engine.close()


def test_a_checkpoint_that_the_admission_before_evicted_is_not_resumed() -> None:
    engine = trial(strategy="NoBuffer", slabs=20, rows=4, cap=1, step_tokens=1000)
    short, stem = list(range(1, 18)), list(range(20, 53))
    for prompt in (short, stem):
        engine.add(prompt, 1)
        while not engine.core.idle:
            engine.step()
    # The deeper prefix goes first, and its long tail takes the place of the other's checkpoint.
    engine.add([*stem, *range(1, 50)] + [3] * 33, 2)
    engine.add(short, 2)
    engine.step()
    group = sequences(engine)
    assert (group["r2"].cached_tokens, group["r3"].cached_tokens) == (32, 0)
    engine.close()


def test_what_was_found_for_a_waiting_prompt_counts_until_it_is_evicted_or_the_step_is_over() -> None:
    engine = EngineTrial(TrialSetup(slabs=24, pages_per_slab=4, rows=1, chunk=16), random.Random(0))
    prompt = list(range(1, 30))
    engine.add(prompt, 2)
    while not engine.core.idle:
        engine.step()
    admission, cache = engine.core.scheduler.admission, engine.cache
    engine.add([*prompt, 77, 78], 2)
    (waiting,) = engine.core.scheduler.waiting

    def found() -> int:
        return admission._resumable(waiting)

    admission.begin(engine.core.step_number + 1)
    first = found()
    assert first >= 28
    assert 2 * operations(found) < operations(lambda: admission._match(waiting))
    deepest = cache.match(waiting.known_token_ids(), "", engine.core.step_number + 1).node
    assert deepest is not None
    cache.reclaimer.evict(deepest)
    assert found() < first
    cache.tree.insert(waiting.known_token_ids()[:28].copy(), np.zeros(7, np.int32), 23, 1, "")
    assert found() < first
    admission.begin(engine.core.step_number + 2)
    assert found() == 28
