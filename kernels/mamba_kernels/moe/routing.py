"""Which experts a row goes to and how much each counts: plain torch on any device, never read by the host.

A few operators over [n, E], whatever the rows; their number follows from nothing but the rule.
"""

from dataclasses import dataclass
from typing import Literal

import torch

LEAST_SUM = 1e-20
"""Added where sigmoids are normalised: they may all be 0."""
OF_A_GROUP = 2
"""A group of experts is as good as its two best."""


@dataclass(frozen=True, slots=True)
class Routing:
    """A family's rule.

    softmax: of all experts, then the k best; softmax_topk: the k best, then softmax of those; sigmoid: each
    for itself, chosen with a correction that does not weigh, from the best groups alone.
    """

    experts_per_token: int
    """k"""
    scoring: Literal["softmax", "sigmoid", "softmax_topk"]
    normalize: bool = True
    """The k weights sum to 1 before `scale`."""
    scale: float = 1.0
    groups: int = 1
    groups_per_token: int = 1


def route(
    logits: torch.Tensor, routing: Routing, correction: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts [n, k] int32 and their weights [n, k], float32 at least.

    logits: [n, E] of the router; correction: [E], added to sigmoids for choosing alone.
    """
    k = routing.experts_per_token
    wide = logits if logits.dtype == torch.float64 else logits.float()
    match routing.scoring:
        case "softmax_topk":
            best, chosen = wide.topk(k, -1)
            weights = best.softmax(-1)
        case "softmax":
            weights, chosen = wide.softmax(-1).topk(k, -1)
            if routing.normalize:
                weights = weights / weights.sum(-1, keepdim=True)
        case "sigmoid":
            scores = wide.sigmoid()
            candidates = scores if correction is None else scores + correction
            if routing.groups_per_token < routing.groups:
                candidates = _of_best_groups(candidates, routing)
            chosen = candidates.topk(k, -1).indices
            weights = scores.gather(1, chosen)
            if routing.normalize:
                weights = weights / (weights.sum(-1, keepdim=True) + LEAST_SUM)
    return chosen.to(torch.int32), weights * routing.scale


def _of_best_groups(candidates: torch.Tensor, routing: Routing) -> torch.Tensor:
    grouped = candidates.unflatten(1, (routing.groups, -1))
    of_group = grouped.topk(OF_A_GROUP, -1).values.sum(-1)
    best = of_group.topk(routing.groups_per_token, -1).indices
    left_out = torch.ones_like(of_group, dtype=torch.bool).scatter_(1, best, value=False)
    of_best: torch.Tensor = grouped.masked_fill(left_out[..., None], -torch.inf)
    return of_best.flatten(1)
