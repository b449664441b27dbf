"""Which slot each sequence's state is read from and written to in one step: built once, used by every layer.

Both parts of a state (SSM part, convolution window) go through the same plan, so that they cannot end up at
different depths or places. Built from host arrays alone; never reads the device.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mamba_kernels.stochastic_rounding import noise_tensors
from mamba_kernels.transfer import to_device

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
HostIntegers = np.ndarray[tuple[int, ...], np.dtype[Any]]


def index_tensor(values: HostIntegers, device: torch.device) -> torch.Tensor:
    """int64 copy of host integers on the device."""
    return to_device(torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)), device)


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """Sources and destinations of `n` states; tracked rows get the same state in a second slot as well."""

    source_slots: list[int]
    """[n] on the host; -1 = the zero state."""
    target_slots: list[int]
    track_slots: list[int]
    """[n]; -1 = not tracked."""
    routes: torch.Tensor
    """[3, n] int64 on the host: the three lists, rows in one piece each."""
    device_routes: torch.Tensor
    """The same on the device; the host's own tensor where that is the device."""
    source: torch.Tensor
    """[n] int64; the zero state reads the padding slot and is masked by `fresh`."""
    fresh: torch.Tensor | None
    """[n] bool where the state starts at zero; None when nowhere."""
    target: torch.Tensor
    """[n] int64"""
    tracked_rows: torch.Tensor | None
    """[k] int64 rows that are tracked; None when there is none."""
    tracked_slots: torch.Tensor | None
    """[k] int64"""
    noise: torch.Tensor
    """[n] int32 on the host: the word that a float16 state is rounded by, of `noise_words`."""
    device_noise: torch.Tensor
    """The same on the device."""

    @classmethod
    def build(
        cls,
        slot_in: IntArray,
        slot_out: IntArray,
        track: IntArray,
        device: torch.device,
        noise: IntArray | None = None,
        device_noise: torch.Tensor | None = None,
    ) -> "SlotPlan":
        """Plan for `n` states: `slot_in` [n] (-1 = zero state), `slot_out` [n], `track` [n] (-1 = none).

        noise: [n], None = zeros; `device_noise` where it lies on the device already.
        """
        words, device_words = noise_tensors(noise, device_noise, len(slot_in), device)
        fresh = slot_in < 0
        rows = np.flatnonzero(track >= 0)
        routes = np.array([slot_in, slot_out, track], np.int64)
        return cls(
            source_slots=slot_in.tolist(),
            target_slots=slot_out.tolist(),
            track_slots=track.tolist(),
            routes=torch.from_numpy(routes),
            device_routes=index_tensor(routes, device),
            source=index_tensor(np.maximum(slot_in, 0), device),
            fresh=index_tensor(fresh, device).bool() if fresh.any() else None,
            target=index_tensor(slot_out, device),
            tracked_rows=index_tensor(rows, device) if len(rows) else None,
            tracked_slots=index_tensor(track[rows], device) if len(rows) else None,
            noise=words,
            device_noise=device_words,
        )

    def split(self, rows: int) -> "list[tuple[slice, SlotPlan]]":
        """Plans of at most `rows` states each, and which of the states they are."""
        n = len(self.source_slots)
        return (
            [(slice(0, n), self)]
            if n <= rows
            else [self._part(at, min(at + rows, n)) for at in range(0, n, rows)]
        )

    def _part(self, first: int, end: int) -> "tuple[slice, SlotPlan]":
        some = slice(first, end)
        before = sum(slot >= 0 for slot in self.track_slots[:first])
        count = sum(slot >= 0 for slot in self.track_slots[some])
        tracked = slice(before, before + count)
        return some, SlotPlan(
            source_slots=self.source_slots[some],
            target_slots=self.target_slots[some],
            track_slots=self.track_slots[some],
            routes=self.routes[:, some],
            device_routes=self.device_routes[:, some],
            source=self.source[some],
            fresh=None if self.fresh is None else self.fresh[some],
            target=self.target[some],
            tracked_rows=self.tracked_rows[tracked] - first
            if count and self.tracked_rows is not None
            else None,
            tracked_slots=self.tracked_slots[tracked] if count and self.tracked_slots is not None else None,
            noise=self.noise[some],
            device_noise=self.device_noise[some],
        )

    def read(self, cache: torch.Tensor) -> torch.Tensor:
        """Copies [n, ...] of the source slots of `cache` [slabs, ...]; zeros where the state is fresh."""
        states = cache[self.source]
        if self.fresh is not None:
            # A fill, not a product with zero: the padding slot may hold NaN.
            states.masked_fill_(self.fresh.view(-1, *(1,) * (states.dim() - 1)), 0)
        return states

    def write(self, cache: torch.Tensor, states: torch.Tensor) -> None:
        """Store `states` [n, ...] to the target slots, and those of tracked rows to their second slot."""
        states = states.to(cache.dtype)
        cache[self.target] = states
        if self.tracked_rows is not None and self.tracked_slots is not None:
            cache[self.tracked_slots] = states[self.tracked_rows]
