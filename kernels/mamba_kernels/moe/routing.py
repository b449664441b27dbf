"""The choice and the weights of a row's experts, by the rules of the supported model families."""

from dataclasses import dataclass
from typing import Literal

import torch

from mamba_kernels.elementwise import sigmoid
from mamba_kernels.precision import accumulator

LEAST_SUM = 1e-20
"""Number added to a sum of sigmoids before dividing by it: sigmoids of very negative logits are all zero."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The rule by which one model chooses and weights the experts of a row."""

    top_k: int
    """Number of experts of a row."""
    scores: Literal["softmax", "sigmoid"]
    """Function of the logits: a softmax over all experts, or a sigmoid of each logit."""
    renormalise: bool
    """Whether the scores of the chosen experts are divided by their sum. After a softmax the result is the
    softmax of the chosen logits alone."""
    scale: float = 1.0
    """Factor of all weights."""
    groups: int = 1
    """Number of groups of neighbouring experts."""
    kept_groups: int = 1
    """Number of groups that remain for the choice: those whose two best scores have the largest sums."""


def route(
    logits: torch.Tensor, routing: Routing, correction: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the experts of each row, [n, k] int32, best first, and their weights, [n, k].

    `logits` are [n, E]; `correction` is [E], added to the scores for the choice alone. Weights are float32,
    or float64 if the logits are. Of equal scores the expert with the lower number is chosen, so a row's
    choice does not depend on its neighbours. Raises ValueError for a softmax with a correction or groups,
    which no family has.
    """
    check_rule(routing, correction)
    wide = logits.to(accumulator(logits.dtype))
    scores = sigmoid(wide) if routing.scores == "sigmoid" else wide
    # Logits have the order of their softmax, and do not become equal by underflow.
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
    """Raise ValueError for a softmax with a correction or groups, which no family has."""
    if routing.scores == "softmax" and (correction is not None or routing.groups > 1):
        raise ValueError("a correction and groups of experts require the scores 'sigmoid'")


def _of_kept_groups(choice: torch.Tensor, routing: Routing) -> torch.Tensor:
    grouped = choice.unflatten(1, (routing.groups, -1))
    best = grouped.sort(dim=-1, descending=True).values[..., :2].sum(-1)
    kept_groups = best.sort(dim=-1, descending=True, stable=True).indices[:, : routing.kept_groups]
    dropped = torch.ones_like(best, dtype=torch.bool).scatter(1, kept_groups, value=False)
    choice_of_kept: torch.Tensor = grouped.masked_fill(dropped.unsqueeze(-1), float("-inf")).flatten(1)
    return choice_of_kept


def _sum_in_order(columns: torch.Tensor) -> torch.Tensor:
    """Sum [n, k] -> [n, 1] from left to right: the order of a library's sum could depend on n."""
    total = columns[:, :1].clone()
    for column in range(1, columns.shape[1]):
        total += columns[:, column : column + 1]
    return total
