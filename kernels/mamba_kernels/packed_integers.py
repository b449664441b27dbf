"""Transfer of several integer arrays to a device in one buffer and one copy."""

from collections.abc import Mapping

import numpy as np
import torch

from mamba_kernels.slot_plan import HostIntegers
from mamba_kernels.transfer import aligned, to_device


def send_together(parts: Mapping[str, HostIntegers], device: torch.device) -> dict[str, torch.Tensor]:
    """Copy host arrays to `device` in one buffer and return them as int32 tensors under the same names.

    Each of `parts` is [n] or [r, n]. Every row of every part begins at a multiple of 16 bytes, for which
    kernels are compiled. The host may overwrite its arrays immediately afterwards.
    """
    layout, size = [], 0
    for part in parts.values():
        width, rows = aligned(part.shape[-1]), 1 if part.ndim == 1 else len(part)
        layout.append((size, rows, width))
        size += rows * width
    flat = np.empty(size, np.int32)
    for part, (first, rows, width) in zip(parts.values(), layout, strict=True):
        if part.ndim == 1:
            flat[first : first + part.size] = part
        else:
            flat[first : first + rows * width].reshape(rows, width)[:, : part.shape[1]] = part
    on_device = to_device(torch.from_numpy(flat), device)
    return {
        name: on_device[first : first + part.size]
        if part.ndim == 1
        else on_device.as_strided(part.shape, (width, 1), first)
        for (name, part), (first, _, width) in zip(parts.items(), layout, strict=True)
    }
