"""Work that is always the same, issued once and repeated: how a decode step costs one launch.

`CudaGraphs` (in `cuda_graphs`) is the one that serves; without one, work is issued anew each time.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class StepGraphs(Protocol):
    """Captures device work."""

    def capture(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """What repeats the work that `work` issues, on the same memory; returns what `work` returned, whose
        tensors every repetition overwrites. `work` has run before: it compiles nothing and reads no tensor.
        Raises GraphMemoryShort, and RuntimeError where the work cannot be captured: it may be issued then.
        """
        ...

    def begin_anew(self) -> None:
        """Take note that nothing that was captured so far is repeated any more."""
        ...


class GraphMemoryShort(RuntimeError):
    """The device lacks the memory for another graph: the step is issued anew each time."""
