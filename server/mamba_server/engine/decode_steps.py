"""The decode steps that are prepared: one for each number of rows, made at the start or when first needed."""

import logging
from bisect import bisect_left
from collections.abc import Callable

from mamba_kernels.slot_plan import NoHostRoutes
from mamba_server.engine.decode_buckets import decode_buckets
from mamba_server.engine.decode_step import DecodeStep
from mamba_server.engine.step_graphs import GraphMemoryShort, StepGraphs

log = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]


class DecodeSteps:
    """Steps for up to `most` sequences. `make(rows)` builds one, `graphs` captures it."""

    def __init__(self, make: Callable[[int], DecodeStep], most: int, graphs: StepGraphs | None) -> None:
        self._make, self._graphs = make, graphs
        self._sizes = decode_buckets(most)
        self._steps: dict[int, DecodeStep] = {}
        self._refused = False

    def warm_up(self, report: Progress) -> None:
        """Make all of them, the largest first: the smaller ones find their memory in its pool."""
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
            if self._graphs is not None:
                step.capture(self._graphs)
        except NoHostRoutes as why:
            self._refused = True
            log.warning("decode steps are planned anew each time: %s", why)
            return
        except GraphMemoryShort as why:
            log.warning("decode steps of %d rows are no CUDA graph: %s", size, why)
        self._steps[size] = step
