"""SiLU, sigmoid and softplus whose bits do not depend on an element's place in the tensor, of any shape.

Torch's own operators use other instructions for the last elements of a run, which are too few for a vector,
so the bits of a row would depend on the number of rows beside it. In types narrower than float32 each
operation rounds.
"""

import torch


def silu(x: torch.Tensor) -> torch.Tensor:
    """Return x / (1 + exp(-x)) as a new tensor; the limit for x -> -inf is -0."""
    return x / x.neg().exp_().add_(1)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Return 1 / (1 + exp(-x)) as a new tensor; the limit for x -> -inf is 0."""
    return x.neg().exp_().add_(1).reciprocal_()


def softplus(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0) + log(1 + exp(-|x|)) as a new tensor, which never overflows."""
    return torch.log1p(x.abs().neg_().exp_()).add_(x.clamp(min=0))
