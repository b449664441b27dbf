"""Device properties that launches depend on: the number of processors, and how they multiply."""

from functools import cache

import torch

ASSUMED_PROCESSORS = 64
"""Number of processors that the interpreter and compilations without a device assume."""


@cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a CUDA device; of another device, ASSUMED_PROCESSORS."""
    if device.type != "cuda":
        return ASSUMED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def warp_groups(device: torch.device) -> bool:
    """Return whether four warps multiply together, with operands in shared memory (sm_90, sm_100).

    Tiles may be larger where operands take no registers.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (9, 10)
