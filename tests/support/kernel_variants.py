"""Variants of a launch for Triton's compiler: argument types and the properties of their values."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from mamba_kernels.triton_support import KernelCall

Variant = tuple[str, tuple[Any, ...], str, str]
WHOLE = 16
"""Bytes of a pointer, or an integer, whose multiples are taken apart from others."""


def variant_of(call: KernelCall) -> Variant:
    """Return the variant of a launch: equal ones share a compilation, as in Triton's `JITFunction`."""
    kernel = call.kernel
    parameters = [_specialized(parameter, call) for parameter in _parameters(kernel)]
    return kernel.__name__, tuple(parameters), str(sorted(call.options.items())), str(call.launch.blocks)


@cache
def _parameters(kernel: Any) -> list[Any]:
    """Return the parameters with the decoration's facts about each, also for the interpreter."""
    jitted = JITFunction(kernel.fn, **kernel.kwargs) if isinstance(kernel, InterpretedFunction) else kernel
    return list(jitted.params)


def _specialized(parameter: Any, call: KernelCall) -> Any:
    name = parameter.name
    if name in call.constants or parameter.is_constexpr:
        return name, str(call.constants[name])
    value = call.arguments[name]
    if value is None:
        return name, None
    if isinstance(value, torch.Tensor):
        whole = value.data_ptr() % WHOLE == 0
        return name, value.dtype, whole and not parameter.do_not_specialize_on_alignment
    if isinstance(value, float):
        return name, float
    kind = parameter.annotation_type or ("i32" if -(2**31) <= value < 2**31 else "i64")
    if parameter.do_not_specialize:
        return name, kind
    return name, kind, value == 1, value % WHOLE == 0 and not parameter.do_not_specialize_on_alignment


@contextmanager
def variants() -> Iterator[dict[Variant, KernelCall]]:
    """Yield the variants of the kernels that run in the block, with the first launch of each."""
    seen: dict[Variant, KernelCall] = {}
    run = KernelCall.run

    def noted(call: KernelCall) -> None:
        if all(call.grid):
            seen.setdefault(variant_of(call), call)
        run(call)

    KernelCall.run = noted  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        KernelCall.run = run  # type: ignore[method-assign]


def late(served: Iterable[Variant], prepared: Iterable[Variant]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each unprepared launch: its kernel and the difference from the nearest prepared one."""
    served_names = set(prepared)
    for variant in served:
        if variant not in served_names:
            name, own, *_ = variant
            differing = [
                [one for one in own if one not in others] for of, others, *_ in served_names if of == name
            ]
            yield name, min(differing, key=len, default=list(own))
