"""Choosing among candidates: what counts first, what breaks a tie, and what the words say of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_api.choices import Strategy
from mamba_planner import Constraints, StateDtype, Workload
from mamba_planner.candidates import STATE_DTYPES, Candidate, SlabGeometry
from mamba_planner.choice import TIE, choose, reject, why
from mamba_planner.strategy import MOST_ROBUST_FIRST as STRATEGIES

TRAFFIC = Workload(1000, 100, 0.5, declared=True)
FREE = Constraints()


def candidate(
    strategy: Strategy = "ExtraBuffer", dtype: StateDtype = "float32", *, score: float = 1.0,
    running: int = 10, misfit: str = "", saved: float = 0.4, spare: int = 1,
) -> Candidate:  # fmt: skip
    return Candidate(
        strategy, dtype, SlabGeometry(100, 1, 16, 16, 112), slots_each=2, slabs=50, running=running,
        planned=running, fits=running + spare, cached_paths=5, max_model_len=4096, workload=TRAFFIC,
        saved=saved, score=score, misfit=misfit,
    )  # fmt: skip


def chosen(*candidates: Candidate, wanted: int | None = None, hint: str | None = None) -> tuple[str, str]:
    """Return the chosen candidate, and check that the order of candidates does not matter."""
    found = {
        (each.strategy, each.state_dtype)
        for order in permutations(candidates)
        for each in [choose(list(order), FREE, replace(TRAFFIC, concurrency=wanted), hint)]
    }
    assert len(found) == 1, found
    return found.pop()


def reasons(
    best: Candidate, *others: Candidate, fixed: Constraints = FREE, wanted: int | None = None, hint: str = ""
) -> list[str]:
    traffic = replace(TRAFFIC, concurrency=wanted)
    return [each.reason for each in reject([best, *others], best, fixed, traffic, hint or None)]


# --- what decides --------------------------------------------------------------------------------------


def test_the_higher_score_wins() -> None:
    slow, fast = candidate("ExtraBuffer", score=1.0), candidate("NoBuffer", score=1.1)
    assert chosen(slow, fast) == ("NoBuffer", "float32")


def test_within_a_tie_the_more_robust_wins_and_beyond_it_the_faster() -> None:
    fast = candidate("NoBuffer", score=1.0)
    for robust in ("ExtraBuffer", "ExtraBufferLazy"):
        assert chosen(fast, candidate(robust, score=1 - TIE + 1e-9))[0] == robust
        assert chosen(fast, candidate(robust, score=1 - TIE - 1e-6))[0] == "NoBuffer"


def test_who_just_fits_wins_no_tie() -> None:
    fast, tight = candidate("NoBuffer", score=1.0), candidate("ExtraBuffer", score=1 - TIE / 2, spare=0)
    assert chosen(fast, tight)[0] == "NoBuffer"
    assert chosen(replace(fast, score=1 - TIE / 2), replace(tight, score=1.0))[0] == "ExtraBuffer"
    assert "longer sequence" in reasons(fast, tight)[0]


def test_without_prefix_caching_the_fewest_moving_parts_are_the_most_robust() -> None:
    pool = [candidate(strategy) for strategy in STRATEGIES]
    assert choose(pool, Constraints(prefix_caching=False), TRAFFIC, None).strategy == "NoBuffer"
    assert choose(pool, Constraints(), TRAFFIC, None).strategy == "ExtraBuffer"


def test_exact_states_win_over_any_speed() -> None:
    assert chosen(candidate(score=1.0), candidate(dtype="float16", score=9.0)) == ("ExtraBuffer", "float32")


def test_the_declared_concurrency_comes_before_the_score() -> None:
    fast, wide = candidate(score=9.0, running=3), candidate("NoBuffer", score=1.0, running=8)
    assert chosen(fast, wide, wanted=8)[0] == "NoBuffer"
    assert chosen(fast, wide, wanted=9)[0] == "ExtraBuffer"
    assert chosen(fast, wide)[0] == "ExtraBuffer"


def test_16_bit_states_are_taken_where_exact_ones_miss_the_declared_concurrency_or_do_not_fit() -> None:
    half = candidate("NoBuffer", "float16", running=20)
    assert chosen(candidate(running=10), half, wanted=15) == ("NoBuffer", "float16")
    assert chosen(candidate(misfit="too large", running=0), half) == ("NoBuffer", "float16")


def test_the_checkpoints_wish_for_exact_states_beats_the_concurrency_but_not_the_memory() -> None:
    half = candidate("NoBuffer", "float16", running=20)
    assert chosen(candidate(running=10), half, wanted=15, hint="float32")[1] == "float32"
    assert chosen(candidate(misfit="too large", running=0), half, hint="float32")[1] == "float16"


def test_where_nothing_meets_the_concurrency_16_bit_states_may_come_nearer_to_it() -> None:
    exact, half = candidate(running=5, score=1.0), candidate(dtype="float16", running=9, score=5.0)
    assert chosen(exact, half, wanted=50) == ("ExtraBuffer", "float16")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(STRATEGIES), st.sampled_from(STATE_DTYPES), st.floats(0.1, 10), st.integers(0, 40)
        ),
        min_size=1, max_size=6, unique_by=lambda each: each[:2],
    ),
    st.none() | st.integers(1, 40), st.sampled_from([None, "float32"]),
)  # fmt: skip
def test_the_choice_always_fits_and_meets_the_concurrency_if_any_allowed_choice_does(
    rows: list, wanted: int | None, hint: str | None
) -> None:
    pool = [
        candidate(strategy, dtype, score=score, running=running, misfit="" if running else "too large")
        for strategy, dtype, score, running in rows
    ]
    if not any(each.running for each in pool):
        return
    best = choose(pool, FREE, replace(TRAFFIC, concurrency=wanted), hint)
    assert not best.misfit
    exact = [each for each in pool if each.running and each.state_dtype == "float32"]
    allowed = exact if hint == "float32" and exact else pool
    if any(each.running >= (wanted or 1) for each in allowed):
        assert best.running >= (wanted or 1)


# --- in words ------------------------------------------------------------------------------------------


def test_the_reason_says_whether_the_declared_concurrency_is_met() -> None:
    best, other = candidate(running=10), candidate("NoBuffer", running=40)

    def said(wanted: int | None, *pool: Candidate) -> str:
        return why(best, list(pool), FREE, replace(TRAFFIC, concurrency=wanted))

    assert "meets the declared concurrency of 10" in said(10, best, other)
    assert "falls short of the declared concurrency of 11" in said(11, best, other)
    assert "as does every other choice" not in said(11, best, other)
    assert "falls short of the declared concurrency of 41, as does every other choice" in said(
        41, best, other
    )
    assert "concurrency" not in said(None, best, other)


def test_the_reason_counts_slots_in_the_singular_too() -> None:
    one = replace(candidate("NoBuffer"), slots_each=1)
    assert why(one, [one], FREE, TRAFFIC).count("1 slot each") == 1
    assert "2 slots each" in why(candidate(), [candidate()], FREE, TRAFFIC)


def test_the_reason_tells_of_a_tie_only_where_there_was_one() -> None:
    best = candidate(score=1.0)
    assert "more robust" in why(best, [best, candidate("NoBuffer", score=1.01)], FREE, TRAFFIC)
    assert "more robust" not in why(best, [best, candidate("NoBuffer", score=0.5)], FREE, TRAFFIC)
    half = candidate("NoBuffer", "float16", score=9.0)
    assert "more robust" not in why(best, [best, half], FREE, TRAFFIC)


def test_a_misfit_keeps_its_own_words() -> None:
    assert reasons(candidate(), candidate("NoBuffer", misfit="needs 9Gi, has 8Gi")) == ["needs 9Gi, has 8Gi"]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (candidate("NoBuffer", score=0.5), ": -50% tokens per second by a byte-count model, not measured"),
        (candidate("NoBuffer", score=1.01), "decoding leaves checkpoints only in free slots"),
        (candidate("ExtraBufferLazy", score=0.995), "checkpoints are skipped when no slot can be borrowed"),
        (candidate(dtype="float16", score=1.5), "+50% tokens per second by a byte-count model, not measured"),
        (candidate(dtype="float16", score=1.5), "set stateDtype float16 to choose it"),
        (candidate("NoBuffer", saved=0.05, score=0.5), "5% of prompt tokens resumed against 40%"),
        (candidate("NoBuffer", running=33, score=0.5), "would run 33 at once against 10"),
    ],
)  # fmt: skip
def test_a_rejected_choice_says_what_it_would_have_given(other: Candidate, says: str) -> None:
    (reason,) = reasons(candidate(), other)
    assert says in reason


def test_the_first_thing_that_ruled_a_choice_out_is_what_is_said() -> None:
    narrow = candidate("NoBuffer", running=3, score=9.0)
    assert "below the declared concurrency of 8" in reasons(candidate(), narrow, wanted=8)[0]
    half = candidate(dtype="float16", score=9.0)
    assert "float32" in reasons(candidate(), half, hint="float32")[0]
    fixed = Constraints(strategy="ExtraBuffer", state_dtype="float32")
    assert "asks for strategy ExtraBuffer" in reasons(candidate(), narrow, fixed=fixed, wanted=8)[0]
    assert "would run 10" in reasons(candidate(), half, fixed=fixed)[0]


def test_without_prefix_caching_a_tie_is_not_lost_for_want_of_checkpoints() -> None:
    off = Constraints(prefix_caching=False)
    best = candidate("NoBuffer")
    assert "tracking slots" in reasons(best, candidate("ExtraBuffer"), fixed=off)[0]


def test_every_pair_of_choices_has_words() -> None:
    pool = [
        candidate(*each, score=1 + index / 50) for index, each in enumerate(product(STRATEGIES, STATE_DTYPES))
    ]
    for best in pool:
        told = reasons(best, *(each for each in pool if each is not best))
        assert len(told) == 5
        assert all(reason.startswith("would run 10 at once") for reason in told)


def test_a_choice_that_does_no_work_at_all_is_compared_without_dividing_by_zero() -> None:
    assert len(reasons(candidate(score=0.0), candidate("NoBuffer", score=0.0))) == 1
