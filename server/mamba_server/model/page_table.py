"""The pages of all sequences, where the kernels read them: entries are sent once, when they change."""

from itertools import pairwise

import numpy as np
import torch

from mamba_kernels.transfer import to_device
from mamba_server.model.forward_batch import IntArray

LONG = 256
"""Entries in a row from which on they are copied to their place as they are: a place for each would double
what is sent, and a copy for each run is dearer than that for short ones."""


class PageTable:
    """`rows` rows of up to `pages` entries on `device`; each place is that of the host's own table.

    One row more, the last, is nobody's: that of the padding of a step.
    """

    def __init__(self, rows: int, pages: int, device: torch.device) -> None:
        self.entries = torch.zeros(rows + 1, pages, dtype=torch.int32, device=device)
        """[rows + 1, pages] int32; what a row has beyond its last page means nothing."""
        self._flat = self.entries.view(-1)

    def write(self, places: IntArray, pages: IntArray) -> int:
        """Set entries; places: [k] in the flattened table, pages: [k]. Starts the copies, queued before what
        reads the table next. Returns the bytes they send."""
        sent, short = 0, np.ones(len(places), np.bool_)
        for first, end in _long_runs(places):
            run = to_device(torch.from_numpy(np.ascontiguousarray(pages[first:end])), self.entries.device)
            self._flat[int(places[first]) : int(places[first]) + end - first].copy_(run)
            short[first:end] = False
            sent += run.nbytes
        if short.any():
            both = to_device(torch.from_numpy(np.stack([places[short], pages[short]])), self.entries.device)
            self._flat.index_copy_(0, both[0].long(), both[1])
            sent += both.nbytes
        return sent


def _long_runs(places: IntArray) -> list[tuple[int, int]]:
    """(first, end) of the parts of `places` that follow one another for `LONG` entries or more."""
    if len(places) < LONG:
        return []
    cuts = np.flatnonzero(np.diff(places) != 1) + 1
    bounds = [0, *cuts.tolist(), len(places)]
    return [(first, end) for first, end in pairwise(bounds) if end - first >= LONG]
