"""The pages of all sequences, where the kernels read them: entries are sent once, when they change."""

import numpy as np
import torch

from mamba_kernels.transfer import to_device
from mamba_server.model.forward_batch import IntArray


class PageTable:
    """`rows` rows of up to `pages` entries on `device`; each place is that of the host's own table.

    One row more, the last, is nobody's: that of the padding of a step.
    """

    def __init__(self, rows: int, pages: int, device: torch.device) -> None:
        self.entries = torch.zeros(rows + 1, pages, dtype=torch.int32, device=device)
        """[rows + 1, pages] int32; what a row has beyond its last page means nothing."""
        self._flat = self.entries.view(-1)

    def write(self, places: IntArray, pages: IntArray) -> None:
        """Set entries; places: [k] in the flattened table, pages: [k]. Starts at most one copy, queued before
        what reads the table next."""
        if not len(places):
            return
        both = to_device(torch.from_numpy(np.stack([places, pages])), self.entries.device)
        self._flat.index_copy_(0, both[0].long(), both[1])
