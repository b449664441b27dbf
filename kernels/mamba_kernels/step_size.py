"""Step size dt of the recurrence, computed from its raw projection; shared by prefill and decode."""

import torch


def step_size(
    raw: torch.Tensor, bias: torch.Tensor, limit: tuple[float, float], kind: torch.dtype
) -> torch.Tensor:
    """Compute clamp(softplus(raw + bias)) in the type `kind`; `raw` is [T, H] and `bias` is [H].

    softplus(x) = max(x, 0) + log(1 + exp(-|x|)) never overflows. It is composed of functions whose bits do
    not depend on an element's place in the tensor; the bits of torch's softplus do, in the last few elements.
    """
    x = raw.to(kind) + bias
    return torch.log1p(x.abs().neg_().exp_()).add_(x.clamp_(min=0)).clamp_(*limit)
