"""What launches have to know of a device: its processors, and how they multiply."""

from functools import cache

import torch

ASSUMED_PROCESSORS = 64
"""Processors that the interpreter, and a compilation without a device, counts with."""


@cache
def processors(device: torch.device) -> int:
    """The multiprocessors of a CUDA device."""
    if device.type != "cuda":
        return ASSUMED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def warp_groups(device: torch.device) -> bool:
    """Whether four warps multiply together, with operands in shared memory (sm_90, sm_100): tiles may be
    larger where operands take no registers."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (9, 10)
