"""Which experts a row goes to and what each counts for, by the rules of the supported families."""

from dataclasses import dataclass
from typing import Literal

import torch

from mamba_kernels.precision import accumulator

LEAST_SUM = 1e-20
"""Sigmoids of very negative logits are all zero: their sum is divided by nevertheless."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The rule of one model."""

    top_k: int
    """Experts of a row."""
    scores: Literal["softmax", "sigmoid"]
    """Softmax is over all experts, sigmoid for each alone."""
    renormalise: bool
    """Whether the scores of the chosen are divided by their sum. After a softmax that is the softmax of the
    chosen logits alone."""
    scale: float = 1.0
    """All weights are multiplied by it."""
    groups: int = 1
    """The experts are cut into so many groups of neighbours."""
    kept_groups: int = 1
    """Groups that may be chosen from: those whose two best scores have the largest sums."""


def route(
    logits: torch.Tensor, routing: Routing, correction: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each row, best first, and their weights: [n, k] int32 and [n, k] float32 (float64 if
    the logits are).

    logits: [n, E]; correction: [E], added to the scores for the choice alone. Of equal scores the expert
    with the lower number is chosen, so a row's choice does not depend on its neighbours. Raises ValueError
    for a correction or groups of a softmax, which no family has.
    """
    check_rule(routing, correction)
    wide = logits.to(accumulator(logits.dtype))
    scores = wide.sigmoid() if routing.scores == "sigmoid" else wide
    # Logits are in the order of their softmax, and do not become equal by underflow.
    choice = scores if correction is None else scores + correction
    if routing.kept_groups < routing.groups:
        choice = _of_kept_groups(choice, routing)
    experts = choice.sort(dim=-1, descending=True, stable=True).indices[:, : routing.top_k]
    chosen = scores.gather(1, experts)
    if routing.scores == "softmax":
        weights = chosen.softmax(-1) if routing.renormalise else wide.softmax(-1).gather(1, experts)
    elif routing.renormalise:
        weights = chosen / (_sum_in_order(chosen) + LEAST_SUM)
    else:
        weights = chosen
    return experts.to(torch.int32), weights * routing.scale


def check_rule(routing: Routing, correction: torch.Tensor | None) -> None:
    """Raise ValueError for a correction or groups of a softmax, which no family has."""
    if routing.scores == "softmax" and (correction is not None or routing.groups > 1):
        raise ValueError("a correction and groups of experts go with the scores 'sigmoid'")


def _of_kept_groups(choice: torch.Tensor, routing: Routing) -> torch.Tensor:
    grouped = choice.unflatten(1, (routing.groups, -1))
    best = grouped.sort(dim=-1, descending=True).values[..., :2].sum(-1)
    kept = best.sort(dim=-1, descending=True, stable=True).indices[:, : routing.kept_groups]
    dropped = torch.ones_like(best, dtype=torch.bool).scatter(1, kept, value=False)
    limited: torch.Tensor = grouped.masked_fill(dropped.unsqueeze(-1), float("-inf")).flatten(1)
    return limited


def _sum_in_order(columns: torch.Tensor) -> torch.Tensor:
    """[n, k] -> [n, 1]: how a library cuts a sum could depend on n."""
    total = columns[:, :1].clone()
    for column in range(1, columns.shape[1]):
        total += columns[:, column : column + 1]
    return total
