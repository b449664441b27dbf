"""Objects that are alive in this process: those of given classes, and how their number grows."""

import gc
from collections.abc import Iterable
from itertools import pairwise
from typing import Any


def living(*kinds: type, besides: Iterable[object] = ()) -> list[Any]:
    """Return the living objects of `kinds` and of their subclasses, without the objects in `besides`.

    The function looks at the type of each object alone: `isinstance` also asks for the attribute `__class__`,
    and some libraries keep objects that warn about every attribute (`torch.distributed.reduce_op`).
    """
    gc.collect()
    known = {id(each) for each in besides}
    return [each for each in gc.get_objects() if issubclass(type(each), kinds) and id(each) not in known]


class ObjectRounds:
    """Counts of living objects after rounds of the same work.

    Other threads of the process, such as those of the test runner, create objects and cycles at any time.
    What the work leaves behind is there after each round, so the round that leaves the least is the one to
    judge by.
    """

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._cycles: list[int] = []

    def end(self) -> None:
        """Count the objects at the end of a round; the first round is the warm-up."""
        self._cycles.append(gc.collect())
        self._counts.append(len(gc.get_objects()))

    @property
    def growth(self) -> int:
        """Number of objects by which the process grew in the round in which it grew least."""
        return min(after - before for before, after in pairwise(self._counts))

    @property
    def cycles(self) -> int:
        """Number of objects in unreachable cycles after the round that left the fewest."""
        return min(self._cycles[1:])
