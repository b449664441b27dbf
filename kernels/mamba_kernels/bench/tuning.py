"""Launch configurations by measurement, for `launch_table.json`. Never while serving."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from mamba_kernels.bench.case import Case
from mamba_kernels.bench.measurement import check, compare
from mamba_kernels.bench.timing import seconds_of
from mamba_kernels.dispatch.operators import Operators
from mamba_kernels.triton_support.launch_table import Launch, LaunchTrial

WARPS = (1, 2, 4, 8)
STAGES = (1, 2, 3, 4)
MAX_TIME_RATIO = 0.97
"""An entry is kept where it takes at most so much of the time without it: less is noise."""
Entries = dict[tuple[str, str], dict[str, Any]]
Clock = Callable[[Callable[[], object], torch.device], float]
log = logging.getLogger(__name__)


def tune(case: Case, operators: Operators, device: torch.device, seconds: Clock = seconds_of) -> Entries:
    """By (kernel, shape), what beats the closed-form default of each kernel that the case launches.

    Raises WrongResult where the defaults are wrong; other configurations that are wrong, or do not fit the
    device, are passed over.
    """
    entries: Entries = {}
    with LaunchTrial(entries):
        check(case, operators)
    with LaunchTrial(entries) as trial:
        expected = case.run(operators, case.inputs(case.size))
        best = _time(case, operators, device, seconds)
    for key, default in trial.defaults.items():
        winner = None
        for candidate in candidates(default):
            try:
                with LaunchTrial({**entries, key: candidate}):
                    compare(case.run(operators, case.inputs(case.size)), expected)
                    duration = _time(case, operators, device, seconds)
            except Exception as why:
                log.info("%s %s cannot be %s: %s", *key, candidate, why)
                continue
            if duration < MAX_TIME_RATIO * best:
                best, winner = duration, candidate
        if winner is not None:
            entries[key] = winner
    return entries


def _time(case: Case, operators: Operators, device: torch.device, seconds: Clock) -> float:
    arguments = case.inputs(case.size)
    case.run(operators, arguments)
    return seconds(lambda: case.run(operators, arguments), device)


def candidates(default: Launch) -> Iterator[dict[str, Any]]:
    """Other numbers of warps, stages where the default has several, and each block halved and doubled."""
    blocks = [dict(default.blocks)]
    for name, extent in default.blocks.items():
        blocks += [{**default.blocks, name: other} for other in (extent // 2, extent * 2) if other]
    for sizes in blocks:
        for warps in WARPS:
            for stages in STAGES if default.num_stages > 1 else (default.num_stages,):
                if (sizes, warps, stages) != (dict(default.blocks), default.num_warps, default.num_stages):
                    yield {"num_warps": warps, "num_stages": stages, "blocks": sizes}


def table(entries: Entries, device_name: str) -> dict[str, dict[str, dict[str, Any]]]:
    """In the form of `launch_table.json`."""
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for (kernel, shape), entry in sorted(entries.items()):
        out.setdefault(kernel, {}).setdefault(device_name, {})[shape] = entry
    return out
