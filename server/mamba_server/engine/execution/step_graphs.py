"""Captured device work that is repeated without changes: this way a decode step costs one launch.

`CudaGraphs` (in `cuda_graphs`) is the implementation; without one, work is issued each time.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class StepGraphs(Protocol):
    """Captures the device work of a step once, as a graph, so that it can be repeated as a whole."""

    def capture(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Return a function that repeats the work that `work` issues, on the same memory.

        The function returns the result of `work`, whose tensors every repetition overwrites. `work` has run
        before: it compiles nothing and reads no tensor. Raises GraphMemoryShort, and RuntimeError if the work
        cannot be captured; it may then be issued.
        """
        ...

    def begin_anew(self) -> None:
        """Forget all captured work, which nobody will repeat any more."""
        ...


class GraphMemoryShort(RuntimeError):
    """The device lacks the memory for another graph: the step is issued each time."""
