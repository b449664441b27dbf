"""Which decode steps are made, and what happens where one cannot be repeated."""

from typing import Any

import pytest

from mamba_kernels.slot_plan import NoHostRoutes
from mamba_server.engine.execution.decode_steps import DecodeSteps
from mamba_server.engine.execution.step_graphs import GraphMemoryShort, StepGraphs
from recorded_work import RecordedGraphs


class Step:
    """Stands in for `DecodeStep`."""

    def __init__(
        self, rows: int, *, planless: bool = False, short: bool = False, broken: frozenset[int] = frozenset()
    ) -> None:
        """Create the device. `broken`: numbers of rows whose capture fails half way."""
        self.rows, self._planless, self._short, self._broken = rows, planless, short, broken
        self.warm = self.captured = self.tried = False

    def warm_up(self) -> None:
        if self._planless:
            raise NoHostRoutes("a kernel cannot")
        self.warm = True

    def capture(self, graphs: StepGraphs) -> None:
        assert self.warm
        self.tried = True
        if self._short:
            raise GraphMemoryShort("no memory")
        if self.rows in self._broken:
            # What it issues then would be in a graph that there is not.
            self.warm = False
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self.captured = True


def steps(made: list[Step], graphs: StepGraphs | None, **how: Any) -> DecodeSteps:
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


ALL = frozenset({1, 2, 4, 8, 10})


def test_a_number_of_rows_whose_capture_fails_is_issued_and_the_others_are_repeated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made: list[Step] = []
    all_steps = steps(made, RecordedGraphs(), broken=frozenset({10, 4}))
    all_steps.warm_up(lambda *_: None)
    assert [step.rows for step in made if step.captured] == [8, 2, 1]
    assert all(step.warm for step in made), "what is issued was issued before"
    assert all_steps.counts == {"captured": 3, "issued": 2}
    assert [all_steps.step_for(rows) for rows in (9, 3)] == [made[0], made[2]]
    assert [record.getMessage().split(" rows")[0] for record in caplog.records] == [
        "the decode step of 10", "the decode step of 4",
    ]  # fmt: skip
    assert "not permitted when stream is capturing" in caplog.text


def test_where_no_capture_succeeds_no_more_are_tried_and_all_steps_are_issued(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made: list[Step] = []
    all_steps = steps(made, RecordedGraphs(), broken=ALL)
    all_steps.warm_up(lambda *_: None)
    assert [step.tried for step in made] == [True, True, False, False, False]
    assert all_steps.counts == {"captured": 0, "issued": 5}
    assert all(all_steps.step_for(rows) for rows in (1, 3, 7, 10))
    assert len(caplog.records) == 2


def test_a_device_that_a_capture_lost_ends_the_start() -> None:
    class Lost(Step):
        def warm_up(self) -> None:
            if self.tried:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            super().warm_up()

    all_steps = DecodeSteps(lambda rows: Lost(rows, broken=ALL), 10, RecordedGraphs())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="illegal memory access"):
        all_steps.warm_up(lambda *_: None)


def test_what_is_prepared_again_is_made_anew() -> None:
    made: list[Step] = []
    all_steps = steps(made, RecordedGraphs())
    for _ in range(2):
        all_steps.warm_up(lambda *_: None)
    assert len(made) == 10
    assert all_steps.step_for(10) is made[5]
    assert all_steps.counts == {"captured": 5, "issued": 0}
