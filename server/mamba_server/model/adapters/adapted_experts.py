"""`AdaptedExperts`: the changes by adapters of the experts of one sparse feed-forward block.

`Moe` has one where an engine has room for adapters of experts. Rows whose adapter changes experts are
computed here, expert by expert, because the change of the first projection stands before the activation; all
other rows keep the kernel that computes experts together. The host reads which experts such rows have chosen.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mamba_server.model.adapters.adapted_product import CurrentStep, Rows
from mamba_server.model.adapters.adapter_files import AdapterWeights, LowRank, StackedLowRank
from mamba_server.model.adapters.step_adapters import StepAdapters
from mamba_server.model.checkpoint.errors import AdapterError

EXPERT = "{expert}"
"""Part of the name of a module that stands for the number of its expert."""


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names of the modules and of the stacked parameters that adapters may change, without prefixes."""

    first: tuple[str, ...]
    """The first projections of each expert, with `EXPERT`; empty where they are stored stacked alone."""
    last: str
    stacked_first: str
    """The parameter [experts, outputs, inputs] of the first projections, the gate's outputs first."""
    stacked_last: str


@dataclass(frozen=True, slots=True)
class ExpertProducts:
    """The products of a model's experts of one inner size, without adapters."""

    up: Sequence[Rows]
    """Product of each expert with its first projections, without the activation."""
    down: Sequence[Rows]
    """Product of each expert with its last projection."""
    sizes: tuple[int, int, int]
    """Inputs, inner features and outputs."""
    inners: int
    """First projections of an expert: 2 with a gate, else 1."""
    factors: tuple[torch.Tensor | None, torch.Tensor | None]
    """[] factors by which the weights of the first and of the last projections were multiplied; None = 1."""


class Group:
    """Memory for the matrices with which adapters change experts of one inner size."""

    def __init__(
        self, products: ExpertProducts, zeros: Callable[..., torch.Tensor], places: tuple[int, int]
    ) -> None:
        """Reserve memory for the matrices of adapters.

        `zeros` returns zeros of a shape and counts their bytes. `places` are the number of adapters for which
        memory is reserved, and their largest rank.
        """
        self._up, self._down = products.up, products.down
        self.sizes, self.inners, self._factors = products.sizes, products.inners, products.factors
        inputs, inner, outputs = products.sizes
        self.count, rank = len(products.up), places[1]
        count, inners = self.count, products.inners
        self.first_a = zeros(places[0], count, inners, rank, inputs)
        self.first_b = zeros(places[0], count, inners, rank, inner)
        self.last_a = zeros(places[0], count, rank, inner)
        self.last_b = zeros(places[0], count, rank, outputs)

    def __call__(self, expert: int, x: torch.Tensor, places: Sequence[tuple[int, int, int]]) -> torch.Tensor:
        """Return the result [n, outputs] of one expert for rows x, in float32 or wider.

        `places` are runs of rows with one adapter: first row, last row plus one, and the adapter's place.
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        inner = self._up[expert](x).to(wide)
        for start, stop, place in places:
            for part, columns in enumerate(inner[start:stop].chunk(self.inners, -1)):
                columns += (x[start:stop].to(wide) @ self.first_a[place, expert, part].to(wide).t()) @ (
                    self.first_b[place, expert, part].to(wide)
                )
        inner = _activated(inner, self.inners)
        result = self._down[expert](inner.to(x.dtype)).to(wide)
        for start, stop, place in places:
            result[start:stop] += (inner[start:stop] @ self.last_a[place, expert].to(wide).t()) @ (
                self.last_b[place, expert].to(wide)
            )
        return result

    def shape(self, part: int) -> tuple[int, int]:
        """Return outputs and inputs of first projection number `part`, or of the last one if it is -1."""
        inputs, inner, outputs = self.sizes
        return (outputs, inner) if part < 0 else (inner, inputs)

    def install(self, place: int, expert: int, part: int, change: LowRank) -> None:
        """Write an adapter's change of one projection of `expert` into the memory of `place`.

        `part` is the number of a first projection, or -1 for the last.
        """
        a, b = (self.last_a, self.last_b) if part < 0 else (self.first_a, self.first_b)
        index = (place, expert) if part < 0 else (place, expert, part)
        rank = len(change.first)
        a[index][:rank] = change.first.to(a)
        factor = self._factors[1 if part < 0 else 0]
        outer = change.second if factor is None else change.second * factor.to(change.second)
        b[index][:rank] = outer.t().to(b)

    def clear(self, place: int) -> None:
        """Empty a place."""
        for matrices in (self.first_a, self.first_b, self.last_a, self.last_b):
            matrices[place].zero_()


def _activated(inner: torch.Tensor, inners: int) -> torch.Tensor:
    if inners == 1:
        return F.relu(inner).square()
    gate, up = inner.chunk(2, -1)
    return F.silu(gate) * up


class AdaptedExperts:
    """Computes the experts of one block for rows whose adapters change them."""

    def __init__(
        self,
        routed: Group,
        names: ExpertNames,
        current: CurrentStep,
        shared: tuple[Group, tuple[str, ...], str] | None = None,
    ) -> None:
        """Keep the groups of experts that adapters may change.

        `shared`: the shared expert with the names of its modules; None = it is not computed here.
        """
        self._groups = [routed] if shared is None else [routed, shared[0]]
        self._current, self._names = current, names
        self._used: set[int] = set()
        """Places whose adapter changes these experts."""
        self._modules: dict[str, tuple[Group, int, int]] = {}
        for expert in range(routed.count):
            for part, name in enumerate(names.first):
                self._modules[name.replace(EXPERT, str(expert))] = routed, expert, part
            if EXPERT in names.last:
                self._modules[names.last.replace(EXPERT, str(expert))] = routed, expert, -1
        if shared is not None:
            for part, name in enumerate(shared[1]):
                self._modules[name] = shared[0], 0, part if len(shared[1]) == shared[0].inners else _ALL_PARTS
            self._modules[shared[2]] = shared[0], 0, -1

    @property
    def modules(self) -> list[str]:
        """Names of the modules and stacked parameters that an adapter may change."""
        return [*self._modules, self._names.stacked_first, self._names.stacked_last]

    def changes_step(self) -> bool:
        """Return whether an adapter of the step changes these experts."""
        step: StepAdapters | None = self._current.step
        return step is not None and not self._used.isdisjoint(step.places)

    def rows(self, rows: int) -> tuple[list[int], list[int]] | None:
        """Return which of the step's `rows` rows are computed here, and their places; None = no row is."""
        step = self._current.step
        if step is None or not self.changes_step():
            return None
        places = step.places_of_rows(rows)
        own = [row for row, place in enumerate(places) if place in self._used]
        return (own, [places[row] for row in own]) if own else None

    def __call__(
        self,
        x: torch.Tensor,
        places: Sequence[int],
        experts: torch.Tensor,
        weights: torch.Tensor,
        gate: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the block's result for rows that have adapters.

        Args:
            x: [n, d] rows.
            places: [n] place of each row's adapter.
            experts: [n, k] experts of each row, as `route` returns them.
            weights: [n, k] weights of these experts.
            gate: [n] factor of the shared expert; None = 1.
        """
        chosen = experts.tolist()
        pairs: dict[int, list[tuple[int, int]]] = {}
        for row in sorted(range(len(chosen)), key=lambda row: places[row]):
            for column, expert in enumerate(chosen[row]):
                if expert >= 0:
                    pairs.setdefault(expert, []).append((row, column))
        routed = self._groups[0]
        wide = torch.promote_types(x.dtype, torch.float32)
        out = torch.zeros(len(x), routed.sizes[2], dtype=wide, device=x.device)
        for expert in sorted(pairs):
            rows, columns = (torch.tensor(each, device=x.device) for each in zip(*pairs[expert], strict=True))
            result = routed(expert, x[rows], _runs([places[row] for row, _ in pairs[expert]]))
            out.index_add_(0, rows, result * weights[rows, columns].to(wide)[:, None])
        for shared in self._groups[1:]:
            order = sorted(range(len(chosen)), key=lambda row: places[row])
            rows = torch.tensor(order, device=x.device)
            result = shared(0, x[rows], _runs([places[row] for row in order]))
            out.index_add_(0, rows, result if gate is None else result * gate[rows].to(wide)[:, None])
        return out

    def check(self, adapter: AdapterWeights, rank: int) -> None:
        """Raise AdapterError if changes of these experts do not fit the model or the places."""
        for name, group, _, part, change in self._changes(adapter):
            _check(name, change, group.shape(part), rank)

    def install(self, place: int, adapter: AdapterWeights) -> None:
        """Write the changes of an adapter into `place`; an adapter without any empties it."""
        for group in self._groups:
            group.clear(place)
        self._used.discard(place)
        for _, group, expert, part, change in self._changes(adapter):
            group.install(place, expert, part, change)
            self._used.add(place)

    def _changes(self, adapter: AdapterWeights) -> Iterator[tuple[str, Group, int, int, LowRank]]:
        """Yield an adapter's changes of single projections here: name, group, expert, part and change."""
        for name, change in adapter.modules.items():
            if name in self._modules:
                group, expert, part = self._modules[name]
                for one, its_part in _parts(group, part, change):
                    yield name, group, expert, its_part, one
        for name, stacked in adapter.stacked.items():
            for place in self._of_stacked(name, stacked):
                yield name, *place

    def _of_stacked(self, name: str, stacked: StackedLowRank) -> list[tuple[Group, int, int, LowRank]]:
        """Return the changes of single projections that the change `stacked` of a stacked parameter has."""
        routed = self._groups[0]
        inputs, inner, outputs = routed.sizes
        if name == self._names.stacked_first:
            changes = stacked.split(name, routed.count, (routed.inners * inner, inputs))
            return [
                (routed, expert, part, one)
                for expert, change in enumerate(changes)
                for one, part in _parts(routed, _ALL_PARTS, change)
            ]
        if name == self._names.stacked_last:
            changes = stacked.split(name, routed.count, (outputs, inner))
            return [(routed, expert, -1, change) for expert, change in enumerate(changes)]
        return []


_ALL_PARTS = -2
"""Number of a module that holds all first projections of an expert, the gate's outputs first."""


def _parts(group: Group, part: int, change: LowRank) -> list[tuple[LowRank, int]]:
    """Return the changes of single projections with the projections' numbers.

    A change of all first projections of an expert is cut into one for each.
    """
    if part != _ALL_PARTS:
        return [(change, part)]
    halves = change.second.chunk(group.inners)
    return [(LowRank(change.first, half), number) for number, half in enumerate(halves)]


def _check(name: str, change: LowRank, own: tuple[int, int], rank: int) -> None:
    shape = (len(change.second), change.first.shape[1])
    if shape != own:
        raise AdapterError(
            f"the adapter's change of {name} has {shape[1]} inputs and {shape[0]} outputs for an expert, and "
            f"the model's experts have {own[1]} and {own[0]}: it was trained for another model"
        )
    if len(change.first) > rank:
        raise AdapterError(
            f"the adapter changes {name} with rank {len(change.first)}, and the places for experts are for "
            f"ranks up to {rank}: start with --max-lora-expert-rank {len(change.first)}"
        )


def _runs(places: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return first, last plus one, and place of each run of equal places."""
    runs: list[tuple[int, int, int]] = []
    for row, place in enumerate(places):
        if runs and runs[-1][2] == place:
            runs[-1] = (runs[-1][0], row + 1, place)
        else:
            runs.append((row, row + 1, place))
    return runs
