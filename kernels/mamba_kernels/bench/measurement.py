"""Check of a case against the reference, followed by its timing: a wrong result gets no time."""

from typing import Any

import torch

from mamba_kernels.bench.case import Case, copy_tensor, widen
from mamba_kernels.bench.machine import Machine
from mamba_kernels.bench.timing import seconds_of
from mamba_kernels.dispatch.operators import REFERENCE, Operators

TOLERANCE = 0.02
"""Largest difference of 16-bit results, as a fraction of the largest value."""


class WrongResult(Exception):
    """The results of a kernel differ from those of its reference, so its time means nothing."""


def measure_case(
    case: Case, operators: Operators, machine: Machine, device: torch.device, *, peer: bool
) -> dict[str, Any]:
    """Check and measure a case; return its seconds and its shares of the machine's limits as JSON.

    A case that fails the check has an `error` instead. With `peer`, the seconds of the case's peer are added,
    and for a C++ kernel the seconds of torch, too.
    """
    report: dict[str, Any] = {"operator": case.operator, "shape": case.shape}
    try:
        check(case, operators)
    except Exception as why:
        return {**report, "error": f"{type(why).__name__}: {why}"}
    arguments = case.inputs(case.size)
    case.run(operators, arguments)
    seconds = seconds_of(lambda: case.run(operators, arguments), device)
    report |= {
        "seconds": seconds,
        "bytes_per_second": case.least_bytes / seconds,
        "share_of_copy": case.least_bytes / seconds / machine.copy_bytes_per_second,
    }
    if case.flops:
        report["share_of_product"] = case.flops / seconds / machine.flops_per_second
    if device.type == "cpu" and getattr(operators, case.operator) is not getattr(REFERENCE, case.operator):
        torchs = seconds_of(lambda: case.run(REFERENCE, arguments), device)
        report |= {"torch_seconds": torchs, "times_torch": torchs / seconds}
    if peer and case.peer is not None:
        report |= _peers(case, arguments, seconds, device)
    return report


def check(case: Case, operators: Operators) -> None:
    """Raise WrongResult if results differ from the results of the reference in float64."""
    arguments = case.inputs(case.checked)
    results = case.run(operators, {name: copy_tensor(value) for name, value in arguments.items()})
    expected = case.run(REFERENCE, {name: widen(value) for name, value in arguments.items()})
    compare(results, expected)


def compare(results: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    """Raise WrongResult unless floating point results are close and integers are equal."""
    for number, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        far = (ours.double() - theirs.double()).abs().max().item()
        largest = theirs.double().abs().max().item()
        if not far <= (TOLERANCE * largest if ours.is_floating_point() else 0):
            raise WrongResult(f"result {number} is off by {far:.3g}; the largest number is {largest:.3g}")


def _peers(case: Case, arguments: dict[str, Any], seconds: float, device: torch.device) -> dict[str, Any]:
    assert case.peer is not None
    try:
        work = case.peer(arguments)
        work()
        theirs = seconds_of(work, device)
    except Exception as why:
        return {"peer_error": f"{type(why).__name__}: {why}"}
    return {"peer_seconds": theirs, "times_peer": theirs / seconds}
