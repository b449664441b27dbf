"""Operator calls of a model's step with their arguments.

The arguments are views of the arena, slices of projections, and plans. Calls are recorded once, then checked
against the reference or timed.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from mamba_kernels.dispatch.operators import OPERATORS, REFERENCE, Operators

Operator = Callable[..., Any]
"""Any operator: what compares them calls all alike."""
OF_THE_SAMPLER = "sample"
"""The operator that no layer calls."""


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call: the operator's name and its arguments."""

    operator: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    def run(self, operators: Operators) -> Any:
        """Call the operator again, on the same memory."""
        return getattr(operators, self.operator)(*self.arguments, **self.named)


def names() -> list[str]:
    """Return the operators that layers call."""
    return [name for name in OPERATORS if name != OF_THE_SAMPLER]


def intercepted(operators: Operators, intercept: Callable[[OperatorCall, Operator], Any]) -> Operators:
    """Return operators whose calls go to `intercept`, with what would have been called."""

    def one(name: str, operator: Operator) -> Operator:
        def call(*arguments: Any, **named: Any) -> Any:
            return intercept(OperatorCall(name, arguments, named), operator)

        return call

    changed: dict[str, Any] = {name: one(name, getattr(operators, name)) for name in names()}
    return replace(operators, **changed)


def recorded(operators: Operators) -> tuple[Operators, list[OperatorCall]]:
    """Return operators that compute as before, and the list that their calls are noted in."""
    calls: list[OperatorCall] = []

    def note(call: OperatorCall, operator: Operator) -> Any:
        calls.append(call)
        return operator(*call.arguments, **call.named)

    return intercepted(operators, note), calls


def differences(call: OperatorCall, kernel: Operator, reference_dtype: torch.dtype) -> dict[str, float]:
    """Run `kernel` and the reference on copies of the arguments; return how far results are apart.

    The reference computes in `reference_dtype`. Memory that the reference leaves as it is has to stay so bit
    by bit under the kernel: else "touched" counts the rows that did not. "relative_rms" and "greatest" are
    the largest over all results; the second is relative to the largest value of the result.
    """
    ours = _copies(call, None)
    before, theirs = _copies(call, reference_dtype), _copies(call, reference_dtype)
    returned = kernel(*ours.arguments, **ours.named)
    expected = theirs.run(REFERENCE)
    numbers = {"relative_rms": 0.0, "greatest": 0.0, "touched": 0.0}
    for mine, old, new in zip(_tensors(ours), _tensors(before), _tensors(theirs), strict=True):
        changed = _changed_rows(old, new)
        if changed.any():
            _compare(mine[changed], new[changed], numbers)
        kept = ~changed
        if kept.any():
            # What the reference did not write: the kernel's copy against the original's bits.
            numbers["touched"] += float(_changed_rows(mine[kept], old[kept].to(mine.dtype)).sum())
    for mine, new in zip(_flat(returned), _flat(expected), strict=True):
        _compare(mine, new, numbers)
    return numbers


def _compare(mine: torch.Tensor, expected: torch.Tensor, numbers: dict[str, float]) -> None:
    far = mine.to(torch.float64) - expected.to(torch.float64)
    # NaN where numbers are expected is as far as can be.
    far = far.nan_to_num(nan=float("inf")).abs()
    size = expected.to(torch.float64).square().mean().sqrt().item() or 1.0
    largest = expected.to(torch.float64).abs().max().item() or 1.0
    numbers["relative_rms"] = max(numbers["relative_rms"], far.square().mean().sqrt().item() / size)
    numbers["greatest"] = max(numbers["greatest"], far.max().item() / largest)


def _changed_rows(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return [rows] bool: rows (of the first dimension) in which a bit differs, NaN being equal to NaN."""
    if old.dim() == 0 or not old.numel():
        return torch.zeros(len(old) if old.dim() else 0, dtype=torch.bool, device=old.device)
    same = (old == new) | (old.isnan() & new.isnan()) if old.is_floating_point() else old == new
    return ~same.reshape(len(old), -1).all(1)


def _copies(call: OperatorCall, dtype: torch.dtype | None) -> OperatorCall:
    """Copy tensors with their strides, or widened to `dtype`; results to come (`out`) hold NaN."""
    signature = inspect.signature(getattr(REFERENCE, call.operator))
    bound = signature.bind(*call.arguments, **call.named)
    for name, value in bound.arguments.items():
        copy = bound.arguments[name] = _copy(value, dtype)
        if name == "out":
            copy.fill_(torch.nan)
    return OperatorCall(call.operator, bound.args, bound.kwargs)


def _copy(value: Any, dtype: torch.dtype | None) -> Any:
    if isinstance(value, torch.Tensor):
        if dtype is not None and value.is_floating_point():
            return value.to(dtype, copy=True)
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return copy.copy_(value)
    if is_dataclass(value) and not isinstance(value, type) and _holds_floats(value):
        return replace(
            value, **{field.name: _copy(getattr(value, field.name), dtype) for field in fields(value)}
        )
    return value


def _holds_floats(value: Any) -> bool:
    """Tell whether the object is a record of tensors to compute with; a plan holds integers."""
    parts = [getattr(value, field.name) for field in fields(value)]
    return any(isinstance(part, torch.Tensor) and part.is_floating_point() for part in parts)


def _tensors(call: OperatorCall) -> list[torch.Tensor]:
    return [tensor for value in (*call.arguments, *call.named.values()) for tensor in _flat(value)]


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [tensor for each in value for tensor in _flat(each)]
    if is_dataclass(value) and not isinstance(value, type) and _holds_floats(value):
        return [tensor for field in fields(value) for tensor in _flat(getattr(value, field.name))]
    return []
