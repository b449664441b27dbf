"""`StepAdapters`: which rows of a step are computed with which adapter.

The runner builds one for each step in which a sequence has an adapter, and the bank holds it while the layers
compute.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mamba_kernels.transfer import to_device
from mamba_planner.adapter_bank import MOST_ROWS

Ints = npt.NDArray[np.int32]
BASE = -1
"""Place of sequences that have no adapter."""


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The decoding rows of a step that have adapters, and the adapter of each."""

    rows: torch.Tensor
    """[n] numbers of the rows, int64"""
    places: torch.Tensor
    """[n] place of each row's adapter in the bank, int64"""
    first: int
    """Smallest of these places."""
    end: int
    """Largest of these places, plus one."""


@dataclass(frozen=True, slots=True)
class StepAdapters:
    """Says which adapter each row of one step is computed with."""

    places: frozenset[int]
    """Places in the bank of all adapters of the step."""
    decodes: tuple[DecodeRows, ...]
    """Decoding rows, at most `MOST_ROWS` together."""
    decode_places: Ints
    """[D] place of each decoding row's adapter, or `BASE`; these rows are the step's first."""
    pieces: tuple[tuple[int, int, int], ...]
    """First row, last row plus one, and place of the adapter of parts of prompts."""

    def places_of_rows(self, rows: int) -> list[int]:
        """Return the place of the adapter of each of the step's rows, or `BASE`."""
        places = [*self.decode_places.tolist(), *[BASE] * (rows - len(self.decode_places))]
        for start, stop, place in self.pieces:
            places[start:stop] = [place] * (stop - start)
        return places

    @classmethod
    def build(
        cls, places: Ints, query_start: Ints, decodes: int, device: torch.device
    ) -> "StepAdapters | None":
        """Return the adapters of a step; None = no sequence has one.

        `places` are the places of the sequences' adapters, or `BASE`, [S]. `query_start` is the first row of
        each sequence, [S+1]. The first `decodes` sequences decode.
        """
        if not (places != BASE).any():
            return None
        rows = np.flatnonzero(places[:decodes] != BASE)
        groups = []
        for first in range(0, len(rows), MOST_ROWS):
            some = rows[first : first + MOST_ROWS]
            own = places[some].astype(np.int64)
            groups.append(
                DecodeRows(_sent(some, device), _sent(own, device), int(own.min()), int(own.max()) + 1)
            )
        pieces: list[tuple[int, int, int]] = []
        for sequence in range(decodes, len(places)):
            start, stop, place = (
                int(query_start[sequence]), int(query_start[sequence + 1]), int(places[sequence]),
            )  # fmt: skip
            if place != BASE and pieces and pieces[-1][1:] == (start, place):
                pieces[-1] = (pieces[-1][0], stop, place)
            elif place != BASE:
                pieces.append((start, stop, place))
        return cls(
            frozenset(places[places != BASE].tolist()),
            tuple(groups),
            places[:decodes],
            tuple(
                (first, min(first + MOST_ROWS, stop), place)
                for start, stop, place in pieces
                for first in range(start, stop, MOST_ROWS)
            ),
        )


def _sent(numbers: np.ndarray, device: torch.device) -> torch.Tensor:
    return to_device(torch.from_numpy(np.ascontiguousarray(numbers, np.int64)), device)
