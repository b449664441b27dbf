"""Which decode steps are made, and what happens where one cannot be repeated."""

import pytest

from mamba_kernels.slot_plan import NoHostRoutes
from mamba_server.engine.decode_steps import DecodeSteps
from mamba_server.engine.step_graphs import GraphMemoryShort, StepGraphs
from recorded_work import RecordedGraphs


class Step:
    """Stands in for `DecodeStep`."""

    def __init__(self, rows: int, *, planless: bool = False, short: bool = False) -> None:
        self.rows, self._planless, self._short = rows, planless, short
        self.warm = self.captured = False

    def warm_up(self) -> None:
        if self._planless:
            raise NoHostRoutes("a kernel cannot")
        self.warm = True

    def capture(self, graphs: StepGraphs) -> None:
        assert self.warm
        if self._short:
            raise GraphMemoryShort("no memory")
        self.captured = True


def steps(made: list[Step], graphs: StepGraphs | None, **how: bool) -> DecodeSteps:
    def make(rows: int) -> Step:
        made.append(Step(rows, **how))
        return made[-1]

    return DecodeSteps(make, 10, graphs)  # type: ignore[arg-type]


def test_the_smallest_with_enough_rows_does_a_step_and_is_made_once() -> None:
    made: list[Step] = []
    all_steps = steps(made, None)
    chosen = [all_steps.step_for(sequences) for sequences in (1, 3, 4, 5, 9, 10, 3)]
    assert [step and step.rows for step in chosen] == [1, 4, 4, 8, 10, 10, 4]
    assert [step.rows for step in made] == [1, 4, 8, 10]
    assert all(step.warm and not step.captured for step in made)


def test_all_are_captured_at_the_start_the_largest_first() -> None:
    made: list[Step] = []
    seen: list[tuple[int, int]] = []
    all_steps = steps(made, RecordedGraphs())
    all_steps.warm_up(lambda _, done, total: seen.append((done, total)))
    assert [step.rows for step in made] == [10, 8, 4, 2, 1]
    assert all(step.captured for step in made)
    assert seen == [(done, 5) for done in range(6)]
    all_steps.step_for(7)
    assert len(made) == 5


def test_without_memory_for_a_graph_the_step_is_issued(caplog: pytest.LogCaptureFixture) -> None:
    made: list[Step] = []
    step = steps(made, RecordedGraphs(), short=True).step_for(2)
    assert step is made[0]
    assert not made[0].captured
    assert "2 rows" in caplog.text


def test_a_model_that_kernels_cannot_take_is_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    made: list[Step] = []
    all_steps = steps(made, RecordedGraphs(), planless=True)
    assert [all_steps.step_for(sequences) for sequences in (1, 2, 8)] == [None, None, None]
    assert len(made) == 1
    assert "a kernel cannot" in caplog.text
