"""The sequences that decode, and their rows of the persistent batch."""

from collections.abc import Iterator

import numpy as np

from mamba_server.cache import Ints
from mamba_server.engine.sequences.sequence import Sequence


def rows_of(sequences: list[Sequence]) -> Ints:
    """Their rows of the persistent batch."""
    return np.array([each.row for each in sequences], np.int32)


class DecodeSet:
    """The sequences that decode, oldest member first, and their rows, looked up once for each set of them.

    A step keeps the list it was given: a change makes a new one.
    """

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self._rows: Ints | None = None
        self._guided: list[Sequence] = []

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.sequences)

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def rows(self) -> Ints:
        """Row i is that of `sequences[i]`."""
        if self._rows is None:
            self._rows = rows_of(self.sequences)
        return self._rows

    @property
    def undecided(self) -> list[Sequence]:
        """Those whose next token depends on one that is still being computed."""
        return [each for each in self._guided if each.in_flight]

    def add(self, sequence: Sequence) -> None:
        """It decodes from the next step on."""
        self._change([*self.sequences, sequence])

    def remove(self, sequence: Sequence) -> None:
        """It has launched its last step, ended or was preempted; nothing happens if it is not here."""
        self._change([each for each in self.sequences if each is not sequence])

    def _change(self, sequences: list[Sequence]) -> None:
        self.sequences, self._rows = sequences, None
        self._guided = [each for each in sequences if each.grammar is not None]
