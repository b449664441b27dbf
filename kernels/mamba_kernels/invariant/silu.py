"""x * sigmoid(x) out of operations whose bits do not depend on an element's place in the tensor.

The fused operator treats the last elements of a run, too few for a vector, with other instructions.
"""

import torch


def silu(x: torch.Tensor) -> torch.Tensor:
    """x / (1 + exp(-x)), any shape; a new tensor. For x -> -inf it is -0, as it should be."""
    return x / x.neg().exp_().add_(1)
