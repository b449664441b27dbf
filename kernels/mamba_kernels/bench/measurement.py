"""A case checked against the reference, then timed: no figure for what is wrong."""

from typing import Any

import torch

from mamba_kernels.bench.case import Case, copied, widened
from mamba_kernels.bench.machine import Machine
from mamba_kernels.bench.timing import seconds_of
from mamba_kernels.dispatch.operators import REFERENCE, Operators

CLOSE = 0.02
"""Of the largest value of a result: what 16-bit inputs and results may differ by."""


class WrongResult(Exception):
    """The kernel and the reference differ."""


def measured(
    case: Case, operators: Operators, machine: Machine, device: torch.device, *, peer: bool
) -> dict[str, Any]:
    """Its numbers as JSON: seconds, the share of this machine's limits, and the seconds of its peer and, of
    a kernel on a CPU, torch's."""
    told: dict[str, Any] = {"operator": case.operator, "shape": case.shape}
    try:
        check(case, operators)
    except Exception as why:
        return {**told, "error": f"{type(why).__name__}: {why}"}
    given = case.inputs(case.size)
    case.run(operators, given)
    seconds = seconds_of(lambda: case.run(operators, given), device)
    told |= {
        "seconds": seconds,
        "bytes_per_second": case.least_bytes / seconds,
        "share_of_copy": case.least_bytes / seconds / machine.copy_bytes_per_second,
    }
    if case.flops:
        told["share_of_product"] = case.flops / seconds / machine.flops_per_second
    if device.type == "cpu" and getattr(operators, case.operator) is not getattr(REFERENCE, case.operator):
        torchs = seconds_of(lambda: case.run(REFERENCE, given), device)
        told |= {"torch_seconds": torchs, "times_torch": torchs / seconds}
    if peer and case.peer is not None:
        told |= _peers(case, given, seconds, device)
    return told


def check(case: Case, operators: Operators) -> None:
    """Raises WrongResult where results differ from those of the reference in float64."""
    given = case.inputs(case.checked)
    got = case.run(operators, {name: copied(value) for name, value in given.items()})
    expected = case.run(REFERENCE, {name: widened(value) for name, value in given.items()})
    compare(got, expected)


def compare(got: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    """Raises WrongResult unless they are close, or the same where they are whole numbers."""
    for number, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        far = (ours.double() - theirs.double()).abs().max().item()
        largest = theirs.double().abs().max().item()
        if not far <= (CLOSE * largest if ours.is_floating_point() else 0):
            raise WrongResult(f"result {number} is {far:.3g} from what it should be (largest {largest:.3g})")


def _peers(case: Case, given: dict[str, Any], seconds: float, device: torch.device) -> dict[str, Any]:
    assert case.peer is not None
    try:
        work = case.peer(given)
        work()
        theirs = seconds_of(work, device)
    except Exception as why:
        return {"peer_error": f"{type(why).__name__}: {why}"}
    return {"peer_seconds": theirs, "times_peer": theirs / seconds}
