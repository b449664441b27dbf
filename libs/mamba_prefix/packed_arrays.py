"""What messages carry packed, as arrays of numpy: for the index of a gateway, which reads many at once."""

import numpy as np
import numpy.typing as npt

from mamba_prefix.page_chain import Hashes

ENTRY = np.dtype([("hash", "<u8"), ("depth", "<u4")])
"""A checkpoint: the hash of its prefix, and the tokens in it. 12 bytes."""
Entries = npt.NDArray[np.void]


def entries_of(raw: bytes) -> Entries:
    """What `pack_entries` packed: `ENTRY` items."""
    return np.frombuffer(raw, ENTRY)


def hashes_of(raw: bytes) -> Hashes:
    """What `pack_hashes` packed."""
    return np.frombuffer(raw, "<u8").astype(np.uint64, copy=False)
