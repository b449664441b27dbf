"""Step size dt of the recurrence, computed from its raw projection; shared by prefill and decode."""

import torch


def step_size(
    raw: torch.Tensor, bias: torch.Tensor, limit: tuple[float, float], kind: torch.dtype
) -> torch.Tensor:
    """Compute clamp(softplus(raw + bias)) in the type `kind`; raw: [T, H], bias: [H].

    softplus(x) = max(x, 0) + log(1 + exp(-|x|)) never overflows. It is composed of functions whose bits do
    not depend on an element's place in the tensor; those of the fused operator do, at its vector tail.
    """
    x = raw.to(kind) + bias
    return torch.log1p(x.abs().neg_().exp_()).add_(x.clamp_(min=0)).clamp_(*limit)
