"""Starts of one step end in time, as far as the last ones told, and nobody waits for ever."""

import pytest

from mamba_server.engine.scheduling.start_budget import MAX_START_SECONDS, START_SECONDS, StartBudget
from step_load import LoadSetup, StepLoad


class Work:
    """A clock that goes on by what a start takes whenever one is made, and by `rest` from step to step."""

    def __init__(self, *costs: float, rest: float = 0.001) -> None:
        self.costs, self.rest, self.now, self.made = costs, rest, 50.0, 0
        self.budget = StartBudget(lambda: self.now)

    def step(self, wanting: int = 8, *, answering: bool = True) -> tuple[int, float]:
        """Return how many of `wanting` start in one step, and the seconds of their starts."""
        self.now += self.rest
        self.budget.begin(answering=answering)
        began, count = self.now, 0
        while count < wanting and self.budget.allows():
            self.now += self.costs[self.made % len(self.costs)]
            self.made, count = self.made + 1, count + 1
            self.budget.started()
        return count, self.now - began


@pytest.mark.parametrize(("cost", "count"), [(0.0001, 8), (0.00029, 5), (0.0007, 2), (0.0014, 1)])
def test_as_many_start_as_have_the_time(cost: float, count: int) -> None:
    work = Work(cost)
    steps = [work.step() for _ in range(20)]
    assert {started for started, _ in steps} == {count}
    assert max(taken for _, taken in steps) <= START_SECONDS + 1e-9


@pytest.mark.parametrize(("rest", "count"), [(0.002, 2), (0.008, 3), (0.01, 4), (3.0, 5)])
def test_longer_steps_start_more_up_to_a_limit(rest: float, count: int) -> None:
    work = Work(0.00062, rest=rest)
    work.step(0)
    started, taken = work.step()
    assert started == count
    assert taken <= MAX_START_SECONDS


def test_more_start_while_nobody_is_being_answered() -> None:
    work = Work(0.00062)
    work.step(answering=False)
    assert [work.step(answering=False)[0], work.step()[0]] == [5, 2]


def test_one_starts_in_each_step_however_long_it_takes() -> None:
    work = Work(0.02)
    assert [work.step()[0] for _ in range(20)] == [1] * 20


def test_one_slow_start_does_not_slow_down_those_after_it() -> None:
    work = Work(*[0.00029] * 10, 0.02, *[0.00029] * 1000)
    counts = [work.step()[0] for _ in range(30)]
    # The step after it has more time, as it took longer; then all is as before.
    assert counts[3:] == [8] + [5] * 26


@pytest.mark.parametrize(("cost", "most"), [(0.0, 8), (0.00052, 6), (0.004, 1)])
def test_ten_thousand_salts_start_a_few_a_step_and_all_of_them(cost: float, most: int) -> None:
    now = 0.0

    def clock() -> float:
        # Looked at when a start is asked for and when it is made: each look is half of what it takes.
        nonlocal now
        now += cost / 2
        return now

    load = StepLoad(LoadSetup(slabs=200, pages_per_slab=32), StartBudget(clock))
    for number in range(200):
        load.add(f"r{number}", 20, 1, salt=f"salt{number}")
    before, counts = 200, []
    while load.scheduler.waiting:
        load.step()
        counts.append(before - len(load.scheduler.waiting))
        before -= counts[-1]
    assert max(counts) == most
    assert min(counts[:-1]) == most
