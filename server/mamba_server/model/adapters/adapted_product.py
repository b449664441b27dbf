"""`AdaptedProduct`: a projection of the base model, and the changes of its result by adapters.

The loader makes one in place of a layer's plain product where an engine has room for adapters; the layer
calls it in every step. In steps without adapters of this projection it is the plain product.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from mamba_kernels.activate import Function, activate
from mamba_kernels.cpu.row_operations import AdapterRows
from mamba_server.model.adapters.adapter_files import LowRank
from mamba_server.model.adapters.step_adapters import DecodeRows, StepAdapters
from mamba_server.model.checkpoint.errors import AdapterError

Rows = Callable[[torch.Tensor], torch.Tensor]
"""Function of rows: [T, a] -> [T, b]"""
FUSED = {
    "": None,
    "relu": Function.RELU,
    "relu2": Function.SQUARED_RELU,
    "silu": Function.SILU,
    "swish": Function.SILU,
}
"""Activations that a plain product may apply to its result, by their names in Hugging Face configurations."""


@dataclass(frozen=True, slots=True)
class Part:
    """Outputs of a projection that come from one module of the checkpoint, which adapters may change."""

    module: str
    """Name of the module, such as `layers.0.self_attn.q_proj`."""
    start: int
    """Number of the part's first output among the outputs of the projection."""
    outputs: int
    """Number of outputs of the module."""
    rows: torch.Tensor | None = None
    """[n] outputs of the module that are outputs of the projection from `start` on; None = all."""
    factor: torch.Tensor | None = None
    """[outputs] or [] factors by which the module's weight was multiplied; None = 1."""

    @property
    def width(self) -> int:
        """Number of outputs of the part."""
        return self.outputs if self.rows is None else len(self.rows)

    def second(self, change: LowRank) -> torch.Tensor:
        """Return the second matrix of a change of the module, [width, rank], as the projection needs it."""
        outer = change.second
        if self.factor is not None:
            outer = outer * self.factor.to(outer).reshape(-1, 1)
        return outer if self.rows is None else outer[self.rows]


class CurrentStep(Protocol):
    """Says which adapters the step that is being computed has; None = none."""

    step: StepAdapters | None


def computed_type(matrices: torch.Tensor) -> torch.dtype:
    """Return the type in which changes by such matrices are computed.

    Many CPUs multiply float32 much faster than narrower types.
    """
    return torch.promote_types(matrices.dtype, torch.float32) if matrices.is_cpu else matrices.dtype


def check_shape(part: Part, inputs: int, change: LowRank) -> None:
    """Raise AdapterError if `change` was trained for a module of another shape than `part` with `inputs`."""
    shape, own = (len(change.second), change.first.shape[1]), (part.outputs, inputs)
    if shape != own:
        raise AdapterError(
            f"the adapter's module {part.module} has {shape[1]} inputs and {shape[0]} outputs, and the "
            f"model's has {own[1]} and {own[0]}: it was trained for another model"
        )


class AdaptedProduct:
    """Multiplies rows by a weight of the model, and adds the changes of each row's adapter."""

    def __init__(
        self,
        base: Rows,
        linear: Rows,
        activation: str,
        parts: tuple[Part, ...],
        current: CurrentStep,
        first: torch.Tensor,
        seconds: list[torch.Tensor],
        kernel: AdapterRows | None = None,
    ) -> None:
        """Keep the base's products and the memory of the changes.

        Args:
            base: the base's product, with its activation.
            linear: the same product without its activation.
            activation: name of that activation; "" = none.
            parts: the modules whose outputs the product computes, in their order.
            current: holder of the adapters of the step.
            first: [places, parts, rank, inputs] zeros, for the first matrices.
            seconds: [places, rank, width] zeros for each part, for the second matrices.
            kernel: computes the changes of decoding rows with these matrices; None = torch does.
        """
        self.base, self.parts = base, parts
        self._linear, self._activation, self._function = linear, activation, FUSED[activation]
        self._current = current
        self._first, self._seconds, self._kernel = first, seconds, kernel
        self._type = computed_type(first)
        self._used: set[int] = set()
        """Places whose adapter changes this projection."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product [T, outputs] of x: [T, inputs]."""
        step = self._current.step
        if step is None or self._used.isdisjoint(step.places):
            return self.base(x)
        out = self._linear(x)
        begun = 0
        if self._kernel is not None:
            # Decoding rows get the same bits as in the C++ decoder.
            begun = len(step.decode_places)
            self._kernel(x, step.decode_places, out, self._activation)
        else:
            for rows in step.decodes:
                if any(place in self._used for place in range(rows.first, rows.end)):
                    self._change_rows(x, rows, out)
        for start, stop, place in step.pieces:
            if place in self._used:
                self._change_piece(x[start:stop], place, out[start:stop])
        if self._function is not None and begun < len(out):
            activate(out[begun:], self._function)
        return out

    def _change_rows(self, x: torch.Tensor, rows: DecodeRows, out: torch.Tensor) -> None:
        """Add the changes of rows with different adapters.

        One product with the matrices of all places computes every row's inner numbers for every adapter; the
        numbers for adapters of other rows become zero. As few rows decode, most time goes into reading the
        matrices, and each is read only once.
        """
        n, places = len(rows.rows), slice(rows.first, rows.end)
        every = n == len(out)
        first = self._first[places].to(self._type)
        chosen = (x if every else x.index_select(0, rows.rows)).to(first.dtype)
        inner = (chosen @ first.flatten(0, 2).t()).view(n, *first.shape[:3])
        if rows.end - rows.first > 1:
            own = rows.places[:, None] == torch.arange(rows.first, rows.end, device=rows.places.device)
            inner = inner.masked_fill(~own[:, :, None, None], 0)
        for number, (part, second) in enumerate(zip(self.parts, self._seconds, strict=True)):
            change = inner[:, :, number].flatten(1) @ second[places].flatten(0, 1).to(self._type)
            target = out[:, part.start : part.start + part.width]
            if every:
                target.add_(change)
            else:
                target.index_add_(0, rows.rows, change.to(out.dtype))

    def _change_piece(self, x: torch.Tensor, place: int, out: torch.Tensor) -> None:
        """Add the changes by the adapter in `place` to `out`, the results of rows x, which all have it."""
        first = self._first[place].to(self._type)
        inner = (x.to(first.dtype) @ first.flatten(0, 1).t()).view(len(x), *first.shape[:2])
        for number, (part, second) in enumerate(zip(self.parts, self._seconds, strict=True)):
            out[:, part.start : part.start + part.width].add_(inner[:, number] @ second[place].to(self._type))

    def check(self, part: Part, change: LowRank) -> None:
        """Raise AdapterError if `change` was trained for a module of another shape than `part`."""
        check_shape(part, self._first.shape[3], change)

    def install(self, place: int, modules: dict[str, LowRank]) -> None:
        """Write the changes of an adapter into `place`; an adapter without any of the modules empties it."""
        self._first[place].zero_()
        self._used.discard(place)
        ranks = [len(modules[part.module].first) for part in self.parts if part.module in modules]
        if self._kernel is not None:
            self._kernel.ranks[place] = max(ranks, default=0)
        for number, (part, second) in enumerate(zip(self.parts, self._seconds, strict=True)):
            second[place].zero_()
            if (change := modules.get(part.module)) is None:
                continue
            self._used.add(place)
            rank = len(change.first)
            self._first[place, number, :rank] = change.first.to(self._first)
            second[place, :rank] = part.second(change).t().to(second)
