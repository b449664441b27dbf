"""`AdaptedHeads`: products of single heads with their parts of one weight, and the changes by adapters.

Latent attention has two: it multiplies each head's part of `kv_b_proj` into queries and into what a head
attended to, and never computes the projection itself. In steps without adapters that change the projection,
both are the plain products.
"""

from dataclasses import dataclass

import torch

from mamba_planner.adapter_bank import DECODES_AT_ONCE
from mamba_server.model.adapters.adapted_product import CurrentStep, Part, Rows, check_shape, computed_type
from mamba_server.model.adapters.adapter_files import LowRank


class HeadChanges:
    """Memory for the matrices with which adapters change a projection of a latent row to all heads."""

    def __init__(self, part: Part, heads: int, first: torch.Tensor, second: torch.Tensor) -> None:
        """Keep the memory of the changes.

        Args:
            part: the projection, whose outputs are those of one head after another.
            heads: number of heads.
            first: [places, rank, inputs] zeros, for the first matrices.
            second: [places, heads, rank, outputs of a head] zeros, for the second matrices.
        """
        self.part, self.first, self.second, self._heads = part, first, second, heads
        self.type = computed_type(first)
        self.used: set[int] = set()
        """Places whose adapter changes the projection."""

    def check(self, part: Part, change: LowRank) -> None:
        """Raise AdapterError if `change` was trained for a module of another shape than `part`."""
        check_shape(part, self.first.shape[2], change)

    def install(self, place: int, modules: dict[str, LowRank]) -> None:
        """Write the change of an adapter into `place`; an adapter without one empties it."""
        self.first[place].zero_()
        self.second[place].zero_()
        self.used.discard(place)
        if (change := modules.get(self.part.module)) is None:
            return
        self.used.add(place)
        rank = len(change.first)
        self.first[place, :rank] = change.first.to(self.first)
        by_head = self.part.second(change).view(self._heads, -1, rank).transpose(1, 2)
        self.second[place, :, :rank] = by_head.to(self.second)


@dataclass(frozen=True, slots=True)
class AdaptedHeads:
    """Multiplies each head's rows by the head's part of the projection, and adds the change of each row."""

    base: Rows
    """The plain product: [T, H, a] -> [T, H, b]"""
    changes: HeadChanges
    outputs: slice
    """Outputs of each head of the projection that this product reads."""
    backwards: bool
    """Whether rows have the projection's outputs, and results its inputs; else the other way round."""
    current: CurrentStep

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product [T, H, b] of x: [T, H, a]."""
        out, step, used = self.base(x), self.current.step, self.changes.used
        if step is None or used.isdisjoint(step.places):
            return out
        for rows in step.decodes:
            # Each row gathers the matrices of its adapter.
            for start in range(0, len(rows.rows), DECODES_AT_ONCE):
                some = rows.rows[start : start + DECODES_AT_ONCE]
                change = self._change(x[some], rows.places[start : start + DECODES_AT_ONCE])
                out.index_add_(0, some, change.to(out.dtype))
        for start, stop, place in step.pieces:
            if place in used:
                out[start:stop] += self._change(x[start:stop], place).to(out.dtype)
        return out

    def _change(self, x: torch.Tensor, place: torch.Tensor | int) -> torch.Tensor:
        """Return the changes [n, H, b] of rows x, which have the adapter in `place` or in a place each.

        The shape of a row's product does not depend on the other rows, and so its bits do not either.
        """
        own = self.changes
        first = own.first[place].to(own.type)
        second = own.second[place][..., self.outputs].to(own.type)
        each = "n" if isinstance(place, torch.Tensor) else ""
        rows = x.to(own.type)
        if self.backwards:
            inner = torch.einsum(f"nho,{each}hro->nhr", rows, second)
            return torch.einsum(f"nhr,{each}ri->nhi", inner, first)
        inner = torch.einsum(f"nhi,{each}ri->nhr", rows, first)
        return torch.einsum(f"nhr,{each}hro->nho", inner, second)
