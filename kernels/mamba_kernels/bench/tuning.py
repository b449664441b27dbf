"""Search for launch configurations by measurement, for `launch_table.json`. Never used while serving."""

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
"""Share of the best time so far below which a configuration's time makes it the new best: smaller gains are
noise."""
Entries = dict[tuple[str, str], dict[str, Any]]
Clock = Callable[[Callable[[], object], torch.device], float]
log = logging.getLogger(__name__)


def tune(case: Case, operators: Operators, device: torch.device, seconds: Clock = seconds_of) -> Entries:
    """Return, by (kernel, shape), the configurations that beat the defaults of the kernels of a case.

    Raises WrongResult if the defaults give wrong results. Other configurations that give wrong results or do
    not fit the device are skipped.
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
                log.info("%s %s: the configuration %s is skipped: %s", *key, candidate, why)
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
    """Yield configurations with other warps and stages, and with one size of the tile halved or doubled.

    Stages vary only if the default has more than one.
    """
    blocks = [dict(default.blocks)]
    for name, extent in default.blocks.items():
        blocks += [{**default.blocks, name: other} for other in (extent // 2, extent * 2) if other]
    for sizes in blocks:
        for warps in WARPS:
            for stages in STAGES if default.num_stages > 1 else (default.num_stages,):
                if (sizes, warps, stages) != (dict(default.blocks), default.num_warps, default.num_stages):
                    yield {"num_warps": warps, "num_stages": stages, "blocks": sizes}


def table(entries: Entries, device_name: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return entries in the form of `launch_table.json`."""
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for (kernel, shape), entry in sorted(entries.items()):
        out.setdefault(kernel, {}).setdefault(device_name, {})[shape] = entry
    return out
