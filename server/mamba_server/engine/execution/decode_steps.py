"""Prepared decode steps: one for each number of rows, prepared at the start or when first needed.

The numbers of rows are few (`decode_buckets`), so that each can be prepared.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable

from mamba_kernels.slot_plan import NoHostRoutes
from mamba_server.engine.execution.decode_step import DecodeStep
from mamba_server.engine.execution.step_graphs import GraphMemoryShort, StepGraphs

log = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]

MAX_FAILURES = 2
"""Captures in a row that may fail for another reason than memory. After that, no further one is tried: the
cause does not depend on the number of rows."""


SMALL_SIZES = (1, 2, 4)
STEPS_UP_TO = ((64, 8), (256, 16), (512, 32))
"""Pairs of (number of rows, step up to it): few rows of padding, and few steps to prepare."""
LARGEST_STEP = 64


def decode_buckets(most: int) -> tuple[int, ...]:
    """Return the numbers of rows for up to `most` sequences, ascending; `most` is the last."""
    sizes = [size for size in SMALL_SIZES if size < most]
    size = 0
    while size < most:
        size += next((step for end, step in STEPS_UP_TO if size < end), LARGEST_STEP)
        sizes.append(min(size, most))
    return tuple(sizes)


class DecodeSteps:
    """Prepared decode steps for up to `most` sequences.

    `make(rows)` builds one, `graphs` captures it; None captures none. A step that cannot be captured is
    issued each time: slower, with the same results.
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
        """Number of captured steps, and of steps that are issued each time."""
        captured = len(self._captured)
        return {"captured": captured, "issued": len(self._sizes) - captured}

    def warm_up(self, report: Progress) -> None:
        """Prepare all steps, the largest first, so that the smaller ones find memory in its pool.

        Earlier steps are dropped: one may hold a kernel that has been left out since.
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
        """Return the smallest step with at least `sequences` rows.

        The result is None if the model's kernels cannot be repeated.
        """
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
            log.warning("no decode step is prepared, each one is planned again: %s", why)
            return
        if self._graphs is not None and self._failures < MAX_FAILURES:
            self._capture(size, step, self._graphs)
        self._steps[size] = step

    def _capture(self, size: int, step: DecodeStep, graphs: StepGraphs) -> None:
        try:
            step.capture(graphs)
        except GraphMemoryShort as why:
            log.warning("the decode step of %d rows has no CUDA graph: %s", size, why)
        except RuntimeError as why:
            # Issued once more, so that a lost device shows now and not at the first request.
            step.warm_up()
            self._failures += 1
            others = " and fewer" if self._failures == MAX_FAILURES else ""
            log.warning("the decode step of %d rows%s has no CUDA graph: %s", size, others, why)
        else:
            self._failures = 0
            self._captured.add(size)
