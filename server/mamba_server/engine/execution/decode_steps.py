"""The decode steps that are prepared: one for each number of rows, made at the start or when first needed."""

import logging
from bisect import bisect_left
from collections.abc import Callable

from mamba_kernels.slot_plan import NoHostRoutes
from mamba_server.engine.execution.decode_buckets import decode_buckets
from mamba_server.engine.execution.decode_step import DecodeStep
from mamba_server.engine.execution.step_graphs import GraphMemoryShort, StepGraphs

log = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]

MOST_FAILURES = 2
"""Captures in a row that may fail for another reason than memory. After so many no further one is tried: what
they fail with is no matter of one number of rows."""


class DecodeSteps:
    """Steps for up to `most` sequences. `make(rows)` builds one, `graphs` captures it; None captures none.

    A step that cannot be captured is issued each time: slower, and as right.
    """

    def __init__(self, make: Callable[[int], DecodeStep], most: int, graphs: StepGraphs | None) -> None:
        self._make, self._graphs = make, graphs
        self._sizes = decode_buckets(most)
        self._steps: dict[int, DecodeStep] = {}
        self._captured: set[int] = set()
        self._refused = False
        self._failures = 0

    @property
    def counts(self) -> dict[str, int]:
        """How many numbers of rows have a captured step, and of how many steps are issued anew each time."""
        captured = len(self._captured)
        return {"captured": captured, "issued": len(self._sizes) - captured}

    def warm_up(self, report: Progress) -> None:
        """Make all of them, the largest first: the smaller ones find their memory in its pool.

        What was made before is given up: it may hold a kernel that has been left out since.
        """
        self._steps.clear()
        self._captured.clear()
        self._refused, self._failures = False, 0
        if self._graphs is not None:
            self._graphs.begin_anew()
        for done, size in enumerate(reversed(self._sizes)):
            report("preparing decode steps", done, len(self._sizes))
            self._prepare(size)
        report("preparing decode steps", len(self._sizes), len(self._sizes))

    def step_for(self, sequences: int) -> DecodeStep | None:
        """The smallest step with that many rows; None where the model's kernels cannot be repeated."""
        size = self._sizes[bisect_left(self._sizes, sequences)]
        if size not in self._steps and not self._refused:
            self._prepare(size)
        return self._steps.get(size)

    def _prepare(self, size: int) -> None:
        if self._refused:
            return
        step = self._make(size)
        try:
            step.warm_up()
        except NoHostRoutes as why:
            self._refused = True
            log.warning("decode steps are planned anew each time: %s", why)
            return
        if self._graphs is not None and self._failures < MOST_FAILURES:
            self._capture(size, step, self._graphs)
        self._steps[size] = step

    def _capture(self, size: int, step: DecodeStep, graphs: StepGraphs) -> None:
        try:
            step.capture(graphs)
        except GraphMemoryShort as why:
            log.warning("decode steps of %d rows are no CUDA graph: %s", size, why)
        except RuntimeError as why:
            # Issued once more: a device that is lost says so now, and not to the first request.
            step.warm_up()
            self._failures += 1
            others = " and fewer" if self._failures == MOST_FAILURES else ""
            log.warning("decode steps of %d rows%s are no CUDA graph: %s", size, others, why)
        else:
            self._failures = 0
            self._captured.add(size)
