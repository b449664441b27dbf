"""Starts of one step end in time, as far as the last ones told, and nobody waits for ever."""

import pytest

from mamba_server.engine.start_budget import StartBudget
from step_load import LoadSetup, StepLoad

WANTED = 0.0025


class Work:
    """A clock that goes on by what a start takes whenever one is made."""

    def __init__(self, *costs: float) -> None:
        self.costs, self.now, self.made = costs, 50.0, 0
        self.budget = StartBudget(lambda: self.now, WANTED)

    def step(self, wanting: int = 8) -> tuple[int, float]:
        """How many of `wanting` start in one step, and how long they take."""
        self.budget.begin()
        began, count = self.now, 0
        while count < wanting and self.budget.allows():
            self.now += self.costs[self.made % len(self.costs)]
            self.made, count = self.made + 1, count + 1
            self.budget.started()
        self.now += 1.0
        return count, self.now - began - 1.0


@pytest.mark.parametrize(
    ("cost", "count"), [(0.0001, 8), (0.0003, 8), (0.00049, 5), (0.0012, 2), (0.0024, 1)]
)
def test_as_many_start_as_have_the_time(cost: float, count: int) -> None:
    work = Work(cost)
    steps = [work.step() for _ in range(20)]
    assert {started for started, _ in steps} == {count}
    assert max(taken for _, taken in steps) <= WANTED + 1e-9


def test_one_starts_in_each_step_however_long_it_takes() -> None:
    work = Work(0.02)
    assert [work.step()[0] for _ in range(20)] == [1] * 20


def test_one_slow_start_does_not_slow_down_those_after_it() -> None:
    work = Work(*[0.00049] * 10, 0.02, *[0.00049] * 1000)
    counts = [work.step()[0] for _ in range(30)]
    assert counts[3:] == [5] * 27


def test_the_time_between_steps_is_nobodys() -> None:
    work = Work(0.001)
    work.step(1)
    assert [work.step()[0] for _ in range(3)] == [2, 2, 2]


@pytest.mark.parametrize(("cost", "most"), [(0.0, 8), (0.001, 2), (0.004, 1)])
def test_ten_thousand_salts_start_a_few_a_step_and_all_of_them(cost: float, most: int) -> None:
    now = 0.0

    def clock() -> float:
        # Looked at when a start is asked for and when it is made: each look is half of what it takes.
        nonlocal now
        now += cost / 2
        return now

    load = StepLoad(LoadSetup(slabs=200, pages_per_slab=32), StartBudget(clock, WANTED))
    for number in range(200):
        load.add(f"r{number}", 20, 1, salt=f"salt{number}")
    before, counts = 200, []
    while load.scheduler.waiting:
        load.step()
        counts.append(before - len(load.scheduler.waiting))
        before -= counts[-1]
    assert max(counts) == most
    assert min(counts[:-1]) == most
