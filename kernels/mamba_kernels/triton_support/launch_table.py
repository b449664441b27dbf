"""Launch configurations: a closed-form default of each kernel, overridden by measurements on a GPU.

Nothing is tuned while serving. `launch_table.json` has
`{kernel: {name of the GPU: {shape: {"num_warps": .., "num_stages": .., "blocks": {..}}}}}`; values that an
entry lacks are those of the default.
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
    """How a Triton kernel is launched: warps of a program, stages of its pipeline, and sizes of its tile."""

    num_warps: int
    num_stages: int = 1
    blocks: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the tile that one program of the kernel computes, by the names of the kernel's parameters."""


def launch_for(kernel: str, device: torch.device, shape: str, default: Launch) -> Launch:
    """Return how to launch `kernel` on `device` for `shape`, the name of a group of similar shapes.

    Values that the table lacks come from `default`.
    """
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
    """Makes `launch_for` return given entries instead of the table's within a `with` block, as a trial."""

    def __init__(self, entries: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        self.entries = entries
        """Entries of the trial by kernel and shape."""
        self.defaults: dict[tuple[str, str], Launch] = {}
        """Default of each kernel and shape that was launched during the trial."""

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
    """Return the name of a GPU, or the device type if it is none (in the interpreter)."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
