"""Launch configurations: a closed-form default of the kernel, overruled by what was measured on a GPU.

Nothing is tuned while serving. `launch_table.json` has
`{kernel: {name of the GPU: {shape: {"num_warps": .., "num_stages": .., "blocks": {..}}}}}`; what an entry
does not say stays as the default has it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import torch

TABLE = Path(__file__).with_name("launch_table.json")


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is cut and how many threads a program has."""

    num_warps: int
    num_stages: int = 1
    blocks: Mapping[str, int] = field(default_factory=dict)
    """Extents of a program's tile, by the kernel's names for them."""


def launch_for(kernel: str, device: torch.device, shape: str, default: Launch) -> Launch:
    """The configuration of `kernel` for a bucket of shapes on that device."""
    if _trial is not None:
        _trial.defaults[kernel, shape] = default
        entry = _trial.entries.get((kernel, shape))
    else:
        entry = _table().get(kernel, {}).get(_gpu(device), {}).get(shape)
    if entry is None:
        return default
    return replace(
        default,
        num_warps=entry.get("num_warps", default.num_warps),
        num_stages=entry.get("num_stages", default.num_stages),
        blocks={**default.blocks, **entry.get("blocks", {})},
    )


class LaunchTrial:
    """While it lasts `launch_for` answers with its entries alone: for finding what to write to the table."""

    def __init__(self, entries: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        self.entries = entries
        """By kernel and shape."""
        self.defaults: dict[tuple[str, str], Launch] = {}
        """The defaults of those that were launched."""

    def __enter__(self) -> Self:
        global _trial
        _trial = self
        return self

    def __exit__(self, *_: object) -> None:
        global _trial
        _trial = None


_trial: LaunchTrial | None = None


@cache
def _table() -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    table: dict[str, dict[str, dict[str, dict[str, Any]]]] = json.loads(TABLE.read_text())
    return table


@cache
def _gpu(device: torch.device) -> str:
    """Its name; the type of a device that is none (the interpreter's)."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
