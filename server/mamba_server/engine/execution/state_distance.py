"""Distance between two states of one depth, layer by layer: how far a checkpoint is from what is computed.

The runner calls it on the forward stream. It reads two slots of the arena and writes nothing.
"""

import torch

from mamba_server.model.cache_views import CacheViews

SMALLEST = 0.05
"""Part of a layer's largest number below which the numbers of a head count as small: their rounding errors
are those of the layer."""


def state_distances(views: CacheViews, slot: int, truth: int) -> torch.Tensor:
    """Return [2 * layers] distances: of the SSM parts of all recurrent layers, then of their windows.

    A distance is the largest difference of two numbers in a head, relative to the largest number that the
    head has in `truth`; infinity if a number is not finite.
    """
    parts = [*views.ssm, *views.conv]
    return torch.stack([_distance(part[slot].double(), part[truth].double()) for part in parts])


def _distance(state: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return the distance of one layer's part; its first axis counts heads, or the inputs of a window."""
    heads = len(state)
    differences = (state - truth).abs().reshape(heads, -1).amax(1)
    sizes = truth.abs().reshape(heads, -1).amax(1)
    scale = torch.maximum(sizes, SMALLEST * sizes.amax()).clamp_min(torch.finfo(torch.float32).tiny)
    return torch.nan_to_num((differences / scale).amax(), nan=torch.inf, posinf=torch.inf)
