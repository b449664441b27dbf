"""Another strategy has to win for long enough, is announced, and is taken if it wins still."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_api.v1alpha1 import ProposedStrategy
from mamba_operator.workload.change import HELD, MARGIN, NOTICE, WorkloadChange, workload_change
from mamba_planner.engine_plan import Alternative
from operator_objects import NOW

LAZY = Alternative("ExtraBufferLazy", "float32", 0.27)
TICK = timedelta(minutes=1)


class Passes:
    """Passes of an operator, one a minute, which remember what the status does."""

    def __init__(self) -> None:
        self.now = NOW
        self.proposed: ProposedStrategy | None = None
        self.taken = 0

    def go(
        self, best: Alternative | None, count: int = 1, *, measured: bool = True, may_take: bool = True
    ) -> WorkloadChange:
        made = WorkloadChange()
        for _ in range(count):
            made = workload_change(self.proposed, best, measured=measured, now=self.now, may_take=may_take)
            self.proposed = made.proposed
            self.taken += made.take
            self.now += TICK
        return made

    @property
    def announced(self) -> bool:
        return self.proposed is not None and self.proposed.takes_effect is not None


WAIT, NOTICED = HELD // TICK, NOTICE // TICK


def test_who_wins_for_long_enough_is_announced_and_then_taken() -> None:
    passes = Passes()

    first = passes.go(LAZY)
    assert first.proposed is not None
    assert (first.proposed.strategy, first.proposed.gain) == ("ExtraBufferLazy", "27%")
    assert first.requeue_after == HELD.total_seconds()
    passes.go(LAZY, WAIT - 1)
    assert not passes.announced

    said = passes.go(LAZY)
    assert passes.announced
    assert said.requeue_after == NOTICE.total_seconds()
    passes.go(LAZY, NOTICED - 1)
    assert passes.taken == 0

    assert passes.go(LAZY) == WorkloadChange(take=True)
    assert passes.proposed is None


def test_one_pass_at_the_time_it_asked_for_is_enough() -> None:
    now, proposed = NOW, None
    for _ in range(2):
        made = workload_change(proposed, LAZY, measured=True, now=now)
        assert made.requeue_after is not None
        now, proposed = now + timedelta(seconds=made.requeue_after), made.proposed

    assert workload_change(proposed, LAZY, measured=True, now=now).take


@pytest.mark.parametrize("best", [None, replace(LAZY, gain=MARGIN - 0.001)], ids=["none", "close"])
def test_who_does_not_win_by_enough_is_not_proposed_and_withdraws_one_that_was(
    best: Alternative | None,
) -> None:
    passes = Passes()
    passes.go(best, 3 * WAIT)
    assert passes.proposed is None

    passes.go(LAZY, WAIT + 2)
    assert passes.announced
    passes.go(best)
    assert passes.proposed is None
    assert passes.taken == 0


def test_a_break_begins_anew_and_so_does_another_rival() -> None:
    passes = Passes()
    passes.go(LAZY, WAIT)
    passes.go(None)
    passes.go(LAZY, WAIT)
    assert not passes.announced

    passes.go(Alternative("ExtraBuffer", "float32", 0.5), WAIT)
    assert not passes.announced
    assert passes.taken == 0


def test_while_nothing_is_measured_nothing_begins_is_announced_or_taken() -> None:
    passes = Passes()
    passes.go(LAZY, 3 * WAIT, measured=False)
    assert passes.proposed is None

    passes.go(LAZY)
    passes.go(LAZY, 3 * WAIT, measured=False)
    assert not passes.announced

    passes.go(LAZY)
    assert passes.announced
    passes.go(LAZY, 3 * NOTICED, measured=False)
    assert passes.announced
    assert passes.taken == 0
    assert passes.go(LAZY).take


def test_what_is_due_waits_until_engines_may_be_told() -> None:
    passes = Passes()
    passes.go(LAZY, WAIT + 2 * NOTICED, may_take=False)
    assert passes.announced

    assert passes.go(LAZY).take


def test_a_clock_that_is_set_back_makes_nothing_wait_longer_than_it_would_from_the_beginning() -> None:
    passes = Passes()
    passes.go(LAZY, WAIT // 2)
    passes.now -= timedelta(days=1)
    passes.go(LAZY, WAIT + 1)
    assert passes.announced

    passes.now -= timedelta(days=1)
    passes.go(LAZY, NOTICED)
    assert passes.taken == 0
    assert passes.go(LAZY).take


@pytest.mark.parametrize("text", ["nonsense", ""])
def test_times_that_somebody_broke_begin_anew(text: str) -> None:
    broken = ProposedStrategy(strategy="ExtraBufferLazy", gain="1%", since=text, takes_effect=None)

    made = workload_change(broken, LAZY, measured=True, now=NOW)

    assert made.proposed is not None
    assert made.proposed.since == "2026-01-02T12:00:00Z"
    noted = ProposedStrategy(strategy="ExtraBufferLazy", gain="1%", since=text, takes_effect=text)
    assert not workload_change(noted, LAZY, measured=True, now=NOW).take


moments = st.integers(-3000, 3000).map(lambda minutes: NOW + timedelta(minutes=minutes))
rivals = st.one_of(
    st.none(), st.builds(Alternative, st.sampled_from(["NoBuffer", "ExtraBuffer"]), st.just("float32"),
                         st.floats(-0.01, 0.5)),
)  # fmt: skip


@given(st.lists(st.tuples(moments, rivals, st.booleans()), max_size=12))
def test_nothing_is_taken_that_was_not_announced_and_does_not_win_by_enough_while_it_is_measured(
    looks: list[tuple[datetime, Alternative | None, bool]],
) -> None:
    proposed = None
    for now, best, measured in looks:
        made = workload_change(proposed, best, measured=measured, now=now)
        assert made.requeue_after is None or 0 <= made.requeue_after <= HELD.total_seconds()
        if made.take:
            assert measured
            assert best is not None
            assert best.gain >= MARGIN
            assert proposed is not None
            assert proposed.takes_effect is not None
            assert proposed.strategy == best.strategy
        proposed = made.proposed
