"""Life of a request: limits to the token, seeds, siblings, and every way to end at every moment."""

from __future__ import annotations

import random

import pytest

from depth_coded import oracle
from engine_trial import EngineTrial, TrialSetup
from mamba_server.engine.sequences.sequence import Phase
from mamba_server.wire import AbortRequest, AddRequest, SamplingParams, SequenceDelta, StopSequence


def trial(**changes: object) -> EngineTrial:
    return EngineTrial(TrialSetup(**{"slabs": 400, **changes}), random.Random(0))


def ask(name: str, prompt: list[int], outputs: int, *, n: int = 1, **params: object) -> AddRequest:
    wanted = SamplingParams(max_tokens=outputs, **{"ignore_eos": True, **params})
    return AddRequest(name, prompt, wanted, n=n)


def run(engine: EngineTrial, steps: int = 3000) -> list[SequenceDelta]:
    """Run until the engine is idle and return all deltas."""
    out: list[SequenceDelta] = []
    for _ in range(steps):
        if engine.core.idle:
            return out
        out.extend(engine.core.step())
        engine.check()
    raise AssertionError("the engine hangs")


# --- admission -----------------------------------------------------------------------------------------


def test_a_request_of_exactly_the_models_length_runs_and_one_token_more_does_not() -> None:
    engine = trial(slabs=600)
    assert engine.core.add(ask("fits", [1] * 1000, 24)) is None
    rejected = engine.core.add(ask("over", [1] * 1000, 25))
    assert rejected is not None
    assert all(told in rejected.message for told in ("1000", "25", "1024", "max_tokens"))
    assert run(engine)[-1].finish_reason == "length"


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page_size", [1, 16, 48])
def test_a_prompt_alone_may_fill_the_models_length_and_gets_no_token(page_size: int, overlap: bool) -> None:
    engine = trial(slabs=1600, page_size=page_size, overlap=overlap)
    assert engine.core.add(ask("over", [1] * 1025, 0)) is not None
    assert engine.core.add(ask("fits", [1 + at % 9 for at in range(1024)], 0, n=2)) is None
    told = run(engine)
    assert [(delta.token_ids, delta.finish_reason) for delta in told] == [([], "length")] * 2
    assert engine.core.generated_tokens == 0
    assert not engine.core.cache.allocations


def test_prompts_alone_leave_the_expected_length_of_answers_as_it_was() -> None:
    engine = trial()
    expected = engine.core.scheduler.answers.expected(0, 1000)
    for number in range(200):
        assert engine.core.add(ask(f"r{number}", [1, 2, 3], 0)) is None
    assert len(run(engine)) == 200
    assert engine.core.scheduler.answers.expected(0, 1000) == expected


def test_a_prompt_without_tokens_is_refused_and_holds_nobody_up() -> None:
    engine = trial()
    rejected = engine.core.add(ask("empty", [], 4))
    assert rejected is not None
    assert (rejected.status, rejected.code) == (400, "empty_prompt")
    assert "at least one" in rejected.message
    engine.add([3, 4], 2)
    assert run(engine)[-1].finish_reason == "length"


def test_a_sequence_that_fills_the_arena_runs_and_one_page_more_does_not() -> None:
    # Seven slabs: one live slot, two tracking slots, four slabs of one page.
    engine = trial(slabs=8, pages_per_slab=1, page_size=4, strategy="ExtraBuffer")
    rejected = engine.core.add(ask("over", [1] * 10, 7))
    assert rejected is not None
    assert (rejected.status, rejected.code) == (400, "context_length_exceeded")
    engine.add([1] * 10, 6)
    engine.close()
    assert engine.ended == {("r0", 0): "length"}


def test_the_last_place_in_the_queue_is_taken_and_the_next_request_is_told_to_retry() -> None:
    engine = trial()
    engine.core._max_waiting = 3
    assert engine.core.add(ask("a", [1], 1, n=2)) is None
    assert engine.core.add(ask("b", [2], 1)) is None
    rejected = engine.core.add(ask("c", [3], 1))
    assert rejected is not None
    assert (rejected.kind, rejected.code, rejected.retry_after) == ("rate_limit_error", "overloaded", 1.0)
    assert "3 sequences" in rejected.message
    run(engine)
    assert engine.core.add(ask("c", [3], 1)) is None


def test_a_refused_request_leaves_nothing_and_its_id_is_free() -> None:
    engine = trial()
    assert engine.core.add(ask("r", [1] * 2000, 5)) is not None
    assert engine.core.idle
    assert not engine.core.sequences
    assert engine.core.add(ask("r", [1, 2], 5)) is None
    assert len(run(engine)) == 5


def test_an_id_may_be_used_again_as_soon_as_all_its_sequences_have_ended() -> None:
    engine = trial(overlap=True)
    engine.core.add(ask("r", [1, 2], 50, n=2))
    for _ in range(4):
        engine.core.step()
    engine.core.stop(StopSequence("r", 0, 1))
    assert engine.core.add(ask("r", [9], 1)) is not None
    engine.core.abort(AbortRequest("r"))
    assert engine.core.add(ask("r", [9, 8], 3)) is None
    assert [delta.token_ids[0] for delta in run(engine)] == oracle([9, 8], 3)


def test_the_prompt_given_in_may_change_afterwards() -> None:
    engine = trial()
    prompt = [5, 6, 7]
    engine.core.add(ask("r", prompt, 2))
    prompt.clear()
    assert [delta.token_ids[0] for delta in run(engine)] == oracle([5, 6, 7], 2)


# --- seeds and siblings --------------------------------------------------------------------------------


def seeds(engine: EngineTrial, name: str) -> list[int]:
    return [each.seed for each in engine.core.sequences[name]]


def test_siblings_of_a_seeded_request_have_the_seeds_that_follow() -> None:
    engine = trial()
    engine.core.add(ask("r", [1], 1, n=3, seed=40))
    assert seeds(engine, "r") == [40, 41, 42]


def test_requests_without_a_seed_differ_and_a_restart_with_the_same_traffic_repeats_them() -> None:
    drawn = []
    for _ in range(2):
        engine = trial()
        for name in "abc":
            engine.core.add(ask(name, [1], 1, n=4))
        drawn.append([seed for name in "abc" for seed in seeds(engine, name)])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 12


def test_the_engines_own_seed_changes_every_unseeded_request_and_no_seeded_one() -> None:
    found = []
    for own in (0, 1):
        engine = trial()
        engine.core.seed = own
        engine.core.add(ask("free", [1], 1))
        engine.core.add(ask("fixed", [1], 1, seed=7))
        found.append((seeds(engine, "free"), seeds(engine, "fixed")))
    assert found[0][0] != found[1][0]
    assert found[0][1] == found[1][1] == [7]


def test_siblings_all_answer_and_only_the_first_computes_the_prompt() -> None:
    engine = trial(rows=4)
    engine.core.add(ask("r", list(range(1, 42)), 3, n=4))
    deltas = run(engine)
    assert {delta.index for delta in deltas} == {0, 1, 2, 3}
    first = {delta.index: delta.cached_tokens for delta in reversed(deltas)}
    assert first == {0: 0, 1: 40, 2: 40, 3: 40}


# --- deltas --------------------------------------------------------------------------------------------


def test_cached_tokens_are_told_once_even_after_a_preemption() -> None:
    engine = trial()
    prompt = list(range(1, 42))
    engine.core.add(ask("warm", prompt, 1))
    run(engine)
    engine.core.add(ask("r", prompt, 12))
    told: list[int] = []
    for _ in range(200):
        told += [delta.cached_tokens for delta in engine.core.step()]
        if len(told) == 4:
            engine.preempt()
        if engine.core.idle:
            break
    assert told == [40] + [0] * 11


@pytest.mark.parametrize("min_tokens", [0, 5])
def test_a_stop_token_ends_no_sequence_before_its_minimum_and_is_named_when_it_does(min_tokens: int) -> None:
    prompt = [3, 1, 4]
    alone = oracle(prompt, 30)
    # A token that comes early and comes again after the minimum.
    engine = trial()
    stop = alone[2]
    params = {"stop_token_ids": (stop, alone[6]), "min_tokens": min_tokens}
    engine.core.add(ask("r", prompt, 30, **params))
    deltas = run(engine)
    ends_at = next(
        place for place, token in enumerate(alone) if token in (stop, alone[6]) and place + 1 >= min_tokens
    )
    assert [delta.token_ids[0] for delta in deltas] == alone[: ends_at + 1]
    assert (deltas[-1].finish_reason, deltas[-1].stop_token_id) == ("stop", alone[ends_at])
    assert all(delta.stop_token_id is None for delta in deltas[:-1])


def test_a_stop_token_at_the_very_end_is_a_stop_and_not_the_length() -> None:
    alone = oracle([3, 1, 4], 4)
    engine = trial()
    engine.core.add(ask("r", [3, 1, 4], 4, stop_token_ids=(alone[3],)))
    assert run(engine)[-1].finish_reason == "stop"


def test_the_models_end_token_counts_only_for_those_who_do_not_ignore_it() -> None:
    prompt = next(p for p in ([at, at + 1] for at in range(1, 90)) if 0 in oracle(p, 40)[:39])
    place = oracle(prompt, 40).index(0)
    engine = trial()
    engine.core.add(ask("ends", prompt, 40, ignore_eos=False))
    engine.core.add(ask("goes on", prompt, 40))
    deltas = run(engine)
    assert sum(delta.request_id == "ends" for delta in deltas) == place + 1
    assert sum(delta.request_id == "goes on" for delta in deltas) == 40


# --- ends at every moment ------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("moment", range(14))
@pytest.mark.parametrize("end", ["abort", "stop string"])
def test_an_end_at_any_moment_gives_everything_back_and_hurts_nobody(
    moment: int, end: str, overlap: bool
) -> None:
    """Waiting, in the middle of the prompt, decoding, preempted with a token on its way, finished."""
    engine = trial(slabs=60, rows=2, step_tokens=16, overlap=overlap)
    engine.add(list(range(1, 50)), 6)
    engine.add(list(range(1, 30)), 6, n=2)
    for number in range(moment):
        if number == 6:
            engine.preempt()
        engine.step()
    if end == "abort":
        engine.core.abort(AbortRequest("r1"))
    else:
        for index in range(2):
            engine.core.stop(StopSequence("r1", index, 1))
    for index in range(2):
        engine.ended.setdefault(("r1", index), end)
    engine.close()
    assert engine.ended["r0", 0] == "length"


def test_an_end_that_comes_twice_counts_once() -> None:
    engine = trial()
    engine.core.add(ask("r", [1, 2], 50, n=2))
    for _ in range(4):
        engine.core.step()
    engine.core.stop(StopSequence("r", 1, 1))
    engine.core.stop(StopSequence("r", 1, 1))
    engine.core.abort(AbortRequest("r"))
    engine.core.abort(AbortRequest("r"))
    run(engine)
    assert engine.core.finished == {"stop": 1, "abort": 1}


@pytest.mark.parametrize("keep", [0, 1, 3, 10_000])
def test_after_a_stop_string_the_kept_tokens_alone_may_be_resumed(keep: int) -> None:
    engine = trial(strategy="ExtraBuffer")
    prompt = list(range(1, 31))
    engine.add(prompt, 60)
    for _ in range(40):
        engine.step()
    given = len(engine.got["r0", 0])
    engine.core.stop(StopSequence("r0", 0, keep))
    engine.ended["r0", 0] = "stop string"
    while not engine.core.idle:
        engine.step()
    deepest = max(node.depth for node in engine.cache.tree.walk())
    # One more token may have been on its way when the stop was seen.
    assert deepest <= len(prompt) + min(keep, given + 1)
    engine.add([*prompt, *oracle(prompt, 60)[: min(keep, given)], 5], 2)
    (second,) = engine.core.sequences["r1"]
    engine.close()
    # The checkpoints of the answer's first tokens have been written over; what lies behind the stop is not
    # resumed, and an answer that is kept whole is, to its last page.
    whole = (len(prompt) + given) // 4 * 4
    assert second.cached_tokens == (whole if keep > given else 28)
    assert whole > 60


def test_a_leader_that_is_stopped_in_its_prompt_lets_its_siblings_go_on() -> None:
    engine = trial(rows=4, step_tokens=16)
    engine.add(list(range(1, 50)), 4, n=3)
    engine.step()
    assert engine.core.sequences["r0"][0].phase is Phase.PREFILL
    engine.core.stop(StopSequence("r0", 0, 0))
    engine.ended["r0", 0] = "stop string"
    engine.close()
    assert [engine.ended["r0", index] for index in (1, 2)] == ["length", "length"]


def test_a_failed_step_spares_those_that_were_not_in_it() -> None:
    engine = trial(rows=1, overlap=False)
    engine.core.add(ask("bad", [1, 2], 9))
    engine.core.add(ask("good", [3, 4], 2))
    engine.runner.fail_steps[2] = "half"
    deltas = run(engine)
    bad = [delta for delta in deltas if delta.request_id == "bad"]
    assert [(delta.token_ids, delta.finish_reason) for delta in bad[1:]] == [([], "error")]
    assert [d.token_ids[0] for d in deltas if d.request_id == "good"] == oracle([3, 4], 2)


def test_every_second_step_failing_leaks_nothing_and_every_request_has_an_end() -> None:
    engine = trial(slabs=60)
    for number in range(2, 400, 2):
        engine.runner.fail_steps[number] = ("before", "half", "after")[number % 3]
    for start in range(1, 60, 6):
        engine.add(list(range(start, start + 25)), 5)
        engine.step()
    engine.close()
    assert len(engine.ended) == 10
    assert engine.core.failed_steps > 4
