"""The waiting sequences, in the order in which they may run."""

import bisect
from collections.abc import Iterator

from mamba_server.engine.sequence import Sequence


class WaitingQueue:
    """Sorted by (priority, arrival order). A preempted sequence keeps its place by its old arrival."""

    def __init__(self) -> None:
        self._items: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    def push(self, sequence: Sequence) -> None:
        bisect.insort(self._items, sequence, key=Sequence.rank)

    def remove(self, sequence: Sequence) -> None:
        self._items.remove(sequence)

    def candidates(self, limit: int) -> list[Sequence]:
        """The first `limit` that could start now; siblings wait for their leader's prefill."""
        out: list[Sequence] = []
        for sequence in self._items:
            if sequence.leader is not None and not sequence.leader.prompt_done:
                continue
            if sequence.in_flight:
                # Preempted, and its last token has not come back yet.
                continue
            out.append(sequence)
            if len(out) == limit:
                break
        return out
