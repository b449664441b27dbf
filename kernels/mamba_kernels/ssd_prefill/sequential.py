"""The recurrence token by token for one sequence: the truth that tests compare the chunked scan with."""

import torch
import torch.nn.functional as F


def ssd_sequential(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    dt_bias: torch.Tensor,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    initial: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs y [T, H, P] and the state after every token, [T, H, P, N], in the type of x.

    `x` is [T, H, P]; `dt` is [T, H]; `A`, `D` and `dt_bias` are [H]; `B` and `C` are [T, G, N]; `initial` is
    [H, P, N] or None for zeros.
    """
    T, H, P = x.shape
    G, N = B.shape[1:]
    h = x.new_zeros(H, P, N) if initial is None else initial.to(x.dtype).clone()
    step = F.softplus(dt + dt_bias).clamp(*dt_limit)
    outputs, states = [], []
    for t in range(T):
        b = B[t].repeat_interleave(H // G, 0)[:, None]  # [H, 1, N]
        c = C[t].repeat_interleave(H // G, 0)[:, None]
        h = h * torch.exp(step[t] * A)[:, None, None] + (step[t, :, None] * x[t])[..., None] * b
        outputs.append((h * c).sum(-1) + D[:, None] * x[t])
        states.append(h)
    return torch.stack(outputs), torch.stack(states)
