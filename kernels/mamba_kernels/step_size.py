"""The step size dt of the recurrence, from its raw projection; shared by prefill and decode."""

import torch


def step_size(
    raw: torch.Tensor, bias: torch.Tensor, limit: tuple[float, float], kind: torch.dtype
) -> torch.Tensor:
    """clamp(softplus(raw + bias)) in `kind`; raw: [T, H], bias: [H].

    softplus(x) = max(x, 0) + log(1 + exp(-|x|)) never overflows. It is composed of functions whose
    bits do not depend on an element's place in the tensor; the fused operator's do, at its vector tail.
    """
    x = raw.to(kind) + bias
    return torch.log1p(x.abs().neg_().exp_()).add_(x.clamp_(min=0)).clamp_(*limit)
