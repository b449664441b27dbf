"""The page table on the device, which kernels read. Entries are sent once, when they change."""

from itertools import pairwise

import numpy as np
import torch

from mamba_kernels.transfer import to_device
from mamba_server.model.forward_batch import IntArray

MIN_RUN_ENTRIES = 256
"""Number of successive entries from which they are copied as one run: sending a place with each entry doubles
the bytes, and for short runs a copy of their own costs more than that."""


class PageTable:
    """Table of `rows` rows of up to `pages` entries on `device`, with the same places as the host's table.

    One more row, the last, belongs to no sequence: the padding of a step uses it.
    """

    def __init__(self, rows: int, pages: int, device: torch.device) -> None:
        self.entries = torch.zeros(rows + 1, pages, dtype=torch.int32, device=device)
        """[rows + 1, pages] int32; entries beyond the last page of a row have no meaning."""
        self._flat = self.entries.view(-1)

    def write(self, places: IntArray, pages: IntArray) -> int:
        """Set entries and return the number of bytes sent.

        `places` are indices in the flattened table, [k], and `pages` the page ids to set, [k]. The call only
        starts the copies, which the device runs before the next step reads the table.
        """
        if not len(places):
            return 0
        sent_bytes, short = 0, np.ones(len(places), np.bool_)
        for first, end in _long_runs(places):
            run = to_device(torch.from_numpy(np.ascontiguousarray(pages[first:end])), self.entries.device)
            self._flat[int(places[first]) : int(places[first]) + end - first].copy_(run)
            short[first:end] = False
            sent_bytes += run.nbytes
        if short.any():
            both = to_device(torch.from_numpy(np.stack([places[short], pages[short]])), self.entries.device)
            self._flat.index_copy_(0, both[0].long(), both[1])
            sent_bytes += both.nbytes
        return sent_bytes


def _long_runs(places: IntArray) -> list[tuple[int, int]]:
    """Return (first, end) of each run of at least `MIN_RUN_ENTRIES` successive places."""
    if len(places) < MIN_RUN_ENTRIES:
        return []
    cuts = np.flatnonzero(np.diff(places) != 1) + 1
    bounds = [0, *cuts.tolist(), len(places)]
    return [(first, end) for first, end in pairwise(bounds) if end - first >= MIN_RUN_ENTRIES]
