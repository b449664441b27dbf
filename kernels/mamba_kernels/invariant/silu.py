"""SiLU composed of operations whose bits do not depend on an element's place in the tensor.

The fused operator uses other instructions for the last elements of a run, which are too few for a vector.
"""

import torch


def silu(x: torch.Tensor) -> torch.Tensor:
    """Return x / (1 + exp(-x)) of any shape as a new tensor; the limit for x -> -inf is -0."""
    return x / x.neg().exp_().add_(1)
