"""The sequences that decode, and their rows of the persistent batch."""

from collections.abc import Iterator

import numpy as np

from mamba_server.cache import Ints
from mamba_server.engine.sequences.sequence import Sequence


def rows_of(sequences: list[Sequence]) -> Ints:
    """Return the rows of the sequences in the persistent batch."""
    return np.array([sequence.row for sequence in sequences], np.int32)


class DecodeSet:
    """Set of the sequences that decode, oldest member first, with their rows.

    The rows are looked up once per change. A change creates a new list, so a step keeps the one it has.
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
        """Rows of the persistent batch; row i belongs to `sequences[i]`."""
        if self._rows is None:
            self._rows = rows_of(self.sequences)
        return self._rows

    @property
    def undecided(self) -> list[Sequence]:
        """Sequences whose next token depends on one that is still being computed."""
        return [sequence for sequence in self._guided if sequence.in_flight]

    def add(self, sequence: Sequence) -> None:
        """Let `sequence` decode from the next step on."""
        self._change([*self.sequences, sequence])

    def remove(self, sequence: Sequence) -> None:
        """Remove `sequence`, which will decode no further; nothing happens if it is not in the set."""
        self._change([member for member in self.sequences if member is not sequence])

    def _change(self, sequences: list[Sequence]) -> None:
        self.sequences, self._rows = sequences, None
        self._guided = [sequence for sequence in sequences if sequence.grammar is not None]
